import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { BUILT_IN_PRICES, costOf, findPrice } from '../model/prices.js';
import {
  type Account,
  type Amounts,
  budgetExceeded,
  budgetSchema,
  decideGrant,
  findShortfall,
  findSpawnHit,
  needOf,
  toBudgetLimits,
  wantOf,
} from './budget.js';

const amount = fc.nat({ max: 50 });
const amounts = fc.record({ tokens: amount, costMicros: amount, steps: fc.nat({ max: 3 }) });
const limit = fc.option(fc.integer({ min: 1, max: 400 }), { nil: undefined });
const limits = fc
  .record({ tokens: limit, cost_micros: limit, steps: limit })
  .map((given) => Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)));
const KEYS = [
  ['tokens', 'tokens'],
  ['costMicros', 'cost_micros'],
  ['steps', 'steps'],
] as const;

const empty = (id: string, of: object): Account => ({
  id,
  limits: of,
  topDepth: 0,
  tokens: 0,
  costMicros: 0,
  steps: 0,
  turns: 0,
  isOver: false,
});
const plus = (account: Account, granted: { [K in keyof Amounts]: number | null }): Account => ({
  ...account,
  tokens: account.tokens + (granted.tokens ?? 0),
  costMicros: account.costMicros + (granted.costMicros ?? 0),
  steps: account.steps + (granted.steps ?? 0),
});

describe('a grant', () => {
  it('never exceeds a limit of any account above it, and is never less than what the step needs', () => {
    fc.assert(
      fc.property(
        fc.array(limits, { minLength: 1, maxLength: 3 }),
        fc.array(fc.tuple(amounts, amounts), { maxLength: 40 }),
        (all, asks) => {
          let accounts = all.map((of, n) => empty(`${n}`, of));
          for (const [need, extra] of asks) {
            const missing = { ...need };
            const want = wantOf(accounts, missing, extra);
            const grant = decideGrant(accounts, { need, want });
            if (grant.outcome === 'refused') {
              const account = accounts.find(({ id }) => id === grant.hit.accountId);
              expect(account).toBeDefined();
              expect(grant.hit.used + grant.hit.needed).toBeGreaterThan(grant.hit.limit);
              continue;
            }
            for (const [key, limitKey] of KEYS) {
              const isLimited = accounts.some((account) => account.limits[limitKey] !== undefined);
              expect(grant.amounts[key] === null).toBe(!isLimited);
              if (isLimited) expect(grant.amounts[key]).toBeGreaterThanOrEqual(need[key]);
            }
            accounts = accounts.map((account) => plus(account, grant.amounts));
            for (const account of accounts)
              for (const [key, limitKey] of KEYS)
                expect(account[key]).toBeLessThanOrEqual(
                  account.limits[limitKey] ?? Number.POSITIVE_INFINITY,
                );
          }
        },
      ),
    );
  });

  it('is exactly the rest when the rest is less than the wanted amount, and is refused when the rest is less than the need', () => {
    const account = { ...empty('a', { tokens: 100 }), tokens: 70 };
    const ask = (need: number) =>
      decideGrant([account], {
        need: { tokens: need, costMicros: 5, steps: 1 },
        want: { tokens: 90, costMicros: 5, steps: 1 },
      });
    expect(ask(30)).toEqual({ outcome: 'granted', amounts: { tokens: 30, costMicros: null, steps: null } });
    expect(ask(31)).toEqual({
      outcome: 'refused',
      hit: { accountId: 'a', kind: 'tokens', limit: 100, used: 70, needed: 31 },
    });
  });

  it('gives nothing of an exceeded limit to a call that needs nothing of it', () => {
    const account = { ...empty('a', { cost_micros: 100, tokens: 50 }), costMicros: 130 };
    const ask = (costMicros: number) => {
      const need = { tokens: 10, costMicros, steps: 1 };
      return decideGrant([account], { need, want: need });
    };
    expect(ask(0)).toEqual({ outcome: 'granted', amounts: { tokens: 10, costMicros: 0, steps: null } });
    expect(ask(1)).toMatchObject({ outcome: 'refused', hit: { kind: 'cost_usd' } });
  });

  it('includes some steps in advance, but at most a share of the rest', () => {
    const step = { tokens: 100, costMicros: 0, steps: 1 };
    expect(wantOf([empty('a', { tokens: 100_000 })], step, step).tokens).toBe(400);
    expect(wantOf([empty('a', { tokens: 1_600 })], step, step).tokens).toBe(200);
    expect(wantOf([empty('a', { tokens: 150 })], step, step).tokens).toBe(100);
  });

  it('is refused when the time is over, and the error says so', () => {
    const over = { ...empty('a', { seconds: 5 }), isOver: true };
    const grant = decideGrant([over], { need: needOf(CALL), want: needOf(CALL) });
    expect(grant).toMatchObject({ outcome: 'refused', hit: { kind: 'seconds' } });
    if (grant.outcome === 'refused')
      expect(budgetExceeded(grant.hit).message).toMatch(/^The time of budget a is over\./);
  });
});

const CALL = { promptTokens: 100, answerTokens: 50, price: undefined };

describe('a step', () => {
  it('is paid from the allotment; the shortfall is the amount by which spending and need exceed it', () => {
    const allotment = { tokens: 200, costMicros: null, steps: 2 };
    const need = needOf(CALL);
    expect(findShortfall(allotment, { tokens: 50, costMicros: 9, steps: 1 }, need)).toBeUndefined();
    expect(findShortfall(allotment, { tokens: 60, costMicros: 9, steps: 2 }, need)).toEqual({
      tokens: 10,
      costMicros: 0,
      steps: 1,
    });
  });

  it('needs tokens for its prompt and the longest answer, at the price of both', () => {
    const price = { input: 1_000_000, output: 4_000_000 };
    expect(needOf({ ...CALL, price })).toEqual({ tokens: 150, costMicros: 300, steps: 1 });
  });

  it('needs the highest rates, since its prompt may be written to the cache and its answer may be reasoning', () => {
    const price = { input: 1_000_000, output: 4_000_000, cached_input: 100_000 };
    const written = { ...price, cache_write: 2_000_000, reasoning: 6_000_000 };
    expect(needOf({ ...CALL, price }).costMicros).toBe(300);
    expect(needOf({ ...CALL, price: written }).costMicros).toBe(500);
  });
});

it('the shape of a tree is limited by the account at its top', () => {
  const account = { ...empty('a', { turns: 3, depth: 2, fan_out: 2 }), topDepth: 4, turns: 2 };
  const spawn = { turns: 1, depth: 5, siblings: 1 };
  expect(findSpawnHit([account], spawn)).toBeUndefined();
  expect(findSpawnHit([account], { ...spawn, turns: 2 })?.kind).toBe('turns');
  expect(findSpawnHit([account], { ...spawn, depth: 6 })?.kind).toBe('depth');
  expect(findSpawnHit([account], { ...spawn, siblings: 2 })?.kind).toBe('fan_out');
});

it('a budget must limit something, and its numbers must be positive; dollars become micros', () => {
  for (const bad of [
    {},
    { tokens: 0 },
    { steps: -1 },
    { cost_usd: 0 },
    { seconds: 0 },
    { turns: 0.5 },
    { other: 1 },
  ])
    expect(budgetSchema.safeParse(bad).success).toBe(false);
  expect(toBudgetLimits(budgetSchema.parse({ cost_usd: 0.29, tokens: 5 }))).toEqual({
    cost_micros: 290_000,
    tokens: 5,
  });
});

describe('a price', () => {
  it('is found by the model’s name, also for a dated version, but not for a longer name; the first table with the name is used', () => {
    const tables = [{ 'openai:gpt-4o': { input: 1, output: 2 } }, BUILT_IN_PRICES];
    expect(findPrice('openai:gpt-4o', tables)).toEqual({ input: 1, output: 2 });
    expect(findPrice('openai:gpt-4o-2024-08-06', tables)).toEqual({ input: 1, output: 2 });
    expect(findPrice('anthropic:claude-sonnet-4-20250514', tables)?.input).toBe(3_000_000);
    expect(findPrice('openai:gpt-4o-mini', tables)?.input).toBe(150_000);
    expect(findPrice('openai:gpt-4o-audio', tables)).toBeUndefined();
    expect(findPrice('constructor', [{}])).toBeUndefined();
  });

  it('counts cached and written tokens at their own price, and rounds up', () => {
    const price = { input: 10_000_000, output: 0, cached_input: 1_000_000, cache_write: 20_000_000 };
    const usage = { inputTokens: 100, outputTokens: 7, cachedInputTokens: 50, cacheWriteTokens: 10 };
    expect(costOf(price, usage)).toBe(40 * 10 + 50 + 10 * 20);
    expect(costOf({ input: 1, output: 0 }, { inputTokens: 1, outputTokens: 0 })).toBe(1);
  });
});
