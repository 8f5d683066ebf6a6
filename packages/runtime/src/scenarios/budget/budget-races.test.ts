import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../../queue/turn-result.js';
import { statementsOf } from '../../testing/count-statements.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

let h: Harness;
const SMALL = { model_settings: { max_output_tokens: 100 } };

beforeAll(async () => {
  h = await harness();
  h.runtime.registerTool({
    name: 'note',
    description: 'Notes a number.',
    input: z.strictObject({ n: z.number() }),
    isReadOnly: true,
    run: ({ n }) => ({ n }),
  });
  const step = (n: number) => ({
    calls: [{ tool: 'note', arguments: { n } }],
    usage: { inputTokens: 150, outputTokens: 90 },
  });
  // Some steps use more than they reserve.
  const script = [
    step(1),
    step(2),
    step(3),
    step(4),
    { say: 'done', usage: { inputTokens: 900, outputTokens: 90 } },
  ];
  await h.profile('busy', script, { ...SMALL, tools: ['note'] });
  await h.profile('patient', script, { ...SMALL, tools: ['note'], limits: { on_budget: 'pause' } });
  await h.profile('elsewhere', [{ say: 'never' }], { ...SMALL, worker_target: 'nowhere' });
});
afterAll(() => h[Symbol.asyncDispose]());

/** A turn without a worker, under whose budget other turns can be filed. */
async function root(budget?: object): Promise<{ turnId: string; runId: string }> {
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'elsewhere',
    instruction: 'stand here',
    ...(budget === undefined ? {} : { budget }),
  })) as unknown as TurnResult;
  const [row] = await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turn_id]);
  return { turnId: turn_id, runId: row?.run_id ?? '' };
}

const file = (parentTurnId: string, profile = 'busy', rest: object = {}) =>
  h.runtime.submit(
    'launch_principal',
    { profile_name: profile, instruction: 'go', ...rest },
    { parentTurnId },
  );

const outcomes = async (submits: readonly Promise<unknown>[]): Promise<Record<string, number>> => {
  const counts: Record<string, number> = {};
  for (const result of await Promise.allSettled(submits)) {
    const key =
      result.status === 'fulfilled'
        ? 'accepted'
        : String((result.reason as { code?: string }).code ?? result.reason);
    counts[key] = (counts[key] ?? 0) + 1;
  }
  return counts;
};

it('of many spawns at once exactly as many are accepted as the budget has turns', async () => {
  const { turnId, runId } = await root({ turns: 10 });
  const all = await outcomes(Array.from({ length: 40 }, () => file(turnId)));
  expect(all).toEqual({ accepted: 9, budget_exceeded: 31 });
  expect(
    await h.rows(
      `select (select count(*)::int from boxcar.turns where run_id = $1) as turns, turns_used from boxcar.budgets where id = $1`,
      [runId],
    ),
  ).toEqual([{ turns: 10, turns_used: 10 }]);
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('spawns at once never get more tokens than the budget has', async () => {
  const { turnId, runId } = await root({ tokens: 1_500 });
  const all = await outcomes(Array.from({ length: 30 }, () => file(turnId)));
  expect(all.accepted).toBeGreaterThan(3);
  expect(all.budget_exceeded).toBeGreaterThan(3);
  const [row] = await h.rows<{ reserved: number; allotted: number }>(
    `select b.tokens_reserved::int as reserved, (select sum(allotted_tokens)::int from boxcar.turns where run_id = $1) as allotted from boxcar.budgets b where id = $1`,
    [runId],
  );
  expect(row?.reserved).toBeLessThanOrEqual(1_500);
  expect(row?.allotted).toBe(row?.reserved);
  // Another turn would not have fitted into the budget.
  expect(1_500 - (row?.reserved ?? 0)).toBeLessThan((row?.reserved ?? 0) / (all.accepted ?? 1) + 1);
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('a subtree’s own budget is kept within the run’s budget, in any order of arrival', async () => {
  const { turnId, runId } = await root({ turns: 12 });
  const capped = (await file(turnId, 'elsewhere', { budget: { turns: 5 } })) as unknown as TurnResult;
  const all = await outcomes(
    Array.from({ length: 30 }, (_, n) => file(n % 2 === 0 ? capped.turn_id : turnId)),
  );
  expect(all.accepted).toBe(10);
  const used = await h.rows('select turns_used from boxcar.budgets where run_id = $1 order by top_depth', [
    runId,
  ]);
  expect(used[0]).toEqual({ turns_used: 12 });
  expect((used[1] as { turns_used: number }).turns_used).toBeLessThanOrEqual(5);
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('parallel children use no more than the limit plus the excess of their last calls', async () => {
  const { turnId, runId } = await root({ tokens: 9_000 });
  const children = (await Promise.allSettled(Array.from({ length: 12 }, () => file(turnId)))).flatMap(
    (result) => (result.status === 'fulfilled' ? [(result.value as unknown as TurnResult).turn_id] : []),
  );
  await using _first = await h.worker({ concurrency: 6 });
  await using _second = await h.worker({ concurrency: 6 });
  const ends = await Promise.all(children.map((id) => h.runtime.waitForTurn(id, { timeoutMs: 60_000 })));
  // The number of successful turns depends on the order of the reservations. When all of them reserve at once, perhaps none succeeds.
  expect(ends.filter(({ status }) => status !== 'success' && status !== 'partial')).toEqual([]);
  expect(ends.map(({ status }) => status)).toContain('partial');
  const [row] = await h.rows<{ spent: number; over: number }>(
    `select sum(spent_tokens)::int as spent, sum(greatest(spent_tokens - allotted_tokens, 0))::int as over from boxcar.turns where run_id = $1`,
    [runId],
  );
  expect(row?.spent).toBeLessThanOrEqual(9_000 + (row?.over ?? 0));
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('a raise wakes all turns that wait for it, each once', async () => {
  const { turnId, runId } = await root({ steps: 12 });
  const children = await Promise.all(
    Array.from({ length: 8 }, async () => ((await file(turnId, 'patient')) as unknown as TurnResult).turn_id),
  );
  await using _worker = await h.worker({ concurrency: 8 });
  await waitFor(
    async () =>
      (
        await h.rows(
          `select from boxcar.waits w join boxcar.turns t on t.id = w.turn_id where t.run_id = $1`,
          [runId],
        )
      ).length === children.length,
    { message: 'all of them wait' },
  );
  const raises = await outcomes(
    [50, 60, 70].map((steps) => h.runtime.submit('raise_budget', { target: runId, budget: { steps } })),
  );
  expect(raises.accepted).toBeGreaterThanOrEqual(1);
  const ends = await Promise.all(children.map((id) => h.runtime.waitForTurn(id, { timeoutMs: 60_000 })));
  expect(ends.map((end) => end.status)).toEqual(children.map(() => 'success'));
  expect(await h.rows('select from boxcar.waits')).toHaveLength(0);
  await checkInvariants(h.database.pool, { isSettled: false });
});

it('a run without an account has a ceiling, which costs no statement', async () => {
  const { turnId, runId } = await root();
  const seen = await statementsOf(h.database, () => file(turnId));
  // The statement of the submission also checks whether the account of the run limits the number of turns.
  const others = seen.filter((text) => !text.includes('insert into boxcar.operations'));
  expect(others.filter((text) => /boxcar\.budgets|^\s*select [\s\S]*from boxcar\.runs/.test(text))).toEqual(
    [],
  );
  expect(await h.rows('select turn_count from boxcar.runs where id = $1', [runId])).toEqual([
    { turn_count: 2 },
  ]);
  await h.rows('update boxcar.runs set turn_count = 9999 where id = $1', [runId]);
  const all = await outcomes(Array.from({ length: 5 }, () => file(turnId)));
  expect(all).toEqual({ accepted: 1, budget_exceeded: 4 });
  expect(await h.rows('select turn_count from boxcar.runs where id = $1', [runId])).toEqual([
    { turn_count: 10_000 },
  ]);
});
