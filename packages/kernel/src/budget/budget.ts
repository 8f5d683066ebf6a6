/**
 * Budgets: the resources that a run, or the tree below one turn, may use. All decisions about budgets are here; their
 * rows are in `store/budget/budgets.ts`.
 * Source: docs/reference/budgets.md.
 *
 * B1  A grant never exceeds what is left in any account on the way up: `reserved + spent ≤ limit` at every grant.
 * B2  A refusal grants nothing in any account.
 * B3  A step is paid from its turn's allotment. Only when the allotment is too small is an account asked, and only for
 *     the missing amount.
 */
import { z } from 'zod';
import { canonicalJson, type JsonValue, KernelError } from '../base/index.js';
import type { ToolSchema } from '../card/index.js';
import { estimateTokens } from '../card/index.js';
import { costOf, dearestOf, type ModelPrice } from '../model/index.js';

const count = (max: number) => z.number().int().positive().max(max);

/**
 * How a caller limits the work that it submits; the same schema at every door. Models see only the field names, because
 * every prompt pays for these tokens.
 */
export const budgetSchema = z
  .strictObject({
    tokens: count(1e15).optional(),
    /** Computed from the price table; a model without a price is refused. */
    cost_usd: z.number().min(0.000_001).max(1e9).optional(),
    turns: count(1e9).optional(),
    /** Model calls of all turns together. */
    steps: count(1e9).optional(),
    /** Number of levels of turns, the first level included. */
    depth: count(1_000).optional(),
    /** Children of any one turn. */
    fan_out: count(1_000_000).optional(),
    /** Wall clock. */
    seconds: z
      .number()
      .positive()
      .max(30 * 86_400)
      .optional(),
  })
  .refine((budget) => Object.keys(budget).length > 0, 'must limit something');
export type BudgetInput = z.infer<typeof budgetSchema>;

/** The limits of an account, in the form that its row stores. */
export interface BudgetLimits {
  readonly tokens?: number;
  readonly cost_micros?: number;
  readonly turns?: number;
  readonly steps?: number;
  readonly depth?: number;
  readonly fan_out?: number;
  readonly seconds?: number;
}

export function toBudgetLimits({ cost_usd, ...rest }: BudgetInput): BudgetLimits {
  const given = Object.entries(rest).filter(([, value]) => value !== undefined);
  return {
    ...(Object.fromEntries(given) as BudgetLimits),
    ...(cost_usd === undefined ? {} : { cost_micros: Math.floor(cost_usd * 1e6 + 1e-6) }),
  };
}

/** Maximum number of turns of a run whose own account has no limit of `turns`. */
export const DEFAULT_RUN_TURNS = 10_000;

/** The current state of an account. Its numbers include reserved amounts. */
export interface Account {
  readonly id: string;
  readonly limits: BudgetLimits;
  readonly topDepth: number;
  readonly tokens: number;
  readonly costMicros: number;
  readonly steps: number;
  readonly turns: number;
  readonly isOver: boolean;
}

export interface Amounts {
  readonly tokens: number;
  readonly costMicros: number;
  readonly steps: number;
}

/** The amount of each kind that a turn has been given; null when no account above the turn limits that kind. */
export interface Allotment {
  readonly tokens: number | null;
  readonly costMicros: number | null;
  readonly steps: number | null;
}

export type BudgetKind = 'tokens' | 'cost_usd' | 'turns' | 'steps' | 'depth' | 'fan_out' | 'seconds';

/** The limit that refused a request. */
export interface BudgetHit {
  readonly accountId: string;
  readonly kind: BudgetKind;
  readonly limit: number;
  readonly used: number;
  readonly needed: number;
}

export type Grant =
  | { readonly outcome: 'granted'; readonly amounts: Allotment }
  | { readonly outcome: 'refused'; readonly hit: BudgetHit };

const bytesOf = (value: JsonValue): number => Buffer.byteLength(canonicalJson(value));

/** A prompt's size in tokens. It is an estimate, like every count before the call. */
export const estimatePrompt = (messageTokens: number, tools: readonly ToolSchema[]): number =>
  messageTokens +
  estimateTokens(
    tools.reduce(
      (sum, tool) => sum + tool.name.length + tool.description.length + bytesOf(tool.parameters),
      0,
    ),
  );

/** The most that one model call may use, as far as this is known before the call. */
export function needOf(call: {
  readonly promptTokens: number;
  readonly answerTokens: number;
  readonly price: ModelPrice | undefined;
}): Amounts {
  const outputTokens = call.answerTokens;
  return {
    tokens: call.promptTokens + outputTokens,
    costMicros:
      call.price === undefined
        ? 0
        : costOf(dearestOf(call.price), { inputTokens: call.promptTokens, outputTokens }),
    steps: 1,
  };
}

const KINDS = [
  { kind: 'tokens', limit: 'tokens', amount: 'tokens' },
  { kind: 'cost_usd', limit: 'cost_micros', amount: 'costMicros' },
  { kind: 'steps', limit: 'steps', amount: 'steps' },
] as const;

const hitOf = (
  account: Account,
  kind: BudgetKind,
  numbers: { readonly limit: number; readonly used: number; readonly needed: number },
): BudgetHit => {
  const scale = kind === 'cost_usd' ? 1e-6 : 1;
  return {
    accountId: account.id,
    kind,
    limit: numbers.limit * scale,
    used: numbers.used * scale,
    needed: numbers.needed * scale,
  };
};

/**
 * Grants what each kind needs, and up to the wanted amount where more is left. B1, B2.
 *
 * @param accounts - The nearest account and all accounts that enclose it.
 * @param need - The least amount of a grant; a smaller remainder is a refusal.
 * @param want - The most that is granted.
 */
export function decideGrant(
  accounts: readonly Account[],
  { need, want }: { readonly need: Amounts; readonly want: Amounts },
): Grant {
  const granted: { tokens: number | null; costMicros: number | null; steps: number | null } = {
    tokens: null,
    costMicros: null,
    steps: null,
  };
  for (const account of accounts) {
    if (account.isOver) {
      const seconds = account.limits.seconds ?? 0;
      return {
        outcome: 'refused',
        hit: hitOf(account, 'seconds', { limit: seconds, used: seconds, needed: 0 }),
      };
    }
    for (const { kind, limit: key, amount } of KINDS) {
      const limit = account.limits[key];
      if (limit === undefined) continue;
      // Usage may exceed an account's limit. A request that needs nothing of that kind still continues.
      const left = Math.max(limit - account[amount], 0);
      if (left < need[amount]) {
        return {
          outcome: 'refused',
          hit: hitOf(account, kind, { limit, used: account[amount], needed: need[amount] }),
        };
      }
      granted[amount] = Math.min(granted[amount] ?? Math.max(want[amount], need[amount]), left);
    }
  }
  return { outcome: 'granted', amounts: granted };
}

/**
 * Beyond its need, one turn takes at most the remaining amount divided by this number, so that its siblings get a part
 * too.
 */
const SHARE = 8;
/** The number of steps that a top-up should last for. */
const STEPS_AHEAD = 4;

/**
 * The amount that a top-up asks for: at least the missing amount, and enough for some steps ahead if a share of what is
 * left covers it.
 */
export function wantOf(accounts: readonly Account[], missing: Amounts, step: Amounts): Amounts {
  const ahead = (amount: keyof Amounts, limitKey: 'tokens' | 'cost_micros' | 'steps'): number => {
    const left = Math.min(
      ...accounts.map(({ limits, [amount]: used }) => (limits[limitKey] ?? Number.POSITIVE_INFINITY) - used),
    );
    const share = Number.isFinite(left) ? Math.max(Math.floor(left / SHARE), 0) : 0;
    return Math.max(missing[amount], Math.min(missing[amount] + step[amount] * (STEPS_AHEAD - 1), share));
  };
  return {
    tokens: ahead('tokens', 'tokens'),
    costMicros: ahead('costMicros', 'cost_micros'),
    steps: ahead('steps', 'steps'),
  };
}

/** The amounts that a turn has used. */
export interface Spent {
  readonly tokens: number;
  readonly costMicros: number;
  readonly steps: number;
}

/** The amount that an allotment lacks for one more step; undefined when it is enough. B3. */
export function findShortfall(allotment: Allotment, spent: Spent, need: Amounts): Amounts | undefined {
  const missing = (amount: keyof Amounts): number => {
    const allotted = allotment[amount];
    return allotted === null ? 0 : Math.max(0, spent[amount] + need[amount] - allotted);
  };
  const all = { tokens: missing('tokens'), costMicros: missing('costMicros'), steps: missing('steps') };
  return all.tokens + all.costMicros + all.steps === 0 ? undefined : all;
}

/** A spawn: this many new turns below one parent. */
export interface Spawn {
  readonly turns: number;
  readonly depth: number;
  /** Children that the parent turn already has. */
  readonly siblings: number;
}

/** The first limit that leaves no room for the new turns; undefined when all accounts have room. */
export function findSpawnHit(accounts: readonly Account[], spawn: Spawn): BudgetHit | undefined {
  for (const account of accounts) {
    const { limits, topDepth } = account;
    const checks: [BudgetKind, number | undefined, number, number][] = [
      ['turns', limits.turns, account.turns, spawn.turns],
      ['depth', limits.depth, spawn.depth - topDepth, 1],
      ['fan_out', limits.fan_out, spawn.siblings, spawn.turns],
    ];
    for (const [kind, limit, used, needed] of checks)
      if (limit !== undefined && used + needed > limit) return hitOf(account, kind, { limit, used, needed });
  }
  return undefined;
}

const round = (value: number): number => Math.round(value * 1e6) / 1e6;

/** The error for a limit that is reached. */
export function budgetExceeded(
  hit: BudgetHit,
  of: {
    readonly details?: Readonly<Record<string, unknown>>;
    /** Default: the next step in the catalogue. */
    readonly next?: string | undefined;
  } = {},
): KernelError {
  const left = round(Math.max(0, hit.limit - hit.used));
  return new KernelError('budget_exceeded', {
    ...(of.next === undefined ? {} : { next: of.next }),
    message:
      hit.kind === 'seconds'
        ? `The time of budget ${hit.accountId} is over.`
        : `Budget ${hit.accountId}: ${hit.kind} is limited to ${round(hit.limit)}, ${left} left, ${round(hit.needed)} needed.`,
    details: {
      budget_id: hit.accountId,
      limit: hit.kind,
      limit_value: round(hit.limit),
      left,
      needed: round(hit.needed),
      ...of.details,
    },
  });
}

/** The error for a cost limit that cannot be checked, because the model has no price. */
export const priceUnknown = (of: {
  readonly model: string;
  readonly accountId: string;
  readonly details?: Readonly<Record<string, unknown>>;
}): KernelError =>
  new KernelError('price_unknown', {
    message: `Budget ${of.accountId} limits cost_usd, and ${of.model} has no price.`,
    details: { model: of.model, budget_id: of.accountId, ...of.details },
  });
