/**
 * Keeps a server for a while after the last command, so that the next command need not start it.
 *
 * K1. A keeper is a separate process that uses the server like any other (users.ts), and watches the other users. It leaves when no other
 *     process has joined or left for the configured time. So the last process to leave still stops the server. At SIGTERM, SIGINT and
 *     SIGHUP it leaves at once. A keeper that is killed with -9, or by a signal in the moments until its program runs, leaves its server
 *     running, as any process does: the next start adopts the server.
 * K2. The id of a keeper ends in `keeper`. Keepers do not count as users for each other, and no second keeper is started while one lives.
 *     Of two keepers that were started at once, the one with the larger process id leaves. Marks of another PID namespace do not count
 *     either: this process cannot tell whether their processes live, and those processes do not use this server (users.ts).
 * K3. The command that starts a keeper joins on the keeper's behalf, so that the keeper has joined before the command can leave.
 * K4. The file `keep-ms` of the folder says how long the server is kept. Each command writes its time there, and a keeper reads the file
 *     each time it looks. So the last command decides, even for a keeper that another command has started.
 * K5. Process 1 of a PID namespace starts no keeper. When process 1 ends, all processes of the namespace end with a kill -9, the server
 *     too. There the last command stops the server itself.
 */
import { spawn } from 'node:child_process';
import { existsSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, parse } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { serverEnvironment } from './config.js';
import { isAlive, startOf } from './process.js';
import { hasOtherUsers, keepersOf, Membership } from './users.js';

const isBuilt = import.meta.url.endsWith('.js');
/** The program that {@link keepServer} starts. In the source workspace it needs the options that run TypeScript sources. */
const PROGRAM = fileURLToPath(new URL(isBuilt ? './keeper.js' : './keeper.ts', import.meta.url));
const NODE_OPTIONS = isBuilt ? [] : ['--conditions=@boxcar/source', '--import=tsx'];
const LOOK_MS = 200;

const FIRST_PID = 1;

/**
 * Sets how long a running server is kept after its last user has left, and starts a keeper unless one lives. The keeper outlives this
 * process, and a Ctrl-C that is meant for this process does not reach it. With a time of 0 no keeper is started, and a living keeper
 * leaves. Process 1 starts no keeper.
 */
export function keepServer(folder: string, of: { readonly pid: number; readonly keepMs: number }): void {
  const isKept = keepersOf(folder).length > 0;
  if (of.keepMs > 0 || isKept) writeKeepMs(folder, of.keepMs);
  if (of.keepMs === 0 || isKept || process.pid === FIRST_PID) return;
  const child = spawn(process.execPath, [...NODE_OPTIONS, PROGRAM, folder, String(of.pid), startOf(of.pid)], {
    cwd: isBuilt ? parse(folder).root : dirname(PROGRAM),
    env: serverEnvironment(),
    stdio: 'ignore',
    detached: true,
  });
  // When the keeper cannot be started, the server is stopped with its last user.
  child.once('error', () => undefined);
  child.unref();
  if (child.pid !== undefined) Membership.joinKeeper(folder, child.pid);
}

const keepFileOf = (folder: string): string => join(folder, 'keep-ms');

/** Replaces the file by a rename, so that a concurrent reader finds the old time or the new one. */
function writeKeepMs(folder: string, keepMs: number): void {
  const draft = `${keepFileOf(folder)}.${process.pid}`;
  writeFileSync(draft, `${keepMs}\n`, { mode: 0o600 });
  renameSync(draft, keepFileOf(folder));
}

/** 0 when the time was never set. */
function readKeepMs(folder: string): number {
  try {
    return Number(readFileSync(keepFileOf(folder), 'utf8')) || 0;
  } catch {
    return 0;
  }
}

/**
 * The main loop of a keeper. Settles when it must leave: no other process has used the server for the time in the folder, another keeper
 * has priority, a signal has stopped it, or the folder is gone.
 */
export async function untilUnused(folder: string, stop: AbortSignal): Promise<void> {
  const users = join(folder, 'users');
  let changedAt = 0;
  let since = performance.now();
  while (!stop.aborted && existsSync(users)) {
    // The modification time also shows users that joined and left between two looks.
    const { mtimeMs } = statSync(users, { throwIfNoEntry: false }) ?? { mtimeMs: changedAt };
    if (mtimeMs !== changedAt || hasOtherUsers(folder)) since = performance.now();
    changedAt = mtimeMs;
    if (performance.now() - since >= readKeepMs(folder)) return;
    if (keepersOf(folder).some((pid) => pid < process.pid)) return;
    await delay(LOOK_MS, undefined, { signal: stop }).catch(() => undefined);
  }
}

/** Tells the keepers of a server to leave, and waits until they have left. */
export async function dismissKeepers(folder: string, deadlineMs: number): Promise<void> {
  const endsAt = performance.now() + deadlineMs;
  for (const pid of keepersOf(folder)) {
    // An earlier keeper may have taken long to leave, and this process id may have a new owner since.
    if (!keepersOf(folder).includes(pid)) continue;
    const start = startOf(pid);
    try {
      process.kill(pid, 'SIGTERM');
    } catch {
      // The keeper has already ended.
    }
    while (isAlive(pid) && startOf(pid) === start && performance.now() < endsAt) await delay(20);
  }
}
