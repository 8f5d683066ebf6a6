/** A process that only holds a session lock: a takeover takes at least the time until Postgres notices the process's death. */
import pg from 'pg';
import { serveWorker } from '../worker-process.js';
import { LOCK_KEY } from './lock-key.js';

serveWorker(async ({ databaseUrl }) => {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  await client.query('select pg_advisory_lock($1)', [LOCK_KEY]);
  return { close: () => client.end() };
});
