import { tcpProxy, testDatabase, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { migrateQueues } from './queues.js';

test('a migration of the queues that loses its connection says so, and ends no process', async () => {
  await using database = await testDatabase();
  await using proxy = await tcpProxy(database.url);
  const blocker = await database.pool.connect();
  try {
    await blocker.query('begin; create schema bullmq');
    const migrating = migrateQueues(proxy.url).catch((error: unknown) => error);
    await waitFor(
      async () =>
        (
          await database.pool.query(
            'select from pg_locks where not granted and pid in (select pid from pg_stat_activity where datname = current_database())',
          )
        ).rowCount === 1,
      { message: 'the migration waits in the midst of a statement' },
    );
    proxy.breakOnce();
    expect(await migrating).toMatchObject({ code: 'database_unavailable' });
  } finally {
    await blocker.query('rollback');
    blocker.release();
  }
});
