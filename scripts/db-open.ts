// Opens a kept data folder of the embedded Postgres (the one of a failed test run is printed at its end) until Ctrl-C.
import { startEmbeddedPostgres } from '@boxcar/embedded';
import pg from 'pg';

const dataDir = process.argv[2];
const server = await startEmbeddedPostgres(dataDir === undefined ? {} : { dataDir });
const client = new pg.Client({ connectionString: server.url });
await client.connect();
const { rows } = await client.query<{ datname: string }>(
  'select datname from pg_database where not datistemplate order by datname',
);
await client.end();
for (const { datname } of rows) {
  const url = new URL(server.url);
  url.pathname = `/${datname}`;
  console.log(url.href);
}
console.log('Ctrl-C stops the server; the folder stays.');
process.once('SIGINT', () => void server.stop().then(() => process.exit(0)));
process.stdin.resume();
