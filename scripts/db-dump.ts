// Rewrites migrations/schema.sql, the dump that is reviewed with every migration; `--check` only compares.
import { readFileSync, writeFileSync } from 'node:fs';
import { startEmbeddedPostgres } from '@boxcar/embedded';
import { migrate } from '@boxcar/store';
import pg from 'pg';
import { dumpSchema } from './schema-dump.ts';

const file = new URL('../migrations/schema.sql', import.meta.url);

const server = await startEmbeddedPostgres({ ephemeral: true });
const client = new pg.Client({ connectionString: server.url });
try {
  await migrate(server.url);
  await client.connect();
  const dump = await dumpSchema(client);
  if (process.argv.includes('--check')) {
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
