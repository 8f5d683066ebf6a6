// A Postgres from Debian's packages for one test run: with its own folder and a free port, and without flushing to disk.
import { spawn, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
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
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

/** The server refuses to run as root; root therefore starts it under the account `nobody`. */
const NOBODY = 65_534;
const START_MS = 30_000;
const INITDB = ['--encoding=UTF8', '--locale=C.UTF-8', '--no-sync'];

/**
 * @param {number} major
 * @returns {Promise<{ url: string, stop(): void }>} `stop` is also called when this process exits.
 * @throws when this version is not installed or does not start.
 */
export async function startDebianPostgres(major) {
  const bin = (name) => join('/usr/lib/postgresql', String(major), 'bin', name);
  if (!existsSync(bin('initdb')))
    throw new Error(`Postgres ${major} is not installed: apt-get install postgresql-${major}`);
  const folder = mkdtempSync(join(tmpdir(), `boxcar-postgres-${major}-`));
  let child;
  const stop = () => {
    process.off('exit', stop);
    // Immediate shutdown: its data is not kept, and no client waits.
    child?.kill('SIGQUIT');
    rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  };
  process.once('exit', stop);
  try {
    const isRoot = process.getuid?.() === 0;
    const account = isRoot ? { uid: NOBODY, gid: NOBODY } : {};
    if (isRoot) chownSync(folder, NOBODY, NOBODY);
    chmodSync(folder, 0o700);
    const data = join(folder, 'data');
    const password = randomUUID();
    const passwordFile = join(folder, 'password');
    writeFileSync(passwordFile, password);
    if (isRoot) chownSync(passwordFile, NOBODY, NOBODY);
    const init = spawnSync(
      bin('initdb'),
      ['-D', data, '-U', 'boxcar', '--auth=scram-sha-256', `--pwfile=${passwordFile}`, ...INITDB],
      { cwd: folder, ...account, encoding: 'utf8' },
    );
    if (init.status !== 0)
      throw new Error(`initdb of Postgres ${major} failed: ${init.stderr || init.error?.message}`);
    const port = await freePort();
    const settings = {
      port,
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      max_connections: 500,
      fsync: 'off',
      synchronous_commit: 'off',
      full_page_writes: 'off',
      // As in the embedded server: autovacuum would visit databases while they are empty between two tests.
      autovacuum: 'off',
    };
    const log = join(folder, 'log');
    const out = openSync(log, 'a');
    child = spawn(
      bin('postgres'),
      ['-D', data, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])],
      { cwd: folder, ...account, stdio: ['ignore', out, out] },
    );
    // The error is visible as a child without a process id.
    child.on('error', () => undefined);
    closeSync(out);
    await isReady(child, log, major);
    return { url: `postgres://boxcar:${password}@127.0.0.1:${port}/postgres`, stop };
  } catch (error) {
    stop();
    throw error;
  }
}

/**
 * Waits until the server's log reports readiness. The log is a file: a pipe that its owner is too busy to read would block the server.
 */
async function isReady(child, log, major) {
  const deadline = performance.now() + START_MS;
  for (;;) {
    const said = readFileSync(log, 'utf8');
    if (said.includes('ready to accept connections')) return;
    if (child.exitCode !== null || child.pid === undefined || performance.now() > deadline)
      throw new Error(`Postgres ${major} did not start: ${said.trim() || 'it said nothing'}`);
    await delay(20);
  }
}

function freePort() {
  return new Promise((settle, fail) => {
    const probe = createServer();
    probe.once('error', fail);
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => settle(port));
    });
  });
}
