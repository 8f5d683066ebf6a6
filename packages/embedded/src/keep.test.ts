import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdtempSync, readdirSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { deleteEmbeddedData } from './index.js';
import { isAlive } from './process.js';
import { keepersOf } from './users.js';

interface Used {
  readonly pid: number;
  readonly adopted: boolean;
}

const A_MINUTE = 60_000;
const LOADER = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
const INDEX = pathToFileURL(join(import.meta.dirname, 'index.ts')).href;
let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(process.getuid?.() === 0 ? '/tmp' : tmpdir(), 'boxcar-keep-'));
  chmodSync(folder, 0o755);
});
afterAll(async () => {
  await deleteEmbeddedData({ dataDir: folder });
  await rm(folder, { recursive: true, force: true });
});

/** A command: starts or joins the server, says what it has found, and leaves, or is ended by Ctrl-C. */
async function command(keepMs: number, end: 'leaves' | 'Ctrl-C' = 'leaves'): Promise<Used> {
  const child = spawn(
    process.execPath,
    [
      ...['--conditions=@boxcar/source', `--import=${LOADER}`, '--input-type=module', '--eval'],
      `import { startEmbeddedPostgres } from '${INDEX}';
       process.on('SIGINT', () => process.exit(130));
       const { pid, adopted, stop } = await startEmbeddedPostgres({ dataDir: '${folder}', keepMs: ${keepMs} });
       console.log(JSON.stringify({ pid, adopted }));
       ${end === 'leaves' ? 'await stop();' : 'setInterval(() => undefined, 1_000);'}`,
    ],
    { stdio: ['ignore', 'pipe', 'inherit'], detached: true },
  );
  const closed = once(child, 'close');
  let said = '';
  for await (const chunk of child.stdout) {
    said += String(chunk);
    // To its whole group, as a terminal does.
    if (end === 'Ctrl-C' && child.pid !== undefined) process.kill(-child.pid, 'SIGINT');
  }
  expect(await closed).toEqual([end === 'leaves' ? 0 : 130, null]);
  return JSON.parse(said);
}

async function until(isSo: () => boolean, what: string): Promise<void> {
  const deadline = Date.now() + A_MINUTE;
  while (!isSo()) {
    if (Date.now() > deadline) throw new Error(`still not so: ${what}`);
    await delay(20);
  }
}

it('keeps the server for the next command, through Ctrl-C and a kill -9 of the keeper, until the data is deleted', async () => {
  const first = await command(A_MINUTE);
  expect(first.adopted).toBe(false);
  const [keeper, ...others] = keepersOf(folder);
  expect([isAlive(first.pid), others]).toEqual([true, []]);
  // Two at once share it, and the keeper.
  expect(await Promise.all([command(A_MINUTE), command(A_MINUTE, 'Ctrl-C')])).toEqual([
    { pid: first.pid, adopted: true },
    { pid: first.pid, adopted: true },
  ]);
  expect(keepersOf(folder)).toEqual([keeper]);
  process.kill(keeper ?? 0, 'SIGKILL');
  await until(() => !isAlive(keeper ?? 0), 'the keeper is gone');
  expect(await command(A_MINUTE, 'Ctrl-C')).toEqual({ pid: first.pid, adopted: true });
  expect(keepersOf(folder)).toHaveLength(1);
  await deleteEmbeddedData({ dataDir: folder });
  expect([isAlive(first.pid), keepersOf(folder), existsSync(join(folder, 'cluster'))]).toEqual([
    false,
    [],
    false,
  ]);
});

it('ends the server and itself when nobody came for the time it was told, and at once with a time of 0', async () => {
  const kept = await command(300);
  await until(
    () => !isAlive(kept.pid) && keepersOf(folder).length === 0,
    'the server and its keeper are gone',
  );
  await until(() => readdirSync(join(folder, 'leaving')).length === 0, 'the keeper has left');
  expect(readdirSync(join(folder, 'users'))).toEqual([]);
  const last = await command(0);
  expect(last.adopted).toBe(false);
  expect([isAlive(last.pid), keepersOf(folder)]).toEqual([false, []]);
});

it('ends when its folder is deleted under it', async () => {
  const kept = await command(A_MINUTE);
  const [keeper = 0] = keepersOf(folder);
  await rm(folder, { recursive: true, force: true });
  await until(() => !isAlive(kept.pid) && !isAlive(keeper), 'the server and its keeper are gone');
});
