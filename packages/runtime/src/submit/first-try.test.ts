/**
 * The connection of a submission breaks while its write waits at the server. The write is committed after the next try
 * has begun.
 */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { tcpProxy, testDatabase, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { InProcessDoorbell } from '../doorbell/in-process.js';
import { Runtime } from '../runtime.js';
import { createWorker } from '../worker/worker.js';

test('a submission whose first try commits after its second try began is rung, and is not a replay', async () => {
  await using database = await testDatabase();
  await using proxy = await tcpProxy(database.url);
  const pool = createPool({ connectionString: proxy.url });
  const common = { directUrl: database.url, doorbell: new InProcessDoorbell(), model: createModelRouter({}) };
  const caller = new Runtime({ ...common, pool });
  const own = new Runtime({ ...common, pool: database.pool });
  await own.applyProfile({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say: 'x' }] });
  const worker = await createWorker(own, { sweepMs: 3_600_000 });
  const launch = { profile_name: 'p', instruction: 'go' };
  await caller.submit('launch_principal', launch);

  const lock = await database.pool.connect();
  const untilWaiting = (count: number): Promise<unknown> =>
    waitFor(
      async () => {
        const { rows } = await database.pool.query(
          "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%boxcar.operations%'",
        );
        return rows.length === count;
      },
      { message: `${count} writes wait` },
    );
  await lock.query('begin');
  await lock.query('lock table boxcar.operations in share row exclusive mode');
  const accepting = caller.accept('launch_principal', launch);
  await untilWaiting(1);
  proxy.breakOnce();
  await untilWaiting(2);
  await lock.query('rollback');
  lock.release();

  const { answer, isReplay } = await accepting;
  expect(isReplay).toBe(false);
  const { turn_id } = answer as unknown as { turn_id: TurnId };
  // The worker does not sweep, so only a ring can have started the turn.
  expect(await own.waitForTurn(turn_id, { timeoutMs: 30_000 })).toMatchObject({ status: 'success' });
  const { rows } = await database.pool.query('select from boxcar.turns');
  expect(rows).toHaveLength(2);
  await worker.close();
  await caller.close();
  await own.close();
  await pool.end();
});
