/**
 * Keeps a server for a while after the last command, so that the next one need not start it.
 *
 * K1. A keeper is a process of its own that uses the server, as any other does (users.ts), and looks who else uses it. It leaves when nobody
 *     else has joined or left for the time it was told. So the last to leave still stops the server, and a keeper that is killed with -9
 *     leaves a server as any process does: the next start adopts it.
 * K2. Its id ends in `keeper`. Keepers do not count as users for each other, and a second one is not started while one lives. Two that were
 *     started at once leave at the same time.
 * K3. The command that starts a keeper joins for it, so that it has joined before the command can leave.
 */
import { spawn } from 'node:child_process';
import { existsSync, statSync } from 'node:fs';
import { dirname, join, parse } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { serverEnvironment } from './config.js';
import { isAlive } from './process.js';
import { hasOtherUsers, keepersOf, Membership } from './users.js';

const isBuilt = import.meta.url.endsWith('.js');
/** The program that {@link keepServer} starts; from the sources of the workspace it needs what runs sources. */
const PROGRAM = fileURLToPath(new URL(isBuilt ? './keeper.js' : './keeper.ts', import.meta.url));
const NODE_OPTIONS = isBuilt ? [] : ['--conditions=@boxcar/source', '--import=tsx'];
const LOOK_MS = 200;

/** Starts a keeper of a running server unless one lives. It outlives this process, and a Ctrl-C meant for it. */
export function keepServer(folder: string, of: { readonly pid: number; readonly keepMs: number }): void {
  if (keepersOf(folder).length > 0) return;
  const child = spawn(
    process.execPath,
    [...NODE_OPTIONS, PROGRAM, folder, String(of.pid), String(of.keepMs)],
    {
      cwd: isBuilt ? parse(folder).root : dirname(PROGRAM),
      env: serverEnvironment(),
      stdio: 'ignore',
      detached: true,
    },
  );
  // Without a keeper the server is stopped with its last user, as before.
  child.once('error', () => undefined);
  child.unref();
  if (child.pid !== undefined) Membership.joinKeeper(folder, child.pid);
}

/**
 * What a keeper does; settles when it is time to leave: nobody else has used the server for `keepMs`, it was told so, or the folder is
 * gone.
 */
export async function untilUnused(folder: string, keepMs: number, stop: AbortSignal): Promise<void> {
  const users = join(folder, 'users');
  let changedAt = 0;
  let since = performance.now();
  while (!stop.aborted && existsSync(users)) {
    // Also those that came and left between two looks.
    const { mtimeMs } = statSync(users, { throwIfNoEntry: false }) ?? { mtimeMs: changedAt };
    if (mtimeMs !== changedAt || hasOtherUsers(folder)) since = performance.now();
    changedAt = mtimeMs;
    if (performance.now() - since >= keepMs) return;
    await delay(LOOK_MS, undefined, { signal: stop }).catch(() => undefined);
  }
}

/** Tells the keepers of a server to leave, and waits until they have. */
export async function dismissKeepers(folder: string, deadlineMs: number): Promise<void> {
  const endsAt = performance.now() + deadlineMs;
  for (const pid of keepersOf(folder)) {
    try {
      process.kill(pid, 'SIGTERM');
    } catch {
      // It has ended by itself.
    }
    while (isAlive(pid) && performance.now() < endsAt) await delay(20);
  }
}
