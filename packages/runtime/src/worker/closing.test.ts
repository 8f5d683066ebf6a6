/** The state that a worker leaves when it closes in the middle of its work. */
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { tcpProxy, testDatabase, waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { InProcessDoorbell } from '../doorbell/in-process.js';
import { Runtime } from '../runtime.js';
import { createWorker } from './worker.js';

test('a call that was begun is handed back as begun, also when the row of its turn is locked', async () => {
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
