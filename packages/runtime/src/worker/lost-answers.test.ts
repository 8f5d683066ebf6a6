import { type BatchId, KernelError, type Ring, type RunId, type TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool, findEndable, loadOpenCalls, type OpenCallRow, transaction } from '@boxcar/store';
import { statementProxy, testDatabase, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { closingOf } from '../end/end-locked.js';
import { endAndAnnounce, endSubtrees, endWaiting } from '../end/end-subtrees.js';
import { finishBatch } from '../end/finish-batch.js';
import { leaveBatch } from '../end/leave-batch.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { Sweeper } from '../sweep/sweeper.js';
import { createWorker } from './worker.js';

/** The worker neither sweeps nor renews its lease, so neither of these repairs anything. */
const NEVER_MS = 3_600_000;
/** The maximum number of runs until a statement is met. */
const RUNS = 5;
const CALM = { sweepMs: NEVER_MS, heartbeatMs: NEVER_MS, leaseMs: NEVER_MS };

test('whichever answer of the database is lost, a turn continues without help, and pays once', async () => {
  await using database = await testDatabase();
  await using proxy = await statementProxy(database.url);
  const pool = createPool({ connectionString: proxy.url, max: 3 });
  const doorbell = new InProcessDoorbell();
  const runtime = new Runtime({
    pool,
    directUrl: database.url,
    doorbell,
    model: createModelRouter({}),
  });
  const paid: string[] = [];
  runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    input: z.strictObject({}),
    retry: 'never',
    run: async (_input, { turnId }) => {
      paid.push(turnId);
      return 'paid';
    },
  });
  await runtime.applyProfile({
    name: 'child',
    instructions: 'Answer.',
    model: 'scripted',
    script: [{ say: 'ready' }],
  });
  await runtime.applyProfile({
    name: 'payer',
    instructions: 'Pay.',
    model: 'scripted',
    tools: ['pay', 'ask_expert'],
    delegation_policy: { target_profiles: ['child'] },
    script: [
      {
        calls: [
          { tool: 'pay', arguments: {} },
          { tool: 'ask_expert', arguments: { expert_profile: 'child', question: 'ready?' } },
        ],
      },
      { calls: [{ tool: 'pay', arguments: {} }] },
      { say: 'all paid' },
    ],
  });
  const worker = await createWorker(runtime, CALM);
  // A turn whose read failed is handed back with a note, and a sweep rings it. Here it is the sweep of another process,
  // at a later time.
  const other = new Runtime({
    pool: database.pool,
    directUrl: database.url,
    doorbell,
    model: createModelRouter({}),
  });
  const sweeper = new Sweeper(other, {
    lostRingMs: 1_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });
  const sweepHandedBack = async (): Promise<void> => {
    const noted = await database.pool.query("select from boxcar.sweep_failures where kind = 'turn_runs'");
    if (noted.rowCount !== 0) await sweeper.sweep({ now: new Date(Date.now() + 60_000) });
  };
  const runOnce = async (): Promise<string> => {
    const accepted = await runtime.submit('launch_principal', {
      profile_name: 'payer',
      instruction: 'go',
    });
    const turnId = (accepted as { turn_id: TurnId }).turn_id;
    await waitFor(
      async () => {
        await sweepHandedBack();
        return (await database.pool.query('select from boxcar.turns where ended_at is null')).rowCount === 0;
      },
      { message: 'every turn has ended', deadlineMs: 60_000, intervalMs: 5 },
    );
    await waitFor(() => proxy.quietMs > 5, { message: 'nothing is under way', intervalMs: 1 });
    return turnId;
  };
  const outcomeOf = async (turnId: string) => {
    const { rows } = await database.pool.query(
      `select t.status, t.epoch, (select count(*)::int from public.losses) as losses, (select array_agg(k.name || ' ' || k.status order by k.step, k.ordinal) from boxcar.tool_calls k where k.turn_id = t.id) as calls,
         (select count(*)::int from boxcar.steps s where s.turn_id = t.id) as steps, (select count(*)::int from boxcar.turns c where c.parent_turn_id = t.id) as children,
         (select count(*)::int from boxcar.evidence e where e.turn_id = t.id) as evidence
       from boxcar.turns t where t.id = $1`,
      [turnId],
    );
    return { ...rows[0], payments: paid.filter((id) => id === turnId).length };
  };
  await database.pool.query(`
    create table public.losses (turn_id uuid);
    create function public.note_loss() returns trigger language plpgsql as $$
      begin insert into public.losses values (new.id); return null; end $$;
    create trigger note_loss after update of losses on boxcar.turns for each row when (new.losses > old.losses) execute function public.note_loss()`);
  // The first run prepares all statements.
  await runOnce();
  proxy.arm();
  const calm = await outcomeOf(await runOnce());
  // Statements that run side by side are joined more or less often: the shortest of several runs is met again.
  let count = proxy.statements.length;
  for (let run = 1; run < RUNS; run += 1) {
    proxy.arm();
    await runOnce();
    count = Math.min(count, proxy.statements.length);
  }
  expect(calm).toMatchObject({
    status: 'success',
    calls: ['pay success', 'ask_expert success', 'pay success'],
    steps: 3,
    children: 1,
    losses: 0,
    evidence: 0,
    payments: 2,
  });
  let struck = 0;
  for (let at = 1; at <= count; at += 1)
    // Concurrent work sometimes sends one statement fewer; then another run meets the last statement.
    for (let run = 1; run <= RUNS; run += 1) {
      proxy.arm({ at, when: 'after', scope: 'connection' });
      const turnId = await runOnce();
      // A failed read hands the turn back: there are more epochs and attempts, but nothing runs twice and every outcome is
      // known.
      const { steps: _steps, epoch: _epoch, ...outcome } = await outcomeOf(turnId);
      const { steps: _calmSteps, epoch: _calmEpoch, ...expected } = calm;
      expect(outcome, `after ${proxy.struck}`).toEqual(expected);
      if (proxy.struck === undefined) continue;
      struck += 1;
      break;
    }
  expect(struck).toBeGreaterThan(count - 3);
  await worker.close();
  await runtime.close();
  await other.close();
  await pool.end();
});

test('a submission whose answer was lost is rung at once, and is not a repetition', async () => {
  await using database = await testDatabase();
  await using proxy = await statementProxy(database.url);
  const pool = createPool({ connectionString: proxy.url, max: 2 });
  const rung: Ring[] = [];
  const doorbell = new InProcessDoorbell();
  const ring = doorbell.ring.bind(doorbell);
  doorbell.ring = async (rings) => {
    rung.push(...rings);
    await ring(rings);
  };
  const runtime = new Runtime({ pool, directUrl: database.url, doorbell, model: createModelRouter({}) });
  await runtime.applyProfile({
    name: 'hand',
    instructions: 'Work.',
    model: 'scripted',
    script: [{ say: 'done' }],
  });
  const worker = await createWorker(runtime, { ...CALM, takesOwnRings: false });
  const send = (key: string) =>
    runtime.accept('launch_principal', { profile_name: 'hand', instruction: 'go' }, { idempotencyKey: key });
  await send('first');
  proxy.arm();
  await send('second');
  const write = proxy.statements.find((text) => text.includes('insert into boxcar.operations')) ?? '';
  rung.length = 0;
  proxy.arm({ at: { text: write, nth: 1 }, when: 'after', scope: 'connection' });
  const accepted = await send('third');
  expect(proxy.struck).toBe(write);
  expect(accepted.isReplay).toBe(false);
  const { turn_id: turnId } = accepted.answer as { turn_id: TurnId };
  await waitFor(() => rung.some((one) => one.turnId === turnId), { message: 'the turn was rung' });
  expect((await send('third')).isReplay).toBe(true);
  await worker.close();
  await runtime.close();
  await pool.end();
});

test.each([
  ['before', 'views.thin_entries'],
  ['after', 'views.thin_entries'],
  ['before', 'boxes.expand'],
  ['after', 'boxes.expand'],
] as const)(
  'a turn that its own submission has taken runs at once when the connection is lost %s %s',
  async (when, label) => {
    await using database = await testDatabase();
    await using proxy = await statementProxy(database.url);
    const pool = createPool({ connectionString: proxy.url, max: 2 });
    const runtime = new Runtime({
      pool,
      directUrl: database.url,
      doorbell: new InProcessDoorbell(),
      model: createModelRouter({}),
    });
    const script = [{ say: 'done' }];
    await runtime.applyProfile({ name: 'hand', instructions: 'Work.', model: 'scripted', script });
    const worker = await createWorker(runtime, CALM);
    const send = async (): Promise<TurnId> =>
      (
        (await runtime.submit('launch_principal', { profile_name: 'hand', instruction: 'go' })) as {
          turn_id: TurnId;
        }
      ).turn_id;
    await runtime.waitForTurn(await send());
    proxy.arm();
    await runtime.waitForTurn(await send());
    const view = proxy.statements.find((text) => text.includes(label)) ?? '';
    proxy.arm({ at: { text: view, nth: 1 }, when, scope: 'connection' });
    const turnId = await send();
    expect(await runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(proxy.struck).toBe(view);
    const { rows } = await database.pool.query(
      'select epoch, losses, attempt from boxcar.turns where id = $1',
      [turnId],
    );
    expect(rows).toEqual([{ epoch: 1, losses: 0, attempt: 0 }]);
    await worker.close();
    await runtime.close();
    await pool.end();
  },
);

describe('a turn that waits continues without help when the answer is lost to', () => {
  async function stage() {
    const database = await testDatabase();
    const proxy = await statementProxy(database.url);
    const pool = createPool({ connectionString: proxy.url, max: 2 });
    const common = {
      directUrl: database.url,
      doorbell: new InProcessDoorbell(),
      model: createModelRouter({}),
    };
    /** The answers to this runtime are lost. */
    const runtime = new Runtime({ ...common, pool });
    const own = new Runtime({ ...common, pool: database.pool });
    await own.applyProfile({
      name: 'absent',
      instructions: 'Answer.',
      model: 'scripted',
      worker_target: 'nobody',
      script: [{ say: 'never' }],
    });
    const worker = await createWorker(own, CALM);
    const close = async (): Promise<void> => {
      await worker.close();
      await runtime.close();
      await own.close();
      await pool.end();
      await proxy[Symbol.asyncDispose]();
      await database.close();
    };
    return { database, proxy, pool, runtime, own, [Symbol.asyncDispose]: close };
  }
  type Stage = Awaited<ReturnType<typeof stage>>;
  interface Waiting {
    readonly turnId: TurnId;
    readonly runId: RunId;
    /** The turn that the parent waits for. */
    readonly childId: TurnId;
    readonly call: OpenCallRow | undefined;
  }

  const DELEGATE = {
    tool: 'delegate_async',
    arguments: { target_strategy: 'new', target_ref: 'absent', instruction: 'go', wait: true },
  };
  const FORK = {
    tool: 'fork_join',
    arguments: { tasks: [{ target_strategy: 'new', target_ref: 'absent', instruction: 'go' }] },
  };
  const NOTE = { tool: 'note', arguments: {} };
  const batchOf = async ({ database }: Stage): Promise<BatchId> =>
    (await database.pool.query<{ id: BatchId }>('select id from boxcar.batches')).rows[0]?.id ??
    ('' as BatchId);
  const canceled = new KernelError('canceled').toJSON();

  const cases: [string, object, (of: Stage, waiting: Waiting) => Promise<unknown>][] = [
    [
      'the end of its batch',
      FORK,
      async (of, { runId, childId }) => {
        const ending = { runId, rootTurnIds: [childId], status: 'canceled', error: canceled } as const;
        await transaction(of.database.pool, (tx) => endSubtrees(tx, ending));
        await finishBatch(of.runtime, await batchOf(of));
      },
    ],
    [
      'the end of its call, which leaves its batch',
      FORK,
      async (of, { call }) => {
        if (call === undefined) throw new Error('no open call');
        const settlement = closingOf(call);
        expect(await leaveBatch(of.runtime, await batchOf(of), settlement)).toBe('recorded');
      },
    ],
    [
      'the cancel of the awaited turn',
      DELEGATE,
      async ({ runtime }, { childId }) => {
        const { answer } = await runtime.accept('cancel', { turn_id: childId });
        expect(answer).toMatchObject({ status: 'canceled', turn_ids: [childId] });
      },
    ],
    [
      'another end of the awaited turn',
      DELEGATE,
      async ({ runtime, pool }, { childId }) => {
        const child = await findEndable(pool, childId);
        if (child === undefined) throw new Error('no turn to end');
        await endAndAnnounce(runtime, {}, (tx) =>
          endWaiting(tx, child, { status: 'failed', error: canceled }),
        );
      },
    ],
    [
      'the raise of its budget',
      NOTE,
      async ({ runtime }, { runId, turnId }) => {
        const { answer } = await runtime.accept('raise_budget', { target: runId, budget: { steps: 9 } });
        expect(answer).toMatchObject({ woken_turn_ids: [turnId] });
      },
    ],
  ];

  test.each(cases)('%s', async (_what, call, act) => {
    await using of = await stage();
    const { database, proxy, own } = of;
    own.registerTool({ name: 'note', description: 'Notes.', input: z.strictObject({}), run: () => 'noted' });
    await own.applyProfile({
      name: 'waiting',
      instructions: 'Ask.',
      model: 'scripted',
      tools: ['delegate_async', 'fork_join', 'note'],
      delegation_policy: { target_profiles: null },
      limits: { on_budget: 'pause' },
      script: [{ calls: [call] }, { say: 'done' }],
    } as Parameters<Runtime['applyProfile']>[0]);
    const launched = await own.submit('launch_principal', {
      profile_name: 'waiting',
      instruction: 'go',
      budget: { steps: call === NOTE ? 1 : 5 },
    });
    const { turn_id: turnId } = launched as { turn_id: TurnId };
    const stateOf = async () =>
      (
        await database.pool.query<{ status: string; run_id: RunId; child_id: TurnId }>(
          'select t.status, t.run_id, (select c.id from boxcar.turns c where c.parent_turn_id = t.id) as child_id from boxcar.turns t where t.id = $1',
          [turnId],
        )
      ).rows[0];
    await waitFor(async () => (await stateOf())?.status === 'suspended', { message: 'the turn waits' });
    const state = await stateOf();
    if (state === undefined) throw new Error('no turn');
    const [open] = await loadOpenCalls(database.pool, [turnId]);
    await of.pool.query('select 1');
    await waitFor(() => proxy.quietMs > 20, { message: 'nothing is under way', intervalMs: 2 });
    proxy.arm({ at: { text: 'commit', nth: 1 }, when: 'after', scope: 'connection' });
    await act(of, { turnId, runId: state.run_id, childId: state.child_id, call: open });
    expect(proxy.struck).toBe('commit');
    expect(await own.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  });
});
