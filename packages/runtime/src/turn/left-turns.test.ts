/** The results of tools are not lost while the database is away. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { type CallSettlement, createPool, dropConnections, endPool, toDatabaseError } from '@boxcar/store';
import {
  statementProxy,
  type TcpProxy,
  type TestDatabase,
  tcpProxy,
  testDatabase,
  waitFor,
} from '@boxcar/testkit';
import type pg from 'pg';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { createWorker, type WorkerOptions } from '../worker/worker.js';
import type { HeldTurn } from './held-turn.js';
import { LeftTurns } from './left-turns.js';

const NEVER_MS = 3_600_000;

interface Payer extends AsyncDisposable {
  readonly pool: pg.Pool;
  readonly log: readonly { readonly event: string; readonly outcome?: unknown }[];
  readonly paid: readonly string[];
  launch(): Promise<TurnId>;
  endOf(turnId: TurnId): Promise<unknown>;
}

/** A worker whose turns pay by a tool that must not run twice. All its connections go through `url`. */
async function payer(
  database: TestDatabase,
  options: {
    readonly url: string;
    readonly directUrl: string;
    readonly worker: WorkerOptions;
    readonly pay: () => Promise<void>;
    readonly onLog?: (event: string) => void;
  },
): Promise<Payer> {
  const log: { event: string; outcome?: unknown }[] = [];
  const paid: string[] = [];
  const pool = createPool({ connectionString: options.url, max: 4 });
  const runtime = new Runtime({
    pool,
    directUrl: options.directUrl,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    log: (_level, event, { outcome } = {}) => {
      log.push({ event, outcome });
      options.onLog?.(event);
    },
  });
  runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    input: z.strictObject({}),
    retry: 'never',
    run: async (_input, { turnId }) => {
      paid.push(turnId);
      await options.pay();
      return 'paid';
    },
  });
  await runtime.applyProfile({
    name: 'payer',
    instructions: 'Pay.',
    model: 'scripted',
    tools: ['pay'],
    script: [{ calls: [{ tool: 'pay', arguments: {} }] }, { say: 'done' }],
  });
  const worker = await createWorker(runtime, { sweepMs: NEVER_MS, ...options.worker });
  return {
    pool,
    log,
    paid,
    launch: async () => {
      const answer = await runtime.submit('launch_principal', { profile_name: 'payer', instruction: 'go' });
      return (answer as { turn_id: TurnId }).turn_id;
    },
    endOf: (turnId) =>
      waitFor(
        async () => {
          const { rows } = await database.pool.query<{ status: string; calls: string[] }>(
            `select t.status, (select array_agg(k.status) from boxcar.tool_calls k where k.turn_id = t.id) as calls
             from boxcar.turns t where t.id = $1 and t.ended_at is not null`,
            [turnId],
          );
          return rows[0];
        },
        { message: 'the turn has ended', deadlineMs: 60_000 },
      ),
    [Symbol.asyncDispose]: async () => {
      await worker.close({ graceMs: 1_000 });
      await runtime.close();
      await endPool(pool);
    },
  };
}

// One try to record a result takes half a lease. The first failed try interrupts the turn. The next try, before the turn
// is handed back, fails too.
test.each(['turn.interrupted', 'turn.result_not_recorded'])(
  'the result of a payment is recorded although the database takes no connections until %s',
  async (event) => {
    await using database = await testDatabase();
    await using proxy: TcpProxy = await tcpProxy(database.url);
    await using one = await payer(database, {
      url: proxy.url,
      directUrl: proxy.url,
      // The turn is handed back with a note, and the sweep rings it.
      worker: { leaseMs: 1_000, sweepMs: 100 },
      pay: () => proxy.cut(),
    });
    const turnId = await one.launch();
    await waitFor(() => one.log.some((line) => line.event === event), { message: event, deadlineMs: 60_000 });
    await proxy.restore();
    expect(await one.endOf(turnId)).toEqual({ status: 'success', calls: ['success'] });
    expect(one.paid).toEqual([turnId]);
    await checkInvariants(database.pool);
  },
);

test('the reply of a committed step is not evidence, even if the turn has left before the answer to the commit', async () => {
  await using database = await testDatabase();
  await using proxy = await statementProxy(database.url);
  await using one = await payer(database, {
    url: proxy.url,
    directUrl: database.url,
    worker: { leaseMs: NEVER_MS, heartbeatMs: NEVER_MS },
    pay: async () => undefined,
  });
  // Prepares its statements.
  await one.endOf(await one.launch());
  proxy.arm();
  await one.endOf(await one.launch());
  const text = proxy.statements.find((statement) => statement.includes('insert into boxcar.tool_calls'));
  if (text === undefined) throw new Error('no commit of calls');
  proxy.arm({ at: { text, nth: 1 }, when: 'after', scope: 'connection', effect: 'silence' });
  const turnId = await one.launch();
  await waitFor(() => proxy.strike.aborted, { message: 'the commit is made, and its answer lost' });
  await database.pool.query(
    "update boxcar.turns set status = 'dispatched', holder_id = null, epoch = epoch + 1, dispatched_at = now() where id = $1",
    [turnId],
  );
  dropConnections(one.pool);
  const outcomes = () => one.log.flatMap((line) => (line.event === 'turn.left' ? [line.outcome] : []));
  await waitFor(() => outcomes().length === 3, { message: 'the worker has left the turn' });
  expect(outcomes()).toEqual(['ended', 'ended', 'left']);
  expect((await database.pool.query('select kind from boxcar.evidence')).rows).toEqual([]);
});

test('a recorded result whose answer was lost in a long outage is not evidence', async () => {
  await using database = await testDatabase();
  await using proxy = await statementProxy(database.url);
  await using one = await payer(database, {
    url: proxy.url,
    directUrl: database.url,
    worker: { leaseMs: 60_000, heartbeatMs: 1_000 },
    pay: async () => undefined,
    onLog: (event) => {
      // The database is back in the pause between two tries of the result.
      if (event === 'turn.result_not_recorded') proxy.arm();
    },
  });
  // Prepares its statements.
  await one.endOf(await one.launch());
  proxy.arm();
  await one.endOf(await one.launch());
  const text = proxy.statements.find((statement) => /call_count int, results json/.test(statement));
  if (text === undefined) throw new Error('no statement that records the result');
  await waitFor(() => proxy.quietMs > 300, { message: 'quiet' });
  proxy.arm({ at: { text, nth: 1 }, when: 'after', scope: 'process' });
  const turnId = await one.launch();
  await waitFor(() => proxy.isDead, { message: 'the result is recorded, and the answer lost' });
  // When the turn is dispatched at the next epoch, the worker has handed it back. It may have been claimed and ended
  // since.
  await waitFor(
    async () =>
      (await database.pool.query('select from boxcar.turns where id = $1 and epoch > 1', [turnId]))
        .rowCount === 1,
    { message: 'the turn is handed back', deadlineMs: 60_000 },
  );
  const { rows } = await database.pool.query('select status from boxcar.tool_calls where turn_id = $1', [
    turnId,
  ]);
  expect(rows).toEqual([{ status: 'success' }]);
  expect((await database.pool.query('select kind from boxcar.evidence')).rows).toEqual([]);
});

// P0001 is given up at once. The other errors may be temporary, so they are tried again first.
test.each(['40001', '53200', 'P0001'])(
  'a turn whose result can never be recorded (%s) ends as failed with the cause',
  async (state) => {
    await using h = await harness();
    h.runtime.registerTool({
      name: 'look',
      description: 'Looks.',
      input: z.strictObject({}),
      retry: 'safe',
      run: () => Promise.resolve('seen'),
    });
    await h.profile('looker', [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'done' }], {
      tools: ['look'],
    });
    await h.rows(`create function public.refuse() returns trigger language plpgsql as $$ begin
        raise exception 'this result is poison' using errcode = '${state}'; end $$;
      create trigger refuse before update on boxcar.tool_calls for each row when (new.status = 'success') execute function public.refuse()`);
    const answer = await h.runtime.submit('launch_principal', { profile_name: 'looker', instruction: 'go' });
    const { turn_id: turnId } = answer as { turn_id: TurnId };
    await h.worker({ sweepMs: 50, lostRingMs: 100, leaseMs: 1_000, heartbeatMs: 200 });
    const rows = await waitFor(
      async () => {
        await h.rows('update boxcar.sweep_failures set next_try_at = now() where not is_dead');
        const found = await h.rows<{ error: unknown }>(
          "select error from boxcar.turns where id = $1 and status = 'failed'",
          [turnId],
        );
        return found.length > 0 ? found : undefined;
      },
      { message: 'the turn has failed', deadlineMs: 60_000 },
    );
    expect(rows[0]?.error).toMatchObject({
      message: expect.stringContaining('this result is poison'),
      details: { attempts: state === '53200' ? 10 : 5 },
    });
    await checkInvariants(h.database.pool);
  },
  90_000,
);

test.each([
  ['40001', 5, false],
  ['53200', 5, false],
  ['55P03', 8, true],
  ['57P03', 8, true],
])(
  'a result that fails with %s is tried %i times, and is then still kept: %s',
  async (code, tries, isKept) => {
    const failure = Object.assign(new Error('refused'), { code });
    const events: string[] = [];
    let count = 0;
    const left = new LeftTurns({
      runtime: { pool: {} as pg.Pool, log: (_level, event) => void events.push(event) },
      record: () => {
        count += 1;
        return Promise.reject(toDatabaseError(failure));
      },
    });
    const turnId = '01890000-0000-7000-8000-000000000001' as TurnId;
    const result = { turnId } as CallSettlement;
    left.add({
      turn: { turnId, epoch: 1 },
      begunIds: new Set(),
      unrecorded: new Map([[result, 1]]),
    } as unknown as HeldTurn);
    await waitFor(() => count >= tries && (isKept || !left.owes(turnId)), { message: 'it was tried' });
    expect(left.owes(turnId)).toBe(isKept);
    left.close();
    await left.record();
    expect(count).toBe(tries);
    expect(events.filter((event) => event === 'turn.result_lost')).toHaveLength(isKept ? 0 : 1);
  },
);
