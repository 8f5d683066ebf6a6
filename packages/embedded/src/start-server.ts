/** Finds a server on a data folder that accepts this process, or starts a server (E1, E2 and E4, server.ts). */
import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel/base';
import { dealWithBrokenLock, removeStaleLock } from './broken-lock.js';
import { type Cluster, lastLine } from './cluster.js';
import { freePort, isFree } from './free-port.js';
import type { NativePostgres } from './native-postgres.js';
import {
  hasBrokenLock,
  hasLiveMemory,
  lockFileOf,
  lockHolder,
  type Postmaster,
  runningPostmaster,
  unseenPostmaster,
} from './postmaster.js';
import { codeOf, describeProcess } from './process.js';
import { prepareDatabase } from './roles.js';
import { readLog, spawnServer } from './spawn-server.js';
import { stopServer } from './stop-server.js';
import { mayAnswer, serverOutOfSight } from './unseen-server.js';

interface StartOptions {
  readonly port?: number | undefined;
  readonly ephemeral: boolean;
  readonly startDeadlineMs: number;
  readonly log: (line: string) => void;
  readonly warn: (line: string) => void;
  /** Whether no other process uses the server. */
  readonly isAlone: () => boolean;
}

/** Tries until a server runs on the data folder and accepts this process: a new server, or the server of another process. */
export async function startOrAdopt(
  cluster: Cluster,
  native: NativePostgres,
  options: StartOptions,
): Promise<{ postmaster: Postmaster; adopted: boolean }> {
  const deadline = Date.now() + options.startDeadlineMs;
  let spawned: { child: ChildProcess; logOffset: number; port: number } | undefined;
  let port = options.port ?? (await readPort(cluster.folder));
  let brokenSince: number | undefined;
  /** The last refusal of the server. */
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
        options.warn(
          `the server already runs on port ${running.port}, which is used; the requested ${options.port} is used once that server has stopped: end the processes that use it (a command with BOXCAR_POSTGRES_KEEP_SECONDS=0 stops a server that is only kept)`,
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

/**
 * Ensures that the role and the database exist. Otherwise returns the reason, for example that a starting server accepts no connections
 * yet.
 */
async function findRefusal(cluster: Cluster, { port }: Postmaster): Promise<Error | undefined> {
  try {
    await prepareDatabase(cluster, port);
    return undefined;
  } catch (error) {
    const code = codeOf(error);
    if (code === '28P01') {
      throw new KernelError('database_auth_failed', {
        message: `The server on ${cluster.folder} refuses the password stored with its data; stop it or move the folder away.`,
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
 * Stops a server that an earlier version of Boxcar has started. Such a server listens only on TCP, and this version does not connect to
 * it. It is stopped when no process uses it any more; the next try then starts a new server.
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
