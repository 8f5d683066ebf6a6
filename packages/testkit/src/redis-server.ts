import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '@boxcar/embedded';
import { Redis } from 'ioredis';
import { closeAtEnd } from './lifecycle.js';
import { trackChild } from './spawn-node.js';
import { waitFor } from './wait-for.js';

export interface TestRedis extends AsyncDisposable {
  readonly url: string;
  /** Deletes everything, as a `FLUSHALL` on a private server would. */
  flush(): Promise<void>;
  /** Kills the server without warning. All of its data is lost. */
  stop(): Promise<void>;
  /** Starts the server again on the same port, empty. */
  start(): Promise<void>;
  /** The end of the test file does this too. */
  close(): Promise<void>;
}

/**
 * A private server, from the program at `path`. Its password is in the URL.
 *
 * @param more - Further settings. A file that one of them names is kept over a restart.
 */
export async function startRedis(
  path: string,
  more: Readonly<Record<string, string | number>> = {},
): Promise<TestRedis> {
  const port = await freePort();
  const password = String(more.requirepass ?? randomBytes(24).toString('hex'));
  const url = `redis://:${password}@127.0.0.1:${port}/0`;
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-redis-'));
  let child: ChildProcess | undefined;
  const start = async (): Promise<void> => {
    const settings = {
      port,
      bind: '127.0.0.1',
      requirepass: password,
      save: '""',
      appendonly: 'no',
      dir: JSON.stringify(folder),
      ...more,
    };
    // The settings, which contain the password, are passed through stdin, because all accounts can read the arguments of a process.
    const started = spawn(path, ['-'], { stdio: ['pipe', 'ignore', 'ignore'] });
    started.stdin.on('error', () => {}); // The code below handles the end of the process.
    started.stdin.end(
      Object.entries(settings)
        .map(([name, value]) => `${name} ${value}\n`)
        .join(''),
    );
    child = trackChild(started);
    await waitFor(
      () => {
        if (started.exitCode !== null) throw new Error(`redis-server ended with code ${started.exitCode}`);
        return ping(url);
      },
      { message: `redis-server on port ${port} answers`, deadlineMs: 10_000 },
    );
  };
  const stop = async (): Promise<void> => {
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exit = new Promise((settle) => child?.once('exit', settle));
    child.kill('SIGKILL');
    await exit;
  };
  await start();
  const close = closeAtEnd(async () => {
    await stop();
    rmSync(folder, { recursive: true, force: true });
  });
  return { url, flush: () => command(url, 'flushall'), start, stop, close, [Symbol.asyncDispose]: close };
}

export async function command(url: string, name: 'flushall' | 'flushdb' | 'ping'): Promise<void> {
  const client = new Redis(url, { lazyConnect: true, maxRetriesPerRequest: 0, retryStrategy: () => null });
  // The command reports the failure.
  client.on('error', () => {});
  try {
    await client.connect();
    await client.call(name);
  } finally {
    client.disconnect();
  }
}

export async function ping(url: string): Promise<boolean> {
  try {
    await command(url, 'ping');
    return true;
  } catch {
    return false;
  }
}
