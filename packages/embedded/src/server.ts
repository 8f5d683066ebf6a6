/**
 * Starts, shares and stops a real Postgres server.
 *
 * E1. At most one server runs on a data folder: Postgres's own lock file decides, never ours. A start that loses adopts.
 * E2. A server found running on our data folder is adopted, whoever started it, also after a kill -9 of that process.
 * E3. The last process to leave stops the server (users.ts); a keeper (keep.ts) may be that process. It is in a session of its own, so a Ctrl-C meant for us does
 *     not take it away before we have finished.
 * E4. What a kill -9 of the server leaves behind (lock file, memory still held by its children for about 2 s) is waited
 *     out, never an error.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  closeSync,
  lstatSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { readdir, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { checkDuration, KernelError } from '@boxcar/kernel/base';
import {
  type Cluster,
  closedAncestor,
  EPHEMERAL_MARK,
  lastLine,
  openCluster,
  prepareFolder,
} from './cluster.js';
import { dataHome, serverEnvironment } from './config.js';
import { freePort, isFree } from './free-port.js';
import { dismissKeepers, keepServer } from './keep.js';
import { prepareNative } from './native.js';
import type { NativePostgres } from './native-postgres.js';
import {
  findServer,
  hasBrokenLock,
  hasLiveMemory,
  lockFileOf,
  lockHolder,
  namesNoProcess,
  namesProcess,
  type Postmaster,
  removeLockFile,
  runningPostmaster,
  unseenPostmaster,
} from './postmaster.js';
import { codeOf, describeProcess, isAlive, isRoot, serverAccount } from './process.js';
import { DATABASE, prepareDatabase } from './roles.js';
import { type Account, connectionString } from './server-client.js';
import { STOP_DEADLINE_MS, stopServer, stopServerNow } from './stop-server.js';
import { assertNoneOutOfSight, mayAnswer, serverOutOfSight } from './unseen-server.js';
import { hasUsers, LEAVE_DEADLINE_MS, Membership } from './users.js';

const START_DEADLINE_MS = 60_000;
/** A lock file that names no process is removed after this time without a server, or reported after this time with a server. */
const BROKEN_LOCK_QUIET_MS = 500;
const BROKEN_LOCK_DEADLINE_MS = 10_000;
const LOG_LIMIT_BYTES = 10_000_000;
const EPHEMERAL_PREFIX = 'boxcar-postgres-';

export interface EmbeddedPostgresOptions {
  /** Folder of this server, created when absent. Default: `defaultDataDir()`, or a fresh temporary one when ephemeral. */
  readonly dataDir?: string;
  /** Port on 127.0.0.1. Default: the one used last time when it is free, else any free one. */
  readonly port?: number;
  /** Told in one line what happens. */
  readonly log?: (line: string) => void;
  /** For tests: nothing is flushed to disk, nothing is vacuumed or analyzed unasked, and the folder is removed on stop. */
  readonly ephemeral?: boolean;
  /**
   * How long the server is kept after its last user has left, by a process of its own, for commands that follow one another. Default 0: not
   * at all. Has no effect on an ephemeral server.
   */
  readonly keepMs?: number;
  /** How long to wait for a process that is leaving the server, at most 30 days. Default 30,000. */
  readonly leaveDeadlineMs?: number;
  /** How long the server may take until it lets this process in, at most 30 days. Default 60,000. */
  readonly startDeadlineMs?: number;
}

export interface EmbeddedPostgres extends AsyncDisposable {
  /** Connection string of the database `boxcar`, password included, as the role that owns it. */
  readonly url: string;
  /** The same: no pooler stands in between. */
  readonly directUrl: string;
  /** The same database as the superuser of the server: for tests and tools alone. */
  readonly adminUrl: string;
  readonly dataDir: string;
  readonly port: number;
  /** Process id of the server. */
  readonly pid: number;
  /** True when the server was already running. */
  readonly adopted: boolean;
  /**
   * Leaves the server; the last process to do so stops it. May be called twice. Also happens when the process exits.
   *
   * @param options.keepData - Leave the folder of an ephemeral server where it is, to look into it later.
   */
  stop(options?: { readonly keepData?: boolean }): Promise<void>;
}

/** The folder of the default server of this account. */
export function defaultDataDir(): string {
  return join(dataHome(), 'postgres-18');
}

/**
 * Starts the Postgres server that comes with npm, or joins the one already running on the same folder.
 *
 * Connections go through a Unix socket in a folder of its own. It listens on 127.0.0.1 too, for tools, and wants a password everywhere.
 *
 * @throws KernelError `bad_config` for a folder that cannot be used, `port_in_use` for a requested port that is taken,
 * `database_unavailable` when the server does not start or is not visible from here, `database_in_use` when a process hangs while
 * it leaves the server.
 */
export async function startEmbeddedPostgres(
  options: EmbeddedPostgresOptions = {},
): Promise<EmbeddedPostgres> {
  const log = options.log ?? (() => {});
  const { ephemeral = false } = options;
  const keepMs = checkDuration(options.keepMs ?? 0, 'keepMs', { allowsZero: true });
  const leaveDeadlineMs = leaveDeadlineOf(options);
  const startDeadlineMs = checkDuration(options.startDeadlineMs ?? START_DEADLINE_MS, 'startDeadlineMs');
  if (ephemeral && options.dataDir === undefined) await sweepEphemeral(log);
  const native = await prepareNative();
  const folder = resolve(options.dataDir ?? (ephemeral ? makeEphemeralFolder() : defaultDataDir()));
  await prepareFolder(folder);
  const membership = Membership.join(folder);
  // From here on, since a process can also end while it starts a server.
  const onExit = () => {
    membership.leaveNow(() => {
      const dataDir = join(folder, 'cluster', 'data');
      const pid = runningPostmaster(dataDir)?.pid ?? findServer(dataDir);
      if (pid !== undefined) stopServerNow(pid, ephemeral ? 'SIGQUIT' : 'SIGINT');
      if (ephemeral) rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
    });
  };
  process.once('exit', onExit);
  let cluster: Cluster;
  let found: { postmaster: Postmaster; adopted: boolean };
  try {
    await membership.othersHaveLeft({ deadlineMs: leaveDeadlineMs, log });
    cluster = await openCluster(folder, native, { isDurable: !ephemeral, id: membership.id });
    found = await startOrAdopt(cluster, native, {
      ...options,
      ephemeral,
      startDeadlineMs,
      log,
      isAlone: () => membership.isAlone(),
    });
  } catch (error) {
    process.removeListener('exit', onExit);
    await membership.leave(async () => {
      const running = runningPostmaster(join(folder, 'cluster', 'data'));
      if (running) await stopServer(running.pid);
    });
    if (ephemeral) await rm(folder, { recursive: true, force: true });
    throw error;
  }

  const { pid, port } = found.postmaster;
  if (keepMs > 0 && !ephemeral) keepServer(folder, { pid, keepMs });
  const { dataDir } = cluster;
  const urlAs = (account: Account): string =>
    connectionString(cluster, port, { account, database: DATABASE });
  const url = urlAs('application');
  log(`${found.adopted ? 'joined' : 'started'} the embedded Postgres on port ${port} (${folder})`);
  if (isRoot() && !ephemeral)
    log(
      `root's server runs as 'nobody': every process of that account can read and change the data in ${folder}; for data that matters run boxcar as an account of its own, or set DATABASE_URL`,
    );

  let stopping: Promise<void> | undefined;
  const stop = (how: { readonly keepData?: boolean } = {}): Promise<void> => {
    stopping ??= leave(ephemeral && how.keepData !== true);
    return stopping;
  };
  const leave = async (isRemoved: boolean): Promise<void> => {
    process.removeListener('exit', onExit);
    await membership.leave(async () => {
      if (isServing(pid, dataDir)) await stopServer(pid);
      log(`stopped the embedded Postgres (${folder})`);
      if (isRemoved) await rm(folder, { recursive: true, force: true });
    });
  };
  return {
    url,
    directUrl: url,
    adminUrl: urlAs('admin'),
    dataDir: folder,
    port,
    pid,
    adopted: found.adopted,
    stop,
    [Symbol.asyncDispose]: () => stop(),
  };
}

/**
 * Deletes the data of a server for good; the next start begins with an empty one. The last process to leave may do so, under
 * the same rule by which it stops the server, so nobody's data goes away under them.
 *
 * @throws KernelError `database_in_use` when another process uses the server, or hangs while it leaves; `database_unavailable` when
 * a server works on the folder that cannot be stopped, because its lock file is unusable or the server is not visible from here.
 */
export async function deleteEmbeddedData(
  options: Pick<EmbeddedPostgresOptions, 'dataDir' | 'leaveDeadlineMs'> = {},
): Promise<void> {
  const folder = resolve(options.dataDir ?? defaultDataDir());
  const leaveDeadlineMs = leaveDeadlineOf(options);
  await prepareFolder(folder);
  await dismissKeepers(folder, leaveDeadlineMs);
  const membership = Membership.join(folder);
  try {
    await membership.othersHaveLeft({ deadlineMs: leaveDeadlineMs });
  } catch (error) {
    await membership.leave(async () => {});
    throw error;
  }
  let isDeleted = false;
  await membership.leave(async () => {
    const dataDir = join(folder, 'cluster', 'data');
    const running = runningPostmaster(dataDir);
    if (running) await stopServer(running.pid);
    const left = findServer(dataDir);
    if (left !== undefined && !(await hasEnded(left))) throw serverWithoutLock(dataDir, left);
    await assertNoneOutOfSight(folder, dataDir);
    await rm(join(folder, 'cluster'), { recursive: true, force: true });
    isDeleted = true;
  });
  if (!isDeleted) throw new KernelError('database_in_use', { details: { folder } });
}

const leaveDeadlineOf = ({ leaveDeadlineMs = LEAVE_DEADLINE_MS }: EmbeddedPostgresOptions): number =>
  checkDuration(leaveDeadlineMs, 'leaveDeadlineMs', { allowsZero: true });

interface StartOptions {
  readonly port?: number;
  readonly ephemeral: boolean;
  readonly startDeadlineMs: number;
  readonly log: (line: string) => void;
  /** Whether no other process uses the server. */
  readonly isAlone: () => boolean;
}

/** Tries until a server runs on the data folder that lets us in: ours, or that of another process. */
async function startOrAdopt(
  cluster: Cluster,
  native: NativePostgres,
  options: StartOptions,
): Promise<{ postmaster: Postmaster; adopted: boolean }> {
  const deadline = Date.now() + options.startDeadlineMs;
  let spawned: { child: ChildProcess; logOffset: number; port: number } | undefined;
  let port = options.port ?? (await readPort(cluster.folder));
  let brokenSince: number | undefined;
  /** What the server said last. */
  let refusal: Error | undefined;
  while (Date.now() < deadline) {
    const running = runningPostmaster(cluster.dataDir);
    if (running !== undefined && !running.hasSocket && cluster.socketDir !== undefined && isUp(running)) {
      await replaceOldServer(cluster, running, options);
      continue;
    }
    if (running?.status === 'ready') refusal = await findRefusal(cluster, running);
    if (running?.status === 'ready' && refusal === undefined) {
      if (running.pid === spawned?.child.pid) {
        await writeFile(join(cluster.folder, 'port'), `${running.port}\n`);
        return { postmaster: running, adopted: false };
      }
      if (options.port !== undefined && options.port !== running.port) {
        options.log(
          `the server already runs on port ${running.port}; the requested ${options.port} is not used`,
        );
      }
      return { postmaster: running, adopted: true };
    }
    if (spawned && spawned.child.exitCode === null && spawned.child.signalCode === null) {
      await delay(10);
      continue;
    }
    if (spawned) {
      const output = readLog(cluster.folder, spawned.logOffset);
      if (/could not bind IPv4 address/.test(output)) {
        if (options.port !== undefined) throw portTaken(options.port);
        port = undefined;
      } else if (!/lock file "postmaster.pid" already exists|pre-existing shared memory block/.test(output)) {
        throw new KernelError('database_unavailable', {
          message: `The embedded Postgres did not start: ${lastLine(output)}; its log is ${join(cluster.folder, 'server.log')}.`,
          details: { folder: cluster.folder },
        });
      }
      spawned = undefined;
      await delay(100);
      continue;
    }
    if (running) {
      await delay(20); // Starting, stopping or recovering.
      continue;
    }
    if (hasBrokenLock(cluster.dataDir)) {
      brokenSince ??= Date.now();
      await dealWithBrokenLock(cluster.dataDir, Date.now() - brokenSince, options.log);
      continue;
    }
    brokenSince = undefined;
    const unseen = unseenPostmaster(cluster.dataDir);
    if (unseen !== undefined && (await mayAnswer(cluster.folder, unseen)))
      throw serverOutOfSight(cluster.dataDir, unseen);
    if (unseen !== undefined && hasLiveMemory(unseen)) {
      await delay(100); // The children of a killed server end soon.
      continue;
    }
    removeStaleLock(cluster.dataDir, options.log);
    if (options.port !== undefined && !(await isFree(options.port))) throw portTaken(options.port);
    if (port === undefined || !(await isFree(port))) port = await freePort();
    spawned = { ...(await spawnServer(cluster, native, port, options.ephemeral)), port };
  }
  const unseen = unseenPostmaster(cluster.dataDir);
  if (unseen !== undefined) throw serverOutOfSight(cluster.dataDir, unseen);
  const holder = lockHolder(cluster.dataDir);
  const held =
    holder === undefined ? '' : `; ${lockFileOf(cluster.dataDir)} names the ${describeProcess(holder.pid)}`;
  const said = refusal === undefined ? '' : `; it said last: ${refusal.message}`;
  throw new KernelError('database_unavailable', {
    message: `The embedded Postgres was not ready after ${options.startDeadlineMs / 1000} s${held}${said}; its log is ${join(cluster.folder, 'server.log')}.`,
    details: { folder: cluster.folder, ...(holder === undefined ? {} : { pid: holder.pid }) },
    cause: refusal,
  });
}

async function spawnServer(
  cluster: Cluster,
  native: NativePostgres,
  port: number,
  ephemeral: boolean,
): Promise<{ child: ChildProcess; logOffset: number }> {
  const logFile = join(cluster.folder, 'server.log');
  const size = statSync(logFile, { throwIfNoEntry: false })?.size ?? 0;
  if (size > LOG_LIMIT_BYTES) await rename(logFile, `${logFile}.old`).catch(() => {});
  const logOffset = size > LOG_LIMIT_BYTES ? 0 : size;
  const settings: Record<string, string | number> = {
    listen_addresses: '127.0.0.1',
    port,
    unix_socket_directories: cluster.socketDir ?? '',
    max_connections: 200,
    shared_buffers: '128MB',
    max_wal_size: '1GB',
    timezone: 'UTC',
    log_timezone: 'UTC',
    lc_messages: 'C',
    log_checkpoints: 'off',
    ...(ephemeral
      ? {
          fsync: 'off',
          synchronous_commit: 'off',
          full_page_writes: 'off',
          wal_level: 'minimal',
          max_wal_senders: 0,
          // Several test files at once open dozens of connections each, and connections that were cut off end seconds later.
          max_connections: 500,
          // Seen while its tables are empty between two tests, a database is planned for as empty, whatever comes.
          autovacuum: 'off',
        }
      : {}),
  };
  const out = openSync(logFile, 'a', 0o600);
  try {
    const child = spawn(
      native.postgres,
      [
        '-D',
        cluster.dataDir,
        ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
      {
        cwd: cluster.dataDir,
        env: serverEnvironment(),
        stdio: ['ignore', out, out],
        detached: true,
        ...serverAccount(),
      },
    );
    await new Promise<void>((settle, fail) => {
      child.once('spawn', settle);
      child.once('error', (cause) => {
        fail(
          new KernelError('database_unavailable', {
            message: `The embedded Postgres cannot be run: ${cause.message}.`,
            details: { folder: cluster.folder },
            cause,
          }),
        );
      });
    });
    child.unref();
    return { child, logOffset };
  } finally {
    closeSync(out);
  }
}

/** Sees to it that our role and our database exist. Else says why: a server that is starting lets nobody in yet. */
async function findRefusal(cluster: Cluster, { port }: Postmaster): Promise<Error | undefined> {
  try {
    await prepareDatabase(cluster, port);
    return undefined;
  } catch (error) {
    const code = codeOf(error);
    if (code === '28P01') {
      throw new KernelError('database_auth_failed', {
        message: `The server on ${cluster.folder} refuses the password stored beside its data; stop it or move the folder away.`,
        details: { folder: cluster.folder },
        cause: error,
      });
    }
    return error instanceof Error ? error : new Error(String(error));
  }
}

/** A server that is starting has not written all of its lock file yet. */
const isUp = ({ status }: Postmaster): boolean => status === 'ready';

/**
 * A server that an earlier version of Boxcar has started listens on TCP alone, and is not spoken to. It is stopped where no process uses
 * it any more; then the next try starts it anew.
 *
 * @throws KernelError `database_in_use` while another process uses it.
 */
async function replaceOldServer(
  cluster: Cluster,
  { pid }: Postmaster,
  { isAlone, log }: Pick<StartOptions, 'isAlone' | 'log'>,
): Promise<void> {
  if (!isAlone())
    throw new KernelError('database_in_use', {
      message: `The ${describeProcess(pid)} was started on ${cluster.folder} by an earlier version of Boxcar, and processes of that version use it; end them, then start again.`,
      details: { folder: cluster.folder, pid },
    });
  log(`stopping process ${pid}, the embedded Postgres of an earlier version of Boxcar`);
  await stopServer(pid);
}

function isServing(pid: number, dataDir: string): boolean {
  return runningPostmaster(dataDir)?.pid === pid;
}

/** Postgres itself ignores the file of a dead process, but not one whose id belongs to another process by now. */
function removeStaleLock(dataDir: string, log: (line: string) => void): void {
  const stale = lockHolder(dataDir);
  // Since the check of the loop, the file may belong to a server.
  if (stale === undefined || runningPostmaster(dataDir) !== undefined) return;
  if (removeLockFile(dataDir, namesProcess(stale.pid)))
    log(`process ${stale.pid} is not the server it was; removed its lock file`);
}

/** Removes a lock file that names no process if no server is found on the folder; otherwise throws an error that names both. */
async function dealWithBrokenLock(
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

function serverWithoutLock(dataDir: string, pid: number): KernelError {
  const lockFile = lockFileOf(dataDir);
  return new KernelError('database_unavailable', {
    message: `${lockFile} names no process, but the ${describeProcess(pid)} works on that folder; stop that server, then try again.`,
    details: { folder: dataDir, file: lockFile, pid },
  });
}

/** The children of a killed server end shortly after it. */
async function hasEnded(pid: number): Promise<boolean> {
  const deadline = Date.now() + STOP_DEADLINE_MS;
  while (isAlive(pid)) {
    if (Date.now() > deadline) return false;
    await delay(20);
  }
  return true;
}

function readLog(folder: string, offset: number): string {
  return readFileSync(join(folder, 'server.log')).subarray(offset).toString();
}

async function readPort(folder: string): Promise<number | undefined> {
  try {
    const port = Number(readFileSync(join(folder, 'port'), 'utf8'));
    return Number.isInteger(port) && port > 0 ? port : undefined;
  } catch {
    return undefined;
  }
}

function portTaken(port: number): KernelError {
  return new KernelError('port_in_use', {
    message: `Port ${port} on 127.0.0.1 is taken, so the embedded Postgres cannot use it.`,
    details: { port },
  });
}

/** A temporary folder that the server's account can enter, wherever TMPDIR points. */
function ephemeralHome(): string {
  return (
    [tmpdir(), '/tmp', '/var/tmp'].find((home) => !isRoot() || closedAncestor(home) === undefined) ?? tmpdir()
  );
}

function makeEphemeralFolder(): string {
  const folder = mkdtempSync(join(ephemeralHome(), EPHEMERAL_PREFIX)); // prepareFolder opens it for the server's account.
  writeFileSync(join(folder, EPHEMERAL_MARK), '', { mode: 0o600 });
  return folder;
}

/** Whether a folder is one that `makeEphemeralFolder` made for this account, long enough ago for its process to have joined. */
function isLeftBehind(folder: string): boolean {
  const account = process.getuid?.();
  const [stats, mark] = [folder, join(folder, EPHEMERAL_MARK)].map((path) =>
    lstatSync(path, { throwIfNoEntry: false }),
  );
  return (
    stats?.isDirectory() === true &&
    mark?.isFile() === true &&
    stats.uid === account &&
    mark.uid === account &&
    Date.now() - stats.mtimeMs >= 60_000 &&
    !hasUsers(folder)
  );
}

/**
 * Stops and removes what a killed test run left behind. Everybody may write to the folder where that lies: names are not trusted, links are
 * not followed, and whatever goes wrong with one of them keeps neither the others nor the start.
 */
async function sweepEphemeral(log: (line: string) => void): Promise<void> {
  const home = ephemeralHome();
  const names = await readdir(home).catch(() => []);
  for (const name of names.filter((one) => one.startsWith(EPHEMERAL_PREFIX))) {
    const folder = join(home, name);
    try {
      if (!isLeftBehind(folder)) continue;
      const running = runningPostmaster(join(folder, 'cluster', 'data'));
      if (running) await stopServer(running.pid);
      await rm(folder, { recursive: true, force: true });
      log(`removed ${folder}, left behind by a process that was killed`);
    } catch (error) {
      log(`could not remove ${folder}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}
