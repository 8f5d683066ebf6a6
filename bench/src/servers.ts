/**
 * The servers of one run: an embedded Postgres with its durable settings on a separate folder, and a private `redis-server` where that is
 * installed. Without the flush of a commit, the figures of both sides would be too good.
 */

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  accessSync,
  constants,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import {
  defaultDataDir,
  type EmbeddedPostgres,
  freePort,
  overTcp,
  startEmbeddedPostgres,
} from '@boxcar/embedded';
import { migrateQueues } from '@boxcar/runtime';
import { migrate } from '@boxcar/store';
import { Redis } from 'ioredis';
import pg from 'pg';
import type { Cleanup } from './cleanup.js';
import { migrateFloor } from './floor/rows.js';

export interface RedisServer {
  readonly url: string;
  readonly pid: number;
  readonly version: string;
}

export interface Servers {
  readonly databaseUrl: string;
  readonly postgresPid: number;
  readonly redis: RedisServer | { readonly missing: string };
  /** The machine of the measurement, in one line. */
  readonly machine: string;
}

export interface Database extends AsyncDisposable {
  readonly url: string;
}

/** Folder names contain the process id, so that a later run can recognize the remains of a killed run. */
const PREFIX = 'bench-';
const TEMPLATE = 'bench_template';
const MAIN = 'bench_main';
/** A file in the folder: the process id and port of its Redis. */
const REDIS_FILE = 'redis';

export async function startServers(
  cleanup: Cleanup,
  options: {
    readonly needsRedis: boolean;
    /** Loads pg_stat_statements. It has a small cost and is therefore off while figures are measured. */
    readonly hasStatistics: boolean;
  },
): Promise<Servers> {
  const home = dirname(defaultDataDir());
  mkdirSync(home, { recursive: true });
  await removeLeftovers(home);
  const folder = mkdtempSync(join(home, `${PREFIX}${process.pid}-`));
  const removeFolder = (): void => rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  cleanup.defer(() => {
    process.off('exit', removeFolder);
    removeFolder();
  });
  const postgres = await startPostgres(folder, options.hasStatistics);
  cleanup.defer(() => postgres.stop());
  // When the process ends early, the server's own handler, which was registered earlier, has stopped the server before this.
  process.once('exit', removeFolder);
  const redis = options.needsRedis ? await startRedis(cleanup, folder) : { missing: 'not asked for' };
  // Migrated once; every database is a copy of it.
  await query(overTcp(postgres.adminUrl), `create database ${TEMPLATE}`);
  await prepare(urlOf(overTcp(postgres.adminUrl), TEMPLATE));
  await query(overTcp(postgres.adminUrl), `create database ${MAIN} template ${TEMPLATE}`);
  return {
    databaseUrl: urlOf(overTcp(postgres.adminUrl), MAIN),
    postgresPid: postgres.pid,
    redis,
    machine: await describeMachine(overTcp(postgres.adminUrl), redis),
  };
}

/** A separate database for a suite that must begin empty, or whose rows would disturb later suites. */
export const openDatabase = (servers: Servers, name: string): Promise<Database> =>
  createDatabase(servers, name, TEMPLATE);

/** A database without any schema. */
export const openEmptyDatabase = (servers: Servers, name: string): Promise<Database> =>
  createDatabase(servers, name, 'template0');

async function createDatabase(servers: Servers, name: string, template: string): Promise<Database> {
  await query(servers.databaseUrl, `create database ${name} template ${template}`);
  return {
    url: urlOf(servers.databaseUrl, name),
    // Without force: a pool ends a moment before its last connection does, and Postgres waits for the connections.
    [Symbol.asyncDispose]: async () => void (await query(servers.databaseUrl, `drop database ${name}`)),
  };
}

function urlOf(server: string, database: string): string {
  const url = new URL(server);
  url.pathname = `/${database}`;
  return url.href;
}

async function prepare(databaseUrl: string): Promise<void> {
  await migrate(databaseUrl);
  await migrateQueues(databaseUrl);
  await migrateFloor(databaseUrl);
}

async function startPostgres(dataDir: string, hasStatistics: boolean): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres({ dataDir });
  if (!hasStatistics) return postgres;
  await query(overTcp(postgres.adminUrl), "alter system set shared_preload_libraries = 'pg_stat_statements'");
  await query(overTcp(postgres.adminUrl), "alter system set pg_stat_statements.track = 'top'");
  await postgres.stop();
  const again = await startEmbeddedPostgres({ dataDir });
  // Every database is created as a copy of this one.
  await query(urlOf(overTcp(again.adminUrl), 'template1'), 'create extension pg_stat_statements');
  return again;
}

/** Stops and removes the servers of runs that were killed. */
async function removeLeftovers(home: string): Promise<void> {
  for (const name of readdirSync(home)) {
    const pid = name.startsWith(PREFIX) ? Number(name.slice(PREFIX.length).split('-')[0]) : Number.NaN;
    if (!Number.isInteger(pid) || isAlive(pid)) continue;
    const dataDir = join(home, name);
    killRedis(dataDir);
    // The start takes over the server that still runs there, and the last user stops it.
    await startEmbeddedPostgres({ dataDir }).then(
      (postgres) => postgres.stop(),
      () => undefined,
    );
    rmSync(dataDir, { recursive: true, force: true });
  }
}

/** Kills the Redis of a killed run, unless its process id now belongs to another process. */
function killRedis(folder: string): void {
  try {
    const [pid, port] = readFileSync(join(folder, REDIS_FILE), 'utf8').split(' ');
    const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8');
    if (command.includes(`redis-server 127.0.0.1:${port}`)) process.kill(Number(pid), 'SIGKILL');
  } catch {
    // It had none, or the process has ended.
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'EPERM';
  }
}

async function startRedis(cleanup: Cleanup, folder: string): Promise<Servers['redis']> {
  const program = findProgram('redis-server');
  if (program === undefined) return { missing: 'no redis-server on the PATH' };
  const port = await freePort();
  const password = randomBytes(24).toString('hex');
  // The settings are passed on stdin: every user can read the arguments of a process.
  const child = spawn(program, ['-'], { stdio: ['pipe', 'ignore', 'ignore'] });
  child.stdin.on('error', () => undefined);
  child.stdin.end(`port ${port}\nbind 127.0.0.1\nrequirepass ${password}\nsave ""\nappendonly no\n`);
  cleanup.deferAlsoAtExit(() => void child.kill('SIGKILL'));
  writeFileSync(join(folder, REDIS_FILE), `${child.pid} ${port}`);
  const url = `redis://:${password}@127.0.0.1:${port}`;
  await answers(url, child);
  const version = /v=(\S+)/.exec(spawnSync(program, ['--version']).stdout.toString())?.[1] ?? 'unknown';
  return { url, pid: child.pid ?? -1, version };
}

async function answers(url: string, child: ChildProcess): Promise<void> {
  const client = new Redis(url, { maxRetriesPerRequest: null, retryStrategy: () => 20 });
  client.on('error', () => undefined);
  try {
    const ended = delay(10_000, undefined, { ref: false }).then(() => {
      throw new Error(
        `redis-server does not answer on port ${new URL(url).port} (exit code ${child.exitCode})`,
      );
    });
    await Promise.race([client.ping(), ended]);
  } finally {
    client.disconnect();
  }
}

function findProgram(name: string): string | undefined {
  return (process.env.PATH ?? '')
    .split(delimiter)
    .map((folder) => join(folder, name))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false;
      }
    });
}

async function describeMachine(databaseUrl: string, redis: Servers['redis']): Promise<string> {
  const [row] = await query<{ version: string }>(
    databaseUrl,
    "select current_setting('server_version') as version",
  );
  const cores = cpus();
  return [
    `${cores[0]?.model.trim() ?? 'unknown cpu'}, ${cores.length} cores, ${Math.round(totalmem() / 2 ** 30)} GiB`,
    `node ${process.versions.node}`,
    `postgres ${row?.version ?? 'unknown'} (embedded, fsync on)`,
    'missing' in redis ? `redis: ${redis.missing}` : `redis ${redis.version}`,
  ].join('; ');
}

/** Runs one statement on a separate connection. */
export async function query<R extends pg.QueryResultRow>(url: string, text: string): Promise<R[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return (await client.query<R>(text)).rows;
  } finally {
    await client.end();
  }
}
