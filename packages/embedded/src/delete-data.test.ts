import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, expect, test } from 'vitest';
import { deleteEmbeddedData, startEmbeddedPostgres } from './index.js';

const home = process.getuid?.() === 0 ? '/tmp' : tmpdir();
const dataDir = mkdtempSync(join(home, 'boxcar-delete-data-'));
afterAll(() => rmSync(dataDir, { recursive: true, force: true }));

const query = async (url: string, text: string): Promise<unknown[]> => {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query(text)).rows;
  } finally {
    await client.end();
  }
};

test('data is deleted when no process uses it, and never while a process uses it', async () => {
  const server = await startEmbeddedPostgres({ dataDir });
  try {
    await query(server.url, 'create table kept (n int)');
    await expect(deleteEmbeddedData({ dataDir })).rejects.toMatchObject({
      code: 'database_in_use',
      details: { folder: dataDir },
    });
    expect(await query(server.url, 'select * from kept')).toEqual([]);
  } finally {
    await server.stop();
  }
  await deleteEmbeddedData({ dataDir });
  // Deleting missing data is not an error.
  await deleteEmbeddedData({ dataDir });
  await using fresh = await startEmbeddedPostgres({ dataDir });
  expect(await query(fresh.url, "select to_regclass('kept') as found")).toEqual([{ found: null }]);
});
