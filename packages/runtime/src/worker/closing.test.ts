/** The state that a worker leaves when it closes in the middle of its work. */
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { tcpProxy, testDatabase, waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { harness } from '../testing/harness.js';
import { createWorker } from './worker.js';

test('a call that has begun is handed back as begun, also when the row of its turn is locked', async () => {
  await using database = await testDatabase();
  const pool = createPool({ connectionString: database.url });
  const runtime = new Runtime({
    pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
  });
  let payments = 0;
  runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    input: z.strictObject({}),
    retry: 'never',
    run: () => {
      payments += 1;
      return new Promise(() => undefined);
    },
  });
  let answer = (): void => undefined;
  runtime.registerTool({
    name: 'quick',
    description: 'Answers when it is told to.',
    input: z.strictObject({}),
    retry: 'safe',
    run: () =>
      new Promise((settle) => {
        answer = () => settle('ok');
      }),
  });
  const calls = ['pay', 'quick'].map((tool) => ({ tool, arguments: {} }));
  const script = [{ calls }, { say: 'done' }];
  const payer = { name: 'payer', instructions: 'x', model: 'scripted', tools: ['pay', 'quick'], script };
  await runtime.applyProfile(payer);
  const worker = await createWorker(runtime, { sweepMs: 3_600_000 });
  await runtime.submit('launch_principal', { profile_name: 'payer', instruction: 'pay' });
  await waitFor(() => payments === 1, { message: 'it pays' });
  const lock = new pg.Client({ connectionString: database.url });
  await lock.connect();
  await lock.query('begin');
  await lock.query('select from boxcar.turns for update');
  // The result waits for the lock, and the turn waits for the record of the result.
  answer();
  await worker.close({ graceMs: 0 }).catch(() => undefined);
  await lock.query('rollback');
  await lock.end();
  const rows = () =>
    database.pool.query<{ status: string; turn: number; call: number }>(
      `select t.status, t.epoch as turn, k.epoch as call from boxcar.turns t join boxcar.tool_calls k on k.turn_id = t.id and k.name = 'pay'`,
    );
  await waitFor(async () => (await rows()).rows[0]?.status === 'dispatched', {
    message: 'the turn was handed back',
  });
  expect((await rows()).rows).toEqual([{ status: 'dispatched', turn: 2, call: 1 }]);
  await runtime.close();
  await pool.end();
});

test('a worker that closes while it registers again leaves neither a row nor a session', async () => {
  await using database = await testDatabase();
  await using proxy = await tcpProxy(database.url);
  const events: string[] = [];
  const runtime = new Runtime({
    pool: database.pool,
    directUrl: proxy.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    log: (_level, event) => void events.push(event),
  });
  const worker = await createWorker(runtime, { heartbeatMs: 100 });
  // With this delay, opening a connection takes a few seconds.
  proxy.delay(500);
  await database.pool.query('delete from boxcar.workers');
  await waitFor(() => events.includes('worker.lease_lost'), { message: 'its row is gone' });
  await worker.close({ graceMs: 0 }).catch(() => undefined);
  proxy.delay(0);
  const left = async () => {
    const { rows } = await database.pool.query(
      `select application_name as what from pg_stat_activity where datname = current_database() and application_name = 'boxcar-worker'
       union all select id::text from boxcar.workers`,
    );
    return rows;
  };
  await waitFor(() => events.includes('worker.heartbeat_failed'), { message: 'it has given up' });
  await waitFor(async () => (await left()).length === 0, { message: 'nothing is left' });
  await runtime.close();
});

test('a worker that closes while one of its turns is locked hands its other turns back at once', async () => {
  let open = (): void => undefined;
  const gate = new Promise<void>((settle) => {
    open = settle;
  });
  const router = createModelRouter({});
  await using h = await harness({
    model: {
      ...router,
      generate: async (request, options) => {
        await gate;
        return router.generate(request, options);
      },
    },
  });
  await h.profile('writer', [{ say: 'done' }]);
  for (let n = 0; n < 3; n += 1)
    await h.runtime.submit('launch_principal', { profile_name: 'writer', instruction: 'go' });
  const worker = await createWorker(h.runtime, { sweepMs: 3_600_000 });
  const rows = () =>
    h.rows<{ id: string; status: string; losses: number }>(
      'select id, status, losses from boxcar.turns order by id',
    );
  await waitFor(async () => (await rows()).every(({ status }) => status === 'running'), {
    message: 'all are under way',
  });
  const [locked, ...others] = (await rows()).map(({ id }) => id);
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  await stranger.query('begin');
  await stranger.query('select from boxcar.turns where id = $1 for update', [locked]);
  await expect(worker.close({ graceMs: 0 })).rejects.toMatchObject({
    // On a busy machine other parts may also exceed their time.
    errors: expect.arrayContaining([
      expect.objectContaining({ message: expect.stringContaining('handing its turns back') }),
    ]),
  });
  await waitFor(async () => (await rows()).filter(({ status }) => status === 'dispatched').length === 2, {
    message: 'the others are handed back while one is locked',
  });
  expect(await rows()).toEqual([
    { id: locked, status: 'running', losses: 0 },
    ...others.map((id) => ({ id, status: 'dispatched', losses: 0 })),
  ]);
  await stranger.end();
  // No other worker runs, so the closed worker has handed the turn back.
  await waitFor(async () => (await rows()).every(({ status }) => status === 'dispatched'), {
    message: 'the locked turn was handed back as well',
  });
  expect((await rows()).map(({ losses }) => losses)).toEqual([0, 0, 0]);
  open();
});

test('a turn that is locked does not delay the others that a worker holds but does not run', async () => {
  await using h = await harness();
  await h.profile('writer', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (let n = 0; n < 3; n += 1)
    await h.runtime.submit('launch_principal', { profile_name: 'writer', instruction: 'go' });
  const worker = await h.worker({ sweepMs: 3_600_000, heartbeatMs: 100 });
  const [locked] = await h.rows<{ id: string }>('select id from boxcar.turns order by id limit 1');
  await h.rows("update boxcar.turns set status = 'running', epoch = 1, holder_id = $1", [worker.id]);
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  await stranger.query('begin');
  await stranger.query('select from boxcar.turns where id = $1 for update', [locked?.id]);
  const running = () => h.rows<{ id: string }>("select id from boxcar.turns where status = 'running'");
  await waitFor(async () => (await running()).length === 1, {
    message: 'the others are handed back',
    deadlineMs: 3_000,
  });
  expect(await running()).toEqual([locked]);
  await stranger.end();
  await waitFor(async () => (await running()).length === 0, { message: 'the locked turn as well' });
});
