import pg from 'pg';
import { expect, test } from 'vitest';
import { type TestDatabase, testDatabase } from './index.js';

/** The isolation level of this run; by default the default level of Postgres. */
const LEVEL = process.env.BOXCAR_TEST_ISOLATION || 'read committed';

const LEVELS =
  "select current_setting('default_transaction_isolation') as of_sessions, current_setting('transaction_isolation') as of_statements";

/** The level of a connection that does not set a level. */
async function levelsOf({ url }: TestDatabase): Promise<unknown> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(LEVELS)).rows;
  } finally {
    await client.end();
  }
}

test.each(['new', 'used again'])('a database has the isolation level of the run: %s', async () => {
  await using database = await testDatabase();
  expect(await levelsOf(database)).toEqual([{ of_sessions: LEVEL, of_statements: LEVEL }]);
});

test('an empty or copied database has it, too', async () => {
  await using empty = await testDatabase({ empty: true });
  expect(await levelsOf(empty)).toEqual([{ of_sessions: LEVEL, of_statements: LEVEL }]);
});

test('the connections of a pool leave the level to the server, and their statements run as read committed', async () => {
  await using database = await testDatabase();
  const { rows } = await database.pool.query<{ of_sessions: string; of_statements: string }>(LEVELS);
  expect(rows).toEqual([{ of_sessions: LEVEL, of_statements: 'read committed' }]);
});
