/**
 * Starts, shares and stops a real Postgres server.
 *
 * E1. At most one server runs on a data folder: Postgres's own lock file decides, never ours. A start that loses adopts.
 * E2. A server found running on our data folder is adopted, whoever started it, also after a kill -9 of that process.
 * E3. The last process to leave stops the server (users.ts). It is in a session of its own, so a Ctrl-C meant for us does
 *     not take it away before we have finished.
 * E4. What a kill -9 of the server leaves behind (lock file, memory still held by its children for about 2 s) is waited
 *     out, never an error.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { rename, rm, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';
import {
  type Cluster,
  closedAncestor,
  lastLine,
  openCluster,
  type Postmaster,
  prepareFolder,
  ROLE,
  readPostmaster,
  runningPostmaster,
} from './cluster.js';
import { dataHome, serverEnvironment } from './config.js';
import { freePort, isFree } from './free-port.js';
import { type NativePostgres, prepareNative } from './native.js';
import { codeOf, commandOf, isAlive, isRoot, serverAccount } from './process.js';
import { hasUsers, Membership } from './users.js';

const DATABASE = 'boxcar';
const START_DEADLINE_MS = 60_000;
const STOP_DEADLINE_MS = 20_000;
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
}

export interface EmbeddedPostgres extends AsyncDisposable {
  /** Connection string of the database `boxcar`, password included. */
  readonly url: string;
  /** The same: no pooler stands in between. */
  readonly directUrl: string;
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
 * It listens on 127.0.0.1 only and asks for a password, which lies beside the data, readable by this account alone.
 *
 * @throws KernelError `bad_config` for a folder that cannot be used, `port_in_use` for a requested port that is taken,
 * `database_unavailable` when the server does not start.
 */
export async function startEmbeddedPostgres(
  options: EmbeddedPostgresOptions = {},
): Promise<EmbeddedPostgres> {
  const log = options.log ?? (() => {});
  const ephemeral = options.ephemeral ?? false;
  if (ephemeral && options.dataDir === undefined) await sweepEphemeral(log);
  const native = await prepareNative();
  const folder = resolve(options.dataDir ?? (ephemeral ? makeEphemeralFolder() : defaultDataDir()));
  await prepareFolder(folder);
  const membership = Membership.join(folder);
  let cluster: Cluster;
  let found: { postmaster: Postmaster; adopted: boolean };
  try {
    await membership.othersHaveLeft();
    cluster = await openCluster(folder, native, { isDurable: !ephemeral });
    found = await startOrAdopt(cluster, native, { ...options, ephemeral, log });
  } catch (error) {
    await membership.leave(async () => {
      const running = runningPostmaster(join(folder, 'cluster', 'data'));
      if (running && isOurs(running, join(folder, 'cluster', 'data'))) await stopServer(running.pid);
    });
    if (ephemeral) await rm(folder, { recursive: true, force: true });
    throw error;
  }

  const { pid, port } = found.postmaster;
  const { dataDir } = cluster;
  const url = connectionString(cluster, port, DATABASE);
  log(`${found.adopted ? 'joined' : 'started'} the embedded Postgres on port ${port} (${folder})`);

  let stopping: Promise<void> | undefined;
  const onExit = () => {
    membership.leaveNow(() => {
      if (isServing(pid, dataDir)) stopServerNow(pid, ephemeral ? 'SIGQUIT' : 'SIGINT');
      if (ephemeral) rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
    });
  };
  process.once('exit', onExit);
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
 * @throws KernelError `database_in_use` when another process uses it.
 */
export async function deleteEmbeddedData(options: { readonly dataDir?: string } = {}): Promise<void> {
  const folder = resolve(options.dataDir ?? defaultDataDir());
  await prepareFolder(folder);
  const membership = Membership.join(folder);
  await membership.othersHaveLeft();
  let isDeleted = false;
  await membership.leave(async () => {
    const dataDir = join(folder, 'cluster', 'data');
    const running = runningPostmaster(dataDir);
    if (running && isOurs(running, dataDir)) await stopServer(running.pid);
    await rm(join(folder, 'cluster'), { recursive: true, force: true });
    isDeleted = true;
  });
  if (!isDeleted) throw new KernelError('database_in_use', { details: { folder } });
}

interface StartOptions {
  readonly port?: number;
  readonly ephemeral: boolean;
  readonly log: (line: string) => void;
}

/** Tries until a server runs on the data folder that lets us in: ours, or that of another process. */
async function startOrAdopt(
  cluster: Cluster,
  native: NativePostgres,
  options: StartOptions,
): Promise<{ postmaster: Postmaster; adopted: boolean }> {
  const deadline = Date.now() + START_DEADLINE_MS;
  let spawned: { child: ChildProcess; logOffset: number; port: number } | undefined;
  let port = options.port ?? (await readPort(cluster.folder));
  while (Date.now() < deadline) {
    const running = runningPostmaster(cluster.dataDir);
    const isServed = running !== undefined && isOurs(running, cluster.dataDir);
    if (isServed && running.status === 'ready' && (await ensureDatabase(cluster, running))) {
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
    if (isServed) {
      await delay(20); // Starting, stopping or recovering.
      continue;
    }
    if (running) await removeStalePidFile(cluster.dataDir, running, options.log);
    if (options.port !== undefined && !(await isFree(options.port))) throw portTaken(options.port);
    if (port === undefined || !(await isFree(port))) port = await freePort();
    spawned = { ...(await spawnServer(cluster, native, port, options.ephemeral)), port };
  }
  throw new KernelError('database_unavailable', {
    message: `The embedded Postgres was not ready after ${START_DEADLINE_MS / 1000} s; its log is ${join(cluster.folder, 'server.log')}.`,
    details: { folder: cluster.folder },
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
    unix_socket_directories: '',
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

/** Connects to the server and sees to it that our database exists. False when it does not let us in yet. */
async function ensureDatabase(cluster: Cluster, postmaster: Postmaster): Promise<boolean> {
  const client = new pg.Client({
    connectionString: connectionString(cluster, postmaster.port, 'postgres'),
    connectionTimeoutMillis: 2_000,
  });
  client.on('error', () => {}); // A server that goes away in between shows in the query.
  try {
    await client.connect();
    const { rows } = await client.query<{ exists: boolean }>(
      'select exists (select from pg_database where datname = $1) as exists',
      [DATABASE],
    );
    if (rows[0]?.exists !== true) await client.query(`create database ${DATABASE}`);
    return true;
  } catch (error) {
    const code = codeOf(error);
    if (code === '28P01') {
      throw new KernelError('database_auth_failed', {
        message: `The server on ${cluster.folder} refuses the password stored beside its data; stop it or move the folder away.`,
        details: { folder: cluster.folder },
        cause: error,
      });
    }
    // Of two processes one creates the database; the other is told so and finds it at the next try.
    return false;
  } finally {
    await client.end().catch(() => {});
  }
}

function connectionString(cluster: Cluster, port: number, database: string): string {
  return `postgres://${ROLE}:${cluster.password}@127.0.0.1:${port}/${database}`;
}

/** Whether that process is a Postgres on this data folder, and not one that inherited the id of a dead one. */
function isOurs(postmaster: Postmaster, dataDir: string): boolean {
  const command = commandOf(postmaster.pid);
  return command === undefined || (command.includes('postgres') && command.includes(dataDir));
}

function isServing(pid: number, dataDir: string): boolean {
  const running = runningPostmaster(dataDir);
  return running !== undefined && running.pid === pid && isOurs(running, dataDir);
}

/** Postgres itself ignores the file of a dead process, but not one whose id belongs to another process by now. */
async function removeStalePidFile(
  dataDir: string,
  stale: Postmaster,
  log: (line: string) => void,
): Promise<void> {
  if (readPostmaster(dataDir)?.pid !== stale.pid) return;
  log(`process ${stale.pid} is not the server it was; removing its lock file`);
  await unlink(join(dataDir, 'postmaster.pid')).catch(() => {});
}

async function stopServer(pid: number): Promise<void> {
  // Fast shutdown; then without the last checkpoint, which the next start repairs; then by force, likewise.
  for (const [signal, patienceMs] of [
    ['SIGINT', STOP_DEADLINE_MS],
    ['SIGQUIT', 3_000],
    ['SIGKILL', 3_000],
  ] as const) {
    if (!signalServer(pid, signal)) return;
    const deadline = Date.now() + patienceMs;
    while (Date.now() < deadline) {
      if (!isAlive(pid)) return;
      await delay(10);
    }
  }
}

/** The same inside an exit handler, where only blocking is possible; briefly, so that a newcomer finds a clear state. */
function stopServerNow(pid: number, signal: NodeJS.Signals): void {
  if (!signalServer(pid, signal)) return;
  const clock = new Int32Array(new SharedArrayBuffer(4));
  const deadline = Date.now() + 3_000;
  while (Date.now() < deadline && isAlive(pid)) Atomics.wait(clock, 0, 0, 10);
}

function signalServer(pid: number, signal: NodeJS.Signals): boolean {
  try {
    process.kill(pid, signal);
    return true;
  } catch (error) {
    if (codeOf(error) === 'ESRCH') return false;
    throw error;
  }
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
  return mkdtempSync(join(ephemeralHome(), EPHEMERAL_PREFIX)); // prepareFolder opens it for the server's account.
}

/** Stops and removes what a killed test run left behind. */
async function sweepEphemeral(log: (line: string) => void): Promise<void> {
  const home = ephemeralHome();
  for (const name of readdirSync(home)) {
    if (!name.startsWith(EPHEMERAL_PREFIX)) continue;
    const folder = join(home, name);
    const stats = statSync(folder, { throwIfNoEntry: false });
    // A young folder may belong to a process that has not yet joined.
    if (!stats || stats.uid !== process.getuid?.() || Date.now() - stats.mtimeMs < 60_000 || hasUsers(folder))
      continue;
    const dataDir = join(folder, 'cluster', 'data');
    const running = runningPostmaster(dataDir);
    if (running && isOurs(running, dataDir)) await stopServer(running.pid);
    await rm(folder, { recursive: true, force: true }).catch(() => {});
    log(`removed ${folder}, left behind by a process that was killed`);
  }
}
