/**
 * Recognizes the server of a data folder, by any path that leads to the folder.
 *
 * L1. A lock file is removed only when it is known that its process does not serve this folder. In doubt the file stays. A process that is
 *     not visible proves nothing: it may be in another PID namespace (a container), and its id may belong to another process here.
 * L2. A folder is identified by device and inode: a link, a bind mount and the real path are the same folder.
 */
import { readFileSync, renameSync, rmSync, statSync } from 'node:fs';
import { isAbsolute, join } from 'node:path';
import { argumentsOf, codeOf, commandOf, isAlive, listProcesses } from './process.js';

export interface Postmaster {
  readonly pid: number;
  readonly port: number;
  /** False for a server of an earlier version of Boxcar, which listens on TCP only. */
  readonly hasSocket: boolean;
  readonly status: string;
  /** The System V shared memory segment of the server; undefined before the server has one. */
  readonly memory: { readonly key: string; readonly id: string } | undefined;
}

export const lockFileOf = (dataDir: string): string => join(dataDir, 'postmaster.pid');

function readLockFile(dataDir: string): string | undefined {
  try {
    return readFileSync(lockFileOf(dataDir), 'utf8');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

function parseLockFile(text: string): Postmaster | undefined {
  const lines = text.split('\n');
  const pid = Number(lines[0]);
  if (!Number.isInteger(pid) || pid <= 0) return undefined;
  const [key, id] = lines[6]?.trim().split(/\s+/) ?? [];
  const memory = key === undefined || id === undefined ? undefined : { key, id };
  return {
    pid,
    port: Number(lines[3]),
    hasSocket: (lines[4]?.trim() ?? '') !== '',
    status: lines[7]?.trim() ?? '',
    memory,
  };
}

/** The lock file of the running server, or of a server that died without removing it. */
function readPostmaster(dataDir: string): Postmaster | undefined {
  const text = readLockFile(dataDir);
  return text === undefined ? undefined : parseLockFile(text);
}

/**
 * The lock file, if no visible process serves this folder under the id in the file. Then the server has died or is not visible from here.
 */
export function unseenPostmaster(dataDir: string): Postmaster | undefined {
  const postmaster = readPostmaster(dataDir);
  if (postmaster === undefined) return undefined;
  return isAlive(postmaster.pid) && mayServe(postmaster.pid, dataDir) ? undefined : postmaster;
}

/** Whether processes are attached to a server's shared memory. Known on Linux only; elsewhere Postgres checks it when it starts. */
export function hasLiveMemory({ memory }: Postmaster): boolean {
  if (memory === undefined || process.platform !== 'linux') return false;
  let text: string;
  try {
    text = readFileSync('/proc/sysvipc/shm', 'utf8');
  } catch {
    return false;
  }
  // key shmid perms size cpid lpid nattch …
  const rows = text.split('\n').map((line) => line.trim().split(/\s+/));
  return rows.some(([key, id, , , , , users]) => key === memory.key && id === memory.id && Number(users) > 0);
}

/** The live process that the lock file names; it may be another process that reuses the id of a dead server. */
export function lockHolder(dataDir: string): Postmaster | undefined {
  const postmaster = readPostmaster(dataDir);
  return postmaster && isAlive(postmaster.pid) ? postmaster : undefined;
}

/** The running server of this data folder, in any state. */
export function runningPostmaster(dataDir: string): Postmaster | undefined {
  const holder = lockHolder(dataDir);
  return holder && mayServe(holder.pid, dataDir) ? holder : undefined;
}

/** A lock file that names no process, for example after a full disk or a power loss: Postgres refuses to start with it. */
export function hasBrokenLock(dataDir: string): boolean {
  const text = readLockFile(dataDir);
  return text !== undefined && namesNoProcess(text);
}

/** False only if the process is known not to be a Postgres on this folder (L1). */
function mayServe(pid: number, dataDir: string): boolean {
  const command = commandOf(pid);
  if (command === undefined) return true;
  return command.includes('postgres') && isOnFolder(pid, dataDir) !== false;
}

/**
 * Whether a Postgres process works on this folder; `undefined` when the system does not report it. The working directory of the
 * server and its children is their data folder. Another account may not see the directory, only the arguments, which contain the
 * path that was used at the start.
 */
function isOnFolder(pid: number, dataDir: string): boolean | undefined {
  const isWorkingThere = process.platform === 'linux' ? isSameFolder(`/proc/${pid}/cwd`, dataDir) : undefined;
  if (isWorkingThere === true) return true;
  const named = argumentsOf(pid)?.flatMap((word, at, words) =>
    word === '-D' ? (words[at + 1] ?? []) : [],
  )[0];
  if (named === dataDir) return true;
  return (
    isWorkingThere ?? (named !== undefined && isAbsolute(named) ? isSameFolder(named, dataDir) : undefined)
  );
}

/** L2. `undefined` when one of the folders cannot be read. */
function isSameFolder(one: string, other: string): boolean | undefined {
  try {
    const [first, second] = [one, other].map((path) => statSync(path, { bigint: true }));
    return first?.dev === second?.dev && first?.ino === second?.ino;
  } catch {
    return undefined;
  }
}

/** A live Postgres process that works on this folder, independent of the lock file. The server is preferred over its children. */
export function findServer(dataDir: string): number | undefined {
  const pids = listProcesses().filter(
    (pid) =>
      commandOf(pid)?.includes('postgres') === true && isOnFolder(pid, dataDir) === true && isAlive(pid),
  );
  return pids.find((pid) => argumentsOf(pid)?.includes('-D')) ?? pids[0];
}

/**
 * Removes a lock file whose process is known not to be a server of this folder.
 *
 * @returns False when the file is missing, or another process has replaced it since it was checked.
 */
export function removeLockFile(dataDir: string, isTheOne: (text: string) => boolean): boolean {
  const lockFile = lockFileOf(dataDir);
  const aside = `${lockFile}.removed-${process.pid}`;
  try {
    // Moves the file before reading it: when a server has started since the check, the file is moved back.
    renameSync(lockFile, aside);
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return false;
    throw error;
  }
  if (!isTheOne(readFileSync(aside, 'utf8'))) {
    renameSync(aside, lockFile);
    return false;
  }
  rmSync(aside, { force: true });
  return true;
}

/** Whether the text of a lock file names this process. */
export const namesProcess =
  (pid: number) =>
  (text: string): boolean =>
    parseLockFile(text)?.pid === pid;

/** Whether the text of a lock file names no process at all. */
export const namesNoProcess = (text: string): boolean => parseLockFile(text) === undefined;
