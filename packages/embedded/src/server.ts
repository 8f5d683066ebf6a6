/**
 * Starts, shares and stops a real Postgres server.
 *
 * E1. At most one server runs on a data folder. The lock file of Postgres decides this; Boxcar has no lock of its own. A start that loses
 *     adopts the server.
 * E2. A server that already runs on the data folder is adopted, whichever process started it, also after a kill -9 of that process.
 * E3. The last process to leave stops the server (users.ts); a keeper (keep.ts) may be that process. The server is in a separate session,
 *     so a Ctrl-C meant for this process does not end the server too early.
 * E4. A kill -9 of the server leaves a lock file, and memory that its children still hold for about 2 s. A start waits until they are gone
 *     and never fails because of them.
 */
import { existsSync, rmSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { checkDuration, KernelError } from '@boxcar/kernel/base';
import { serverWithoutLock } from './broken-lock.js';
import { type Cluster, openCluster, prepareFolder } from './cluster.js';
import { dataHome } from './config.js';
import { makeEphemeralFolder, sweepEphemeral } from './ephemeral.js';
import { dismissKeepers, keepServer } from './keep.js';
import { prepareNative } from './native.js';
import { findServer, type Postmaster, runningPostmaster } from './postmaster.js';
import { isAlive, isRoot, startOf } from './process.js';
import { DATABASE } from './roles.js';
import { type Account, connectionString } from './server-client.js';
import { startOrAdopt } from './start-server.js';
import { STOP_DEADLINE_MS, stopServer, stopServerNow } from './stop-server.js';
import { assertNoneOutOfSight } from './unseen-server.js';
import { LEAVE_DEADLINE_MS, Membership } from './users.js';

const START_DEADLINE_MS = 60_000;

export interface EmbeddedPostgresOptions {
  /** Folder of this server, created when absent. Default: `defaultDataDir()`, or a new temporary folder when ephemeral. */
  readonly dataDir?: string | undefined;
  /** Port on 127.0.0.1. Default: the port of the last start when it is free, otherwise any free port. */
  readonly port?: number | undefined;
  /** Receives one line for each event. The level `warn` means that a requested action is not done. */
  readonly log?: ((line: string, level: 'info' | 'warn') => void) | undefined;
  /** For tests: nothing is flushed to disk, nothing is vacuumed or analyzed automatically, and the folder is removed on stop. */
  readonly ephemeral?: boolean | undefined;
  /**
   * How long a separate process keeps the server after its last user has left, for commands that follow one another. The last time that a
   * process has requested counts; 0 ends the keeping that another process has begun. Default: this process changes nothing, and a server
   * that it has started is not kept. Has no effect on an ephemeral server.
   */
  readonly keepMs?: number | undefined;
  /** How long to wait for a process that is leaving the server, at most 30 days. Default 30,000. */
  readonly leaveDeadlineMs?: number | undefined;
  /** How long the server may take to accept this process, at most 30 days. Default 60,000. */
  readonly startDeadlineMs?: number | undefined;
}

export interface EmbeddedPostgres extends AsyncDisposable {
  /** Connection string of the database `boxcar`, password included, as the role that owns it. */
  readonly url: string;
  /** The same URL, because connections use no pooler. */
  readonly directUrl: string;
  /** The same database as the superuser of the server: for tests and tools only. */
  readonly adminUrl: string;
  readonly dataDir: string;
  readonly port: number;
  /** Process id of the server. */
  readonly pid: number;
  /** True when the server was already running. */
  readonly adopted: boolean;
  /**
   * Leaves the server; the last process to leave stops it. May be called twice. Also happens when the process exits.
   *
   * @param options.keepData - Keep the folder of an ephemeral server for later inspection.
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
 * Connections use a Unix socket in a separate folder. The server also listens on 127.0.0.1, for tools, and requires a password everywhere.
 *
 * @throws KernelError `bad_config` for a folder that cannot be used, `port_in_use` for a requested port that is taken,
 * `database_unavailable` when the server does not start or is not visible from here, `database_in_use` when a process hangs while it
 * leaves the server.
 */
export async function startEmbeddedPostgres(
  options: EmbeddedPostgresOptions = {},
): Promise<EmbeddedPostgres> {
  const { log: write = () => {} } = options;
  const log = (line: string): void => write(line, 'info');
  const { ephemeral = false } = options;
  const { keepMs } = options;
  if (keepMs !== undefined) checkDuration(keepMs, 'keepMs', { allowsZero: true });
  const leaveDeadlineMs = leaveDeadlineOf(options);
  const startDeadlineMs = checkDuration(options.startDeadlineMs ?? START_DEADLINE_MS, 'startDeadlineMs');
  if (ephemeral && options.dataDir === undefined) await sweepEphemeral(log);
  const native = await prepareNative();
  const folder = resolve(options.dataDir ?? (ephemeral ? makeEphemeralFolder() : defaultDataDir()));
  await prepareFolder(folder);
  const membership = Membership.join(folder);
  // Registered here, because the process can also end while it starts a server.
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
      warn: (line) => write(line, 'warn'),
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
  const startedAt = startOf(pid);
  if (keepMs !== undefined && !ephemeral) keepServer(folder, { pid, keepMs });
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
      const isOurs = existsSync(folder) ? isServing(pid, dataDir) : startOf(pid) === startedAt;
      if (isOurs) await stopServer(pid);
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
 * Deletes the data of a server permanently; the next start begins with an empty server. The last process to leave may do so, under the
 * same rule by which it stops the server, so no process loses data that it uses.
 *
 * @throws KernelError `database_in_use` when another process uses the server, or hangs while it leaves; `database_unavailable` when a
 * server works on the folder that cannot be stopped, because its lock file is unusable or the server is not visible from here.
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

function isServing(pid: number, dataDir: string): boolean {
  return runningPostmaster(dataDir)?.pid === pid;
}

/** Waits for the end of a process: the children of a killed server end shortly after it. */
async function hasEnded(pid: number): Promise<boolean> {
  const deadline = Date.now() + STOP_DEADLINE_MS;
  while (isAlive(pid)) {
    if (Date.now() > deadline) return false;
    await delay(20);
  }
  return true;
}
