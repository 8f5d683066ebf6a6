// Rewrites migrations/schema.sql, the dump that is reviewed with every migration; `--check` only compares.
import { readFileSync, writeFileSync } from 'node:fs';
import { startEmbeddedPostgres } from '@boxcar/embedded';
import { migrate } from '@boxcar/store';
import pg from 'pg';
import { dumpSchema } from './schema-dump.ts';
import { readScriptArguments } from './script-arguments.mjs';

const USAGE = `Usage: npm run db:dump

Applies the migrations to an empty database and rewrites migrations/schema.sql with what they make of it.

  --check   only compare; fails when the file is not up to date`;
const { flags } = readScriptArguments(USAGE, { flags: ['check'] });

const file = new URL('../migrations/schema.sql', import.meta.url);

const server = await startEmbeddedPostgres({ ephemeral: true });
const client = new pg.Client({ connectionString: server.url });
try {
  await migrate(server.url);
  await client.connect();
  const dump = await dumpSchema(client);
  if (flags.has('check')) {
    const isCurrent = readOrEmpty() === dump;
    if (!isCurrent) console.error('migrations/schema.sql is not what the migrations make; run: pnpm db:dump');
    process.exitCode = isCurrent ? 0 : 1;
  } else {
    writeFileSync(file, dump);
    console.error('wrote migrations/schema.sql');
  }
} finally {
  await client.end();
  await server.stop();
}

function readOrEmpty(): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
