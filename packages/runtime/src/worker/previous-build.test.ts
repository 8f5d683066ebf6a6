/**
 * A rolling upgrade with two real builds: this build, and the newest build with an older schema
 * (`migrations/previous-build`).
 */
import { migrate, shippedSchema } from '@boxcar/store';
import { type NodeChild, queueBackends, spawnNode, testDatabase, testRedis, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { migrateQueues } from '../queue/queues.js';
import { checkInvariants } from '../testing/invariants.js';
import { findMissingBuild, openPreviousBuild } from '../testing/previous-build.js';

const PROGRAM = new URL('../testing/mixed-pool.ts', import.meta.url);

const endsOf = (child: NodeChild): { turnId: string; status: string }[] =>
  [...child.stdout.matchAll(/^ended (\S+) (\S+)$/gm)].map(([, turnId = '', status = '']) => ({
    turnId,
    status,
  }));

async function moreEnds(child: NodeChild, count: number): Promise<void> {
  const before = endsOf(child).length;
  await waitFor(() => endsOf(child).length >= before + count, {
    message: `${count} more turns have ended; it says: ${child.stderr}`,
  });
}

async function stop(child: NodeChild): Promise<void> {
  child.writeLine('stop');
  await child.line(/^stopped$/);
}

const missing = findMissingBuild();
if (missing !== undefined) console.error(`not run: ${missing}`);

test.skipIf(missing !== undefined).each(queueBackends())(
  'two builds work on one database with queues on %s, before, while and after it is migrated',
  async (kind) => {
    using previous = await openPreviousBuild();
    await using database = await testDatabase({ empty: true });
    await using redis = kind === 'redis' ? await testRedis() : undefined;
    const old = await migrate(database.url, { migrationsDir: previous.migrationsDir });
    const own = (await shippedSchema()).max;
    expect(old.to, `${previous.commit} has the schema of this checkout`).toBeLessThan(own);
    if (redis === undefined) await migrateQueues(database.url);
    const urls = JSON.stringify({ databaseUrl: database.url, ...(redis && { redisUrl: redis.url }) });

    await using older = spawnNode(previous.place(PROGRAM), [urls]);
    const olderId = (await older.line(/^ready /)).split(' ')[1];
    await moreEnds(older, 4);
    // Its turns begin and end during the migration.
    const migrating = migrate(database.url);
    await moreEnds(older, 4);
    expect(await migrating).toMatchObject({ from: old.to, to: own });
    await moreEnds(older, 4);

    await using newer = spawnNode(PROGRAM, [urls]);
    const newerId = (await newer.line(/^ready /)).split(' ')[1];
    await moreEnds(newer, 4);
    await moreEnds(older, 4);
    const crossed = async (turns: NodeChild, holderId: string | undefined): Promise<boolean> => {
      const { rows } = await database.pool.query(
        'select from boxcar.steps where turn_id = any ($1::uuid[]) and holder_id = $2 limit 1',
        [endsOf(turns).map(({ turnId }) => turnId), holderId],
      );
      return rows.length > 0;
    };
    await waitFor(async () => (await crossed(older, newerId)) && (await crossed(newer, olderId)), {
      message: 'each build has run turns of the other',
    });
    await stop(older);
    await moreEnds(newer, 4);
    await stop(newer);

    const ends = [...endsOf(older), ...endsOf(newer)];
    expect(ends.filter(({ status }) => status !== 'success')).toEqual([]);
    const { rows } = await database.pool.query(
      `select id, status, losses, error from boxcar.turns where status <> 'success' or losses > 0`,
    );
    expect(rows).toEqual([]);
    await checkInvariants(database.pool);
  },
);
