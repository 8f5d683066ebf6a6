/** Server starts that die, or lose a connection, at each statement that concerns the local key. */
import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { authenticateKey, listKeys } from '@boxcar/runtime';
import { createPool, isTransient } from '@boxcar/store';
import { type StatementFault, statementProxy, type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { type LocalKey, openLocalKey } from './local-key.js';

const MOMENTS = [
  { scope: 'connection', when: 'before' },
  { scope: 'connection', when: 'after' },
  { scope: 'process', when: 'before' },
  { scope: 'process', when: 'after' },
] as const;

let database: TestDatabase;
let folder: string;

beforeAll(async () => {
  database = await testDatabase();
});
afterAll(() => database.close());
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-local-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const start = (): Promise<LocalKey> => openLocalKey(database.pool, { project: 'default', folder });

/** Starts a server in a separate process. @returns The statement at which it was cut off, or all of its statements. */
async function startCut(fault?: StatementFault): Promise<readonly (string | undefined)[]> {
  await using proxy = await statementProxy(database.url, fault);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  const { life } = proxy;
  const died = new Promise<void>((settle) => life.addEventListener('abort', () => settle(), { once: true }));
  // A start that fails is handled like a start that dies: the test starts again.
  const started = openLocalKey(pool, { project: 'default', folder }).catch((error: unknown) => {
    if (!isTransient(error) && !proxy.isDead) throw error;
  });
  try {
    await Promise.race([started, died]);
  } finally {
    await pool.end();
    await started;
  }
  return fault === undefined ? proxy.statements : [proxy.struck];
}

const works = async (key: string): Promise<boolean> =>
  (await authenticateKey(database.pool, key)) !== undefined;

test.each([
  ['the first start', () => Promise.resolve(undefined)],
  [
    'a start that finds a file that others could read',
    async () => {
      const { key, path } = await start();
      chmodSync(path, 0o644);
      return key;
    },
  ],
] as const)(
  '%s, cut anywhere: after the next start the key of the file is the only working key',
  async (_name, prepare) => {
    await prepare();
    const statements = await startCut();
    for (const at of statements.keys())
      for (const moment of MOMENTS) {
        await database.pool.query('delete from boxcar.api_keys');
        rmSync(folder, { recursive: true });
        const old = await prepare();
        const [struck] = await startCut({ at: at + 1, ...moment });
        const { key, keyId, path } = await start();
        expect(await works(key)).toBe(true);
        expect(JSON.parse(readFileSync(path, 'utf8'))).toMatchObject({ key });
        const usable = (await listKeys(database.pool)).keys.map((one) => one.key_id);
        const isOldRefused = old === undefined || !(await works(old));
        expect({ struck, ...moment, usable, isOldRefused }).toEqual({
          ...{ struck: statements[at], ...moment },
          ...{ usable: [keyId], isOldRefused: true },
        });
      }
  },
);
