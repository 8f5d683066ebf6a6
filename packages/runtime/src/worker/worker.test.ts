import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { tcpProxy, waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { deafDoorbell } from '../testing/deaf-doorbell.js';
import { harness } from '../testing/harness.js';
import { createWorker } from './worker.js';

describe('a turn', () => {
  test('runs from submit to deliverable', async () => {
    await using h = await harness();
    await h.profile('writer', [{ say: 'Hello {{instruction}}' }]);
    await h.worker();
    const receipt = (await h.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'world',
    })) as { turn_id: string };
    const end = await h.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 });
    expect(end).toMatchObject({ status: 'success', result: 'Hello world' });
  });

  test('calls tools and primitives and ends with submit_result', async () => {
    await using h = await harness();
    h.runtime.registerTool({
      name: 'add',
      description: 'Adds.',
      input: z.strictObject({ a: z.number(), b: z.number() }),
      run: ({ a, b }) => ({ sum: a + b }),
    });
    await h.profile('expert', [{ say: 'The answer to {{instruction}} is 42' }]);
    await h.profile(
      'principal',
      [
        {
          calls: [
            { tool: 'add', arguments: { a: 1, b: 2 } },
            { tool: 'ask_expert', arguments: { expert_profile: 'expert', question: 'life' } },
          ],
        },
        {
          calls: [
            {
              tool: 'submit_result',
              arguments: { result: { sum: '{{results/add/sum}}', said: '{{results/ask_expert/result}}' } },
            },
          ],
        },
      ],
      { tools: ['add', 'ask_expert', 'submit_result'], delegation_policy: { target_profiles: ['expert'] } },
    );
    await h.worker();
    const answer = await h.runtime.submit('launch_principal', {
      profile_name: 'principal',
      instruction: 'go',
      wait: true,
    });
    expect(answer).toMatchObject({ status: 'success', result: { sum: 3, said: 'The answer to life is 42' } });
  });
});

test('a worker removes the rows of workers that died long ago', async () => {
  await using h = await harness();
  await h.rows(
    `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency)
     values (gen_random_uuid(), 1, now() - interval '2 days', '{""}', 1)`,
  );
  const worker = await h.worker();
  await waitFor(async () => (await h.rows('select id from boxcar.workers')).length === 1, {
    message: 'only the living worker is left',
  });
  expect(await h.rows('select id from boxcar.workers')).toEqual([{ id: worker.id }]);
});

test('a worker that cannot register leaves no connection open', async () => {
  await using h = await harness();
  await expect(h.worker({ targets: ['a\u0000b'] })).rejects.toThrow();
  await waitFor(
    async () =>
      (
        await h.rows(
          "select 1 from pg_stat_activity where datname = current_database() and application_name = 'boxcar-worker'",
        )
      ).length === 0,
    { message: 'its direct connection is closed' },
  );
});

test('a worker renews its lease while a session that does not end has its lock', async () => {
  await using h = await harness();
  const worker = await h.worker({ heartbeatMs: 50 });
  const leaseOf = async (): Promise<Date | undefined> =>
    (await h.rows<{ lease_until: Date }>('select lease_until from boxcar.workers'))[0]?.lease_until;
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  try {
    // It waits for the lock and gets it when the worker's connection is lost.
    const locked = stranger.query('select pg_advisory_lock(lock_key) from boxcar.workers');
    await waitFor(
      async () =>
        (
          await h.rows(
            "select 1 from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())",
          )
        ).length === 1,
      { message: 'the other session waits for the lock' },
    );
    await h.rows(
      "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'boxcar-worker'",
    );
    await locked;
    // A heartbeat that was in progress may have renewed it once more.
    for (let renewals = 0; renewals < 3; renewals++) {
      const before = await leaseOf();
      await waitFor(async () => ((await leaseOf()) ?? 0) > (before ?? 0), {
        message: 'the lease goes on being renewed',
      });
    }
  } finally {
    await stranger.end();
  }
  await waitFor(
    async () =>
      (
        await h.rows(
          "select 1 from pg_locks where locktype = 'advisory' and granted and objsubid = 1 and database = (select oid from pg_database where datname = current_database())",
        )
      ).length === 1,
    { message: 'the worker has its lock again' },
  );
  await worker.close();
});

test('a worker hands back everything that it claims while it closes, also turns without a ring', async () => {
  await using h = await harness({ doorbell: deafDoorbell() });
  let calls = 0;
  h.runtime.registerTool({
    name: 'hang',
    description: 'Hangs.',
    input: z.strictObject({}),
    isReadOnly: true,
    run: () => {
      calls++;
      return new Promise(() => undefined);
    },
  });
  await h.profile('writer', [{ calls: [{ tool: 'hang' }] }], { tools: ['hang'] });
  const ready = () =>
    h.rows(
      "update boxcar.turns set status = 'dispatched', epoch = epoch + 1, dispatched_at = now() - interval '1 minute'",
    );
  await h.runtime.submit('launch_principal', { profile_name: 'writer', instruction: 'go' });
  await ready();
  const first = await h.worker({ sweepMs: 20 });
  await waitFor(() => calls === 1, { message: 'the tool is under way' });
  await first.close({ graceMs: 0 });
  await ready();
  const idle = await h.worker({ targets: ['elsewhere'], sweepMs: 600_000 });
  const gate = new pg.Client({ connectionString: h.database.url });
  await gate.connect();
  let closing: Promise<void>;
  try {
    await gate.query('begin');
    await gate.query('select from boxcar.turns for update');
    const { rows } = await gate.query<{ pid: number }>('select pg_backend_pid() as pid');
    const isBlocked = async (): Promise<boolean> =>
      (await h.rows('select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))', [rows[0]?.pid]))
        .length > 0;
    const worker = await h.worker({ sweepMs: 20 });
    await waitFor(isBlocked, { message: 'a claim waits for the row' });
    closing = worker.close({ graceMs: 0 });
    const stopped = () =>
      h.log.filter(({ event }) => event === 'worker.stopped').map(({ fields }) => fields.worker_id);
    // This worker closes later and has claimed nothing, so it stops first.
    await idle.close({ graceMs: 0 });
    expect(stopped()).toEqual([first.id, idle.id]);
    // A claim repeatedly reads a locked row.
    await waitFor(isBlocked, { message: 'the claim still waits for the row' });
    expect(stopped()).toEqual([first.id, idle.id]);
    await gate.query('commit');
  } finally {
    await gate.end();
  }
  await closing;
  // It has handed back the turn that it claimed, without continuing the open call.
  expect(calls).toBe(1);
  expect(await h.rows('select status, epoch from boxcar.turns')).toEqual([
    { status: 'dispatched', epoch: 4 },
  ]);
  expect(await h.rows('select from boxcar.workers')).toEqual([]);
});

describe('the lease', () => {
  const leaseOf = async (client: pg.Client, id: string): Promise<number> => {
    const { rows } = await client.query<{ at: Date }>(
      'select lease_until as at from boxcar.workers where id = $1',
      [id],
    );
    return rows[0]?.at.getTime() ?? 0;
  };

  /** A lease that does not expire during a test, even on a busy machine. */
  const LASTING = { leaseMs: 20_000, heartbeatMs: 200, sweepMs: 60_000 };
  /** Waits for two renewals, the second of which began after this call. */
  const isRenewed = async (client: pg.Client, id: string): Promise<void> => {
    for (let n = 0; n < 2; n++) {
      const before = await leaseOf(client, id);
      await waitFor(async () => (await leaseOf(client, id)) > before, { message: 'the lease is renewed' });
    }
  };

  test('is renewed while the pool has no connection left', async () => {
    await using h = await harness();
    const { pool, url } = h.database;
    const worker = await h.worker(LASTING);
    const look = new pg.Client({ connectionString: url });
    await look.connect();
    const taken = await Promise.all(Array.from({ length: pool.options.max }, () => pool.connect()));
    await isRenewed(look, worker.id);
    for (const client of taken) client.release();
    await look.end();
    expect(h.log.map(({ event }) => event)).not.toContain('worker.heartbeat_failed');
  });

  test('is renewed by the pool while the direct connection does not answer', async () => {
    await using h = await harness();
    await using proxy = await tcpProxy(h.database.url);
    const log: string[] = [];
    const runtime = new Runtime({
      pool: h.database.pool,
      directUrl: proxy.url,
      doorbell: new InProcessDoorbell(),
      model: createModelRouter(),
      log: (_level, event) => void log.push(event),
    });
    const worker = await createWorker(runtime, LASTING);
    const look = new pg.Client({ connectionString: h.database.url });
    await look.connect();
    proxy.stall();
    await isRenewed(look, worker.id);
    expect(log).toContain('worker.direct_lost');
    expect(log).not.toContain('worker.lease_lost');
    await proxy.restore();
    await worker.close();
    await runtime.close();
    await look.end();
  });
});

test('a worker keeps its claims while the answer to the claim is on its way', async () => {
  const doorbell = new InProcessDoorbell();
  await using h = await harness({ doorbell });
  await h.profile('writer', [{ say: 'done' }]);
  await using proxy = await tcpProxy(h.database.url);
  const pool = createPool({ connectionString: proxy.url });
  const runtime = new Runtime({ pool, directUrl: h.database.url, doorbell, model: createModelRouter({}) });
  try {
    await using _worker = await createWorker(runtime, { heartbeatMs: 50, sweepMs: 60_000 });
    // Opens the connections first, so that each request takes effect.
    await Promise.all(Array.from({ length: 4 }, () => pool.query('select pg_sleep(0.05)')));
    proxy.stallAnswers();
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'go',
    })) as { turn_id: string };
    const turn = async () =>
      (await h.rows<{ status: string; epoch: number }>('select status, epoch from boxcar.turns'))[0];
    await waitFor(async () => (await turn())?.status === 'running', { message: 'it is claimed' });
    const leaseOf = async (): Promise<number> =>
      (
        await h.rows<{ lease_until: Date }>('select lease_until from boxcar.workers')
      )[0]?.lease_until.getTime() ?? 0;
    for (let renewals = 0; renewals < 4; renewals++) {
      const before = await leaseOf();
      await waitFor(async () => (await leaseOf()) > before, { message: 'the lease is renewed' });
    }
    expect(await turn()).toEqual({ status: 'running', epoch: 1 });
    await proxy.restore();
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
    expect(await turn()).toEqual({ status: 'success', epoch: 1 });
  } finally {
    await proxy.restore();
    await runtime.close();
    await pool.end();
  }
});
