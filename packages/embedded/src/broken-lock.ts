/** Handles lock files that do not lead to a server (L1, postmaster.ts): files of dead processes, and files that name no process. */
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel/base';
import {
  findServer,
  lockFileOf,
  lockHolder,
  namesNoProcess,
  namesProcess,
  removeLockFile,
  runningPostmaster,
} from './postmaster.js';
import { describeProcess } from './process.js';

/**
 * A lock file that names no process is removed after the first time if no server is found, and reported after the second time if a server
 * is found.
 */
const BROKEN_LOCK_QUIET_MS = 500;
const BROKEN_LOCK_DEADLINE_MS = 10_000;

/** Removes the lock file of a dead process. Postgres itself ignores such a file, but not when another process has the same id by now. */
export function removeStaleLock(dataDir: string, log: (line: string) => void): void {
  const stale = lockHolder(dataDir);
  // A server may have taken the file since the check of the loop.
  if (stale === undefined || runningPostmaster(dataDir) !== undefined) return;
  if (removeLockFile(dataDir, namesProcess(stale.pid)))
    log(`process ${stale.pid} is no longer the server; removed its lock file`);
}

/**
 * Handles a lock file that names no process. Removes it if no server is found on the folder; otherwise throws an error that names the file
 * and the server.
 */
export async function dealWithBrokenLock(
  dataDir: string,
  sinceMs: number,
  log: (line: string) => void,
): Promise<void> {
  const server = findServer(dataDir);
  if (server !== undefined && sinceMs >= BROKEN_LOCK_DEADLINE_MS) throw serverWithoutLock(dataDir, server);
  if (server === undefined && sinceMs >= BROKEN_LOCK_QUIET_MS) {
    if (removeLockFile(dataDir, namesNoProcess))
      log(`removed ${lockFileOf(dataDir)}, which named no process`);
    return;
  }
  await delay(100);
}

export function serverWithoutLock(dataDir: string, pid: number): KernelError {
  const lockFile = lockFileOf(dataDir);
  return new KernelError('database_unavailable', {
    message: `${lockFile} names no process, but the ${describeProcess(pid)} works on that folder; stop that server, then try again.`,
    details: { folder: dataDir, file: lockFile, pid },
  });
}
