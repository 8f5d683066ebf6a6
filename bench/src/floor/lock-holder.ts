/** A process that does nothing but hold a session lock: how fast Postgres notices its death is the least a takeover takes. */
import pg from 'pg';
import { serveWorker } from '../worker-process.js';
import { LOCK_KEY } from './lock-key.js';

serveWorker(async ({ databaseUrl }) => {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  await client.query('select pg_advisory_lock($1)', [LOCK_KEY]);
  return { close: () => client.end() };
});
