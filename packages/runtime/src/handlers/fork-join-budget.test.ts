import { type JsonValue, KernelError, ModelError, type ModelReply, type TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { purgeRuns } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { statementsToAccept } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

interface Receipt {
  readonly batch_id: string;
  readonly turn_ids: TurnId[];
}

let h: Harness;
const scripted = createModelRouter({});
let timeouts = 0;
const SMALL = { model_settings: { max_output_tokens: 100 } };
const SOON = { retry_base_seconds: 0.01, retry_max_seconds: 0.02 };
const BOSS = { ...SMALL, tools: ['fork_join'], delegation_policy: { target_profiles: null } };
const say = (text: string) => ({ say: text, usage: { inputTokens: 10, outputTokens: 0 } });
const task = (target_ref: string, rest: Record<string, JsonValue> = {}) => ({
  target_strategy: 'new',
  target_ref,
  instruction: 'go',
  ...rest,
});
const tasks = (n: number, target = 'writer') => Array.from({ length: n }, () => task(target));
const check = () => checkInvariants(h.database.pool, { isSettled: false });
const fork = async (args: object): Promise<Receipt> =>
  (await h.runtime.submit('fork_join', { wait: false, ...args })) as unknown as Receipt;
const end = (turnId: string) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const runOf = async (turnId: string | undefined): Promise<string> =>
  (await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [turnId]))[0]?.run_id ??
  '';
async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.catch((error: unknown) => error);
  expect(thrown).toBeInstanceOf(KernelError);
  return thrown as KernelError;
}

beforeAll(async () => {
  h = await harness({
    model: {
      generate: async (request, options): Promise<ModelReply> => {
        if (request.turn.instruction === 'too slow' && request.turn.attempt === 1) {
          timeouts += 1;
          throw new ModelError('model_timeout', 'took too long', { canRetry: true });
        }
        if (request.turn.instruction === 'turned away' && request.turn.attempt === 1)
          throw new ModelError('model_unavailable', 'status 503', { canRetry: true });
        return scripted.generate(request, options);
      },
    },
  });
  await h.profile('writer', [say('written')], { ...SMALL, limits: SOON });
  await h.worker();
});
afterAll(() => h[Symbol.asyncDispose]());

describe('a fork_join from outside', () => {
  it('begins one run, whose budget and count include all its roots', async () => {
    const { turn_ids } = await fork({ tasks: tasks(3), budget: { turns: 4, tokens: 5_000 } });
    const runId = await runOf(turn_ids[0]);
    expect(
      await h.rows(
        'select b.turns_used, r.turn_count from boxcar.budgets b join boxcar.runs r on r.id = b.run_id where b.id = $1',
        [runId],
      ),
    ).toEqual([{ turns_used: 3, turn_count: 3 }]);
    for (const id of turn_ids) expect(await end(id)).toMatchObject({ status: 'success' });
    await check();
  });

  it('of more turns than its budget has is refused completely', async () => {
    const before = await rowCounts(h.database.pool);
    const error = await refusal(fork({ tasks: tasks(3), budget: { turns: 2 } }));
    expect(error).toMatchObject({
      code: 'budget_exceeded',
      details: { field: 'arguments.budget.turns' },
      // The budget was not stored either, so it cannot be raised.
      next: expect.stringContaining('Give a larger budget with the call'),
    });
    const inTask = await refusal(
      fork({ tasks: [task('writer'), task('writer', { budget: { tokens: 5 } })], budget: { tokens: 5_000 } }),
    );
    expect(inTask).toMatchObject({
      code: 'budget_exceeded',
      details: { field: 'arguments.tasks.1.budget.tokens' },
    });
    expect(await rowCounts(h.database.pool)).toEqual(before);
    await check();
  });

  it('gives each task a budget of its own inside the run’s budget, with no later end', async () => {
    const { turn_ids } = await fork({
      tasks: [task('writer', { budget: { tokens: 2_000 } }), task('writer')],
      budget: { tokens: 9_000, seconds: 600 },
    });
    const runId = await runOf(turn_ids[0]);
    const rows = await h.rows(
      `select t.budget_id, b.parent_id, b.deadline_at is not null as ends, t.deadline_at <= b.deadline_at as is_inside
       from boxcar.turns t join boxcar.budgets b on b.id = t.budget_id where t.run_id = $1 order by t.id = $2 desc`,
      [runId, turn_ids[0]],
    );
    expect(rows).toEqual([
      { budget_id: turn_ids[0], parent_id: runId, ends: true, is_inside: true },
      { budget_id: runId, parent_id: null, ends: true, is_inside: true },
    ]);
    for (const id of turn_ids) expect(await end(id)).toMatchObject({ status: 'success' });
    await check();
  });

  it('takes as many statements for many tasks as for few', async () => {
    // Runs without a worker, because its statements would be counted too.
    await using quiet = await harness();
    await quiet.profile('idle', [say('never')], SMALL);
    const count = (n: number): Promise<number> =>
      statementsToAccept(quiet.database, 'fork_join', { tasks: tasks(n, 'idle'), budget: { turns: 100 } });
    await count(2);
    expect(await count(40)).toBe(await count(2));
  });
});

it('the children of a fork_join are reserved together: all of them, or none and the caller gets an error', async () => {
  const call = (n: number) => ({
    calls: [{ tool: 'fork_join', arguments: { tasks: tasks(n) } }],
    usage: { inputTokens: 10, outputTokens: 0 },
  });
  await h.profile('boss', [call(5), call(2), say('done')], BOSS);
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'boss',
    instruction: 'go',
    budget: { turns: 4 },
  })) as { turn_id: TurnId };
  expect(await end(turn_id)).toMatchObject({ status: 'success', result: 'done' });
  expect(
    await h.rows(
      `select k.status, c.content->'error'->>'code' as code from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 order by k.step`,
      [turn_id],
    ),
  ).toEqual([
    { status: 'failed', code: 'budget_exceeded' },
    { status: 'success', code: null },
  ]);
  expect(await h.rows('select turns_used from boxcar.budgets where id = $1', [await runOf(turn_id)])).toEqual(
    [{ turns_used: 3 }],
  );
  await check();
});

it('a turn cannot set a limit for its own run', async () => {
  await h.profile(
    'wrong',
    [{ calls: [{ tool: 'fork_join', arguments: { tasks: tasks(1), budget: { turns: 9 } } }] }, say('done')],
    BOSS,
  );
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'wrong',
    instruction: 'go',
  })) as { turn_id: TurnId };
  await end(turn_id);
  expect(
    await h.rows(
      `select c.content->'error'->>'code' as code from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1`,
      [turn_id],
    ),
  ).toEqual([{ code: 'bad_request' }]);
});

it('a caller whose time is over while it waits for a batch ends as partial, together with its children', async () => {
  await h.profile('nobodys', [say('never')], { ...SMALL, worker_target: 'nowhere' });
  await h.profile(
    'waits',
    [{ calls: [{ tool: 'fork_join', arguments: { tasks: tasks(2, 'nobodys') } }] }],
    BOSS,
  );
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'waits',
    instruction: 'go',
    budget: { seconds: 2 },
  })) as { turn_id: TurnId };
  expect(await end(turn_id)).toMatchObject({ status: 'partial', error: { code: 'budget_exceeded' } });
  await waitFor(
    async () =>
      (
        await h.rows(
          `select from boxcar.turns t where t.parent_turn_id = $1 and t.ended_at is null
           union all select from boxcar.batches b where b.turn_id = $1 and b.status = 'running'`,
          [turn_id],
        )
      ).length === 0,
    { message: 'its children have ended, and their batch' },
  );
  await check();
});

it('a raise of a run raises the run’s own budget, also when its first root has another budget', async () => {
  const { turn_ids } = await fork({
    tasks: [task('writer', { budget: { tokens: 2_000 } }), task('writer')],
    budget: { tokens: 9_000 },
  });
  const runId = await runOf(turn_ids[0]);
  const raise = (target: string | undefined, tokens: number) =>
    h.runtime.submit('raise_budget', { target: target ?? '', budget: { tokens } });
  expect(await raise(runId, 12_000)).toMatchObject({ budget_id: runId, limits: { tokens: 12_000 } });
  expect(await raise(turn_ids[0], 3_000)).toMatchObject({ budget_id: turn_ids[0] });
  expect(await raise(turn_ids[1], 13_000)).toMatchObject({ budget_id: runId });
  await Promise.all(turn_ids.map(end));
  await check();
});

describe('a model call that is tried again', () => {
  const spentBy = async (instruction: string): Promise<number> => {
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction,
      budget: { tokens: 5_000 },
    })) as { turn_id: TurnId };
    expect(await end(turn_id)).toMatchObject({ status: 'success', result: 'written' });
    const [row] = await h.rows<{ n: number }>(
      'select spent_tokens::int as n from boxcar.turns where id = $1',
      [turn_id],
    );
    return row?.n ?? -1;
  };

  it('is charged once with its reservation when it took too long', async () => {
    const spent = await spentBy('too slow');
    expect(timeouts).toBe(1);
    expect(spent).toBeGreaterThan(110);
    expect(spent).toBeLessThan(250);
  });

  it('costs nothing when the provider refused it', async () => {
    expect(await spentBy('turned away')).toBe(10);
  });
});

it('a purge removes the accounts of its runs', async () => {
  const { turn_ids } = await fork({ tasks: tasks(1), budget: { turns: 1 } });
  await end(turn_ids[0] ?? '');
  const runId = await runOf(turn_ids[0]);
  await purgeRuns(h.database.pool, { before: new Date(Date.now() + 60_000) });
  expect(await h.rows('select from boxcar.runs where id = $1', [runId])).toHaveLength(0);
  expect(await h.rows('select from boxcar.budgets where run_id = $1', [runId])).toHaveLength(0);
});
