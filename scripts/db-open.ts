// Opens a kept data folder of the embedded Postgres until Ctrl-C. A failed test run prints its folder at its end.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { startEmbeddedPostgres } from '@boxcar/embedded';
import pg from 'pg';
import { readScriptArguments } from './script-arguments.mjs';

const USAGE = `Usage: npm run db:open [-- <folder>]

Starts the embedded Postgres on a data folder that is there already, prints the URL of each of its databases, and stops at
Ctrl-C. Without a folder it is the default server.`;
const [dataDir] = readScriptArguments(USAGE, { maxPositionals: 1 }).positionals;
// A mistyped folder would be created as a new, empty server.
if (dataDir !== undefined && !existsSync(join(dataDir, 'cluster'))) {
  console.error(`${dataDir} holds no data of an embedded Postgres; see --help`);
  process.exit(2);
}
const server = await startEmbeddedPostgres(dataDir === undefined ? {} : { dataDir });
const client = new pg.Client({ connectionString: server.adminUrl });
await client.connect();
const { rows } = await client.query<{ datname: string }>(
  'select datname from pg_database where not datistemplate order by datname',
);
await client.end();
for (const { datname } of rows) {
  const url = new URL(server.adminUrl);
  url.pathname = `/${datname}`;
  console.log(url.href);
}
console.log('Ctrl-C stops the server; the folder stays.');
process.once('SIGINT', () => void server.stop().then(() => process.exit(0)));
process.stdin.resume();
