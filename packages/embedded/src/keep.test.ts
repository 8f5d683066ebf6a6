import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { freePort } from './free-port.js';
import { deleteEmbeddedData, startEmbeddedPostgres } from './index.js';
import { isAlive, startOf } from './process.js';
import { keepersOf } from './users.js';

interface Used {
  readonly pid: number;
  readonly adopted: boolean;
}

const A_MINUTE = 60_000;
const LOADER = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
const INDEX = pathToFileURL(join(import.meta.dirname, 'index.ts')).href;
const KEEPER = join(import.meta.dirname, 'keeper.ts');
let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(process.getuid?.() === 0 ? '/tmp' : tmpdir(), 'boxcar-keep-'));
  chmodSync(folder, 0o755);
});
afterAll(async () => {
  await deleteEmbeddedData({ dataDir: folder });
  await rm(folder, { recursive: true, force: true });
});

/** Makes a program process 1 of a separate PID namespace, as in a container. */
const IN_CONTAINER = ['unshare', '--pid', '--fork', '--mount-proc'];

/** A command: starts or joins the server, prints the result, and then leaves or is ended by Ctrl-C. */
async function command(
  keepMs: number | undefined,
  end: 'leaves' | 'Ctrl-C' = 'leaves',
  by: readonly string[] = [],
): Promise<Used> {
  const [program = '', ...before] = [...by, process.execPath];
  const child = spawn(
    program,
    [
      ...before,
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
    // A terminal sends the signal to the whole process group.
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

/**
 * Whether a keeper runs its program. SIGHUP is the last signal for which it installs a listener, and node itself catches the others. Known
 * on Linux only.
 */
function isListening(keeper: number): boolean {
  if (process.platform !== 'linux') return true;
  const caught = /^SigCgt:\s*(\w+)$/m.exec(readFileSync(`/proc/${keeper}/status`, 'utf8'))?.[1] ?? '0';
  return (BigInt(`0x${caught}`) & 1n) === 1n;
}

/** Starts a keeper in the same way as a command does. */
const startKeeper = (of: { folder: string; pid: number; start: string }): ChildProcess =>
  spawn(
    process.execPath,
    ['--conditions=@boxcar/source', `--import=${LOADER}`, KEEPER, of.folder, String(of.pid), of.start],
    { stdio: 'inherit' },
  );

it('the keeper keeps the server for the next command, through Ctrl-C and a kill -9 of the keeper, until the data is deleted', async () => {
  const first = await command(A_MINUTE);
  expect(first.adopted).toBe(false);
  const [keeper, ...others] = keepersOf(folder);
  expect([isAlive(first.pid), others]).toEqual([true, []]);
  // The two commands and the keeper share the server.
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

it('the keeper ends the server and itself when no command arrives within its time, and at once with a time of 0', async () => {
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

it.each(['SIGTERM', 'SIGINT', 'SIGHUP'] as const)(
  '%s to the keeper ends the server and itself',
  async (signal) => {
    const kept = await command(A_MINUTE);
    const [keeper = 0] = keepersOf(folder);
    await until(() => isListening(keeper), 'it listens');
    process.kill(keeper, signal);
    await until(() => !isAlive(kept.pid) && !isAlive(keeper), 'the server and its keeper are gone');
    expect(readdirSync(join(folder, 'users'))).toEqual([]);
  },
);

it('a process whose folder is deleted still stops the server', async () => {
  const other = mkdtempSync(join(folder, 'deleted-'));
  chmodSync(other, 0o755);
  const server = await startEmbeddedPostgres({ dataDir: join(other, 'data') });
  rmSync(other, { recursive: true, force: true });
  await server.stop();
  expect(isAlive(server.pid)).toBe(false);
});

it('the keeper ends when its folder is deleted', async () => {
  const kept = await command(A_MINUTE);
  const [keeper = 0] = keepersOf(folder);
  await rm(folder, { recursive: true, force: true });
  await until(() => !isAlive(kept.pid) && !isAlive(keeper), 'the server and its keeper are gone');
});

it('the keeper ends although a process of another PID namespace has left a mark, and the mark stays', async () => {
  const mark = join(folder, 'users', '7.1.1.1');
  mkdirSync(join(folder, 'users'), { recursive: true });
  writeFileSync(mark, '');
  const kept = await command(300);
  await until(
    () => !isAlive(kept.pid) && keepersOf(folder).length === 0,
    'the server and its keeper are gone',
  );
  expect(existsSync(mark)).toBe(true);
  rmSync(mark);
});

it.skipIf(spawnSync('unshare', [...IN_CONTAINER.slice(1), 'true']).status !== 0)(
  'process 1 of a container starts no keeper, which its end would kill: the command stops the server itself',
  async () => {
    expect(await command(A_MINUTE, 'leaves', IN_CONTAINER)).toMatchObject({ adopted: false });
    expect(readdirSync(join(folder, 'users'))).toEqual([]);
    expect(existsSync(join(folder, 'cluster', 'data', 'postmaster.pid'))).toBe(false);
  },
);

it('of two keepers of one folder the keeper with the larger process id leaves', async () => {
  const { pid } = await command(A_MINUTE);
  const [first = 0] = keepersOf(folder);
  const second = startKeeper({ folder, pid, start: startOf(pid) });
  const ids = [first, second.pid ?? 0];
  await until(() => !isAlive(Math.max(...ids)), 'the larger one has left');
  expect([keepersOf(folder), isAlive(pid)]).toEqual([[Math.min(...ids)], true]);
  await deleteEmbeddedData({ dataDir: folder });
});

it('the command warns that a port is not used while the server runs on another port, and says how to stop that server', async () => {
  const kept = await command(A_MINUTE);
  const lines: [string, string][] = [];
  const other = await freePort();
  const joined = await startEmbeddedPostgres({
    dataDir: folder,
    port: other,
    log: (line, level) => lines.push([level, line]),
  });
  await joined.stop();
  expect(joined).toMatchObject({ pid: kept.pid, adopted: true });
  expect(lines).toContainEqual([
    'warn',
    `the server already runs on port ${joined.port}, which is used; the requested ${other} is used once that server has stopped: end the processes that use it (a command with BOXCAR_POSTGRES_KEEP_SECONDS=0 stops a server that is only kept)`,
  ]);
  expect(lines.filter(([level]) => level === 'warn')).toHaveLength(1);
  await command(0);
  await until(() => !isAlive(kept.pid), 'the server is gone');
  await using restarted = await startEmbeddedPostgres({ dataDir: folder, port: other });
  expect(restarted.port).toBe(other);
});

it('the keeper uses the time of the last command, which may be zero', async () => {
  for (const [first, then] of [
    [A_MINUTE, 300],
    [A_MINUTE, 0],
  ]) {
    const kept = await command(first);
    expect(await command(undefined)).toEqual({ pid: kept.pid, adopted: true });
    expect(isAlive(kept.pid)).toBe(true);
    expect(await command(then)).toEqual({ pid: kept.pid, adopted: true });
    await until(() => !isAlive(kept.pid), 'the server is gone');
    await until(() => keepersOf(folder).length === 0, 'its keeper is gone');
  }
});

it.skipIf(process.platform !== 'linux')(
  'a keeper whose folder is gone sends no signal to another process with the id of the server',
  async () => {
    const other = spawn(process.execPath, ['--eval', 'setInterval(() => undefined, 1_000)', 'postgres']);
    await once(other, 'spawn');
    const keeper = startKeeper({ folder: join(folder, 'none'), pid: other.pid ?? 0, start: '1' });
    expect(await once(keeper, 'close')).toEqual([0, null]);
    expect([other.exitCode, other.signalCode]).toEqual([null, null]);
    other.kill('SIGKILL');
    await once(other, 'close');
  },
);
