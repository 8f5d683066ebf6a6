import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '@boxcar/embedded';
import { migrate } from '@boxcar/store';
import pg from 'pg';
import { closeAtEnd } from './lifecycle.js';
import { trackChild } from './spawn-node.js';
import { waitFor } from './wait-for.js';

/** A primary and its standby, connected by streaming replication. */
export interface PostgresPair extends AsyncDisposable {
  /** The migrated database `boxcar` on the primary. */
  readonly url: string;
  /** The same database on the standby. */
  readonly standbyUrl: string;
  /** Until `resume`, the standby receives the log without applying it. */
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Ends the standby at once. */
  stopStandby(): Promise<void>;
  startStandby(): Promise<void>;
  /** Makes the standby accept writes. */
  promote(): Promise<void>;
  close(): Promise<void>;
}

const VERSIONS = [18, 17, 16, 15];
/** The server refuses to run as root, so root runs it as the account that owns nothing. */
const NOBODY = 65_534;
const START_MS = 30_000;

const folderOf = (version: number): string => join('/usr/lib/postgresql', String(version), 'bin');
const installed = (): string | undefined =>
  VERSIONS.map(folderOf).find((folder) => existsSync(join(folder, 'pg_basebackup')));

/** Whether this run can start a pair, which needs Debian's Postgres. Also true where every backend must be tested. */
export const hasPostgresPair = (): boolean =>
  installed() !== undefined || process.env.BOXCAR_REQUIRE_BACKENDS === '1';

const account = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {};

function runProgram(file: string, args: readonly string[], cwd: string, password: string): void {
  const env = { ...process.env, PGPASSWORD: password };
  const ended = spawnSync(file, args, { cwd, env, ...account, encoding: 'utf8' });
  if (ended.status !== 0) throw new Error(`${file} failed: ${ended.stderr || ended.error?.message}`);
}

interface Server {
  stop(): Promise<void>;
}

async function startServer(of: {
  readonly bin: string;
  readonly folder: string;
  readonly name: string;
  readonly settings: Readonly<Record<string, string | number>>;
}): Promise<Server> {
  const log = join(of.folder, `${of.name}.log`);
  const out = openSync(log, 'w');
  const settings = Object.entries(of.settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const child: ChildProcess = trackChild(
    spawn(join(of.bin, 'postgres'), ['-D', join(of.folder, of.name), ...settings], {
      cwd: of.folder,
      ...account,
      stdio: ['ignore', out, out],
    }),
  );
  closeSync(out);
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null;
  await waitFor(
    () => {
      const said = readFileSync(log, 'utf8');
      if (hasEnded()) throw new Error(`the ${of.name} did not start: ${said}`);
      return /ready to accept (read-only )?connections/.test(said);
    },
    { message: `the ${of.name} is ready`, deadlineMs: START_MS, intervalMs: 20 },
  );
  return {
    stop: async () => {
      child.kill('SIGQUIT');
      await waitFor(hasEnded, { message: `the ${of.name} has ended`, deadlineMs: START_MS, intervalMs: 5 });
    },
  };
}

/** Starts two private servers on the loopback interface, on folders of their own; nothing is flushed to disk. */
export async function postgresPair(): Promise<PostgresPair> {
  const bin = installed();
  if (bin === undefined)
    throw new Error(
      `a Postgres with a standby needs pg_basebackup in ${folderOf(15)}: apt-get install postgresql-15`,
    );
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-pair-'));
  const password = randomBytes(24).toString('hex');
  let primary: Server | undefined;
  let standby: Server | undefined;
  const close = closeAtEnd(async () => {
    await standby?.stop();
    await primary?.stop();
    rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  try {
    chmodSync(folder, 0o700);
    const passwordFile = join(folder, 'password');
    writeFileSync(passwordFile, password);
    if ('uid' in account)
      for (const path of [folder, passwordFile]) chownSync(path, account.uid ?? 0, account.gid ?? 0);
    const init = [
      '-D',
      join(folder, 'primary'),
      '-U',
      'boxcar',
      '--auth=scram-sha-256',
      `--pwfile=${passwordFile}`,
    ];
    runProgram(
      join(bin, 'initdb'),
      [...init, '--encoding=UTF8', '--locale=C.UTF-8', '--no-sync'],
      folder,
      password,
    );
    const common = {
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      fsync: 'off',
      autovacuum: 'off',
    };
    const [port, standbyPort] = [await freePort(), await freePort()];
    const urlOf = (at: number, database: string): string =>
      `postgres://boxcar:${password}@127.0.0.1:${at}/${database}`;
    primary = await startServer({ bin, folder, name: 'primary', settings: { ...common, port } });
    const tell = async (url: string, text: string): Promise<void> => {
      const client = new pg.Client({ connectionString: url });
      await client.connect();
      try {
        await client.query(text);
      } finally {
        await client.end();
      }
    };
    await tell(urlOf(port, 'postgres'), 'create database boxcar');
    const url = urlOf(port, 'boxcar');
    await migrate(url);
    const copy = ['-D', join(folder, 'standby'), '-R', '-X', 'stream', '-c', 'fast', '--no-sync'];
    runProgram(
      join(bin, 'pg_basebackup'),
      [...copy, '-h', '127.0.0.1', '-p', String(port), '-U', 'boxcar'],
      folder,
      password,
    );
    const start = (): Promise<Server> =>
      startServer({ bin, folder, name: 'standby', settings: { ...common, port: standbyPort } });
    standby = await start();
    const standbyUrl = urlOf(standbyPort, 'boxcar');
    return {
      url,
      standbyUrl,
      pause: () => tell(standbyUrl, 'select pg_wal_replay_pause()'),
      resume: () => tell(standbyUrl, 'select pg_wal_replay_resume()'),
      stopStandby: async () => {
        await standby?.stop();
        standby = undefined;
      },
      startStandby: async () => {
        standby ??= await start();
      },
      promote: () => tell(standbyUrl, 'select pg_promote()'),
      close,
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}
