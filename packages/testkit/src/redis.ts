import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '@boxcar/embedded';
import { Redis } from 'ioredis';
import { testContext } from './context.js';
import { closeAtEnd } from './lifecycle.js';
import { trackChild } from './spawn-node.js';
import { waitFor } from './wait-for.js';

export interface TestRedis extends AsyncDisposable {
  readonly url: string;
  /** Deletes everything, as a `FLUSHALL` on a private server would. */
  flush(): Promise<void>;
  /** Kills the server without warning; it keeps nothing. */
  stop(): Promise<void>;
  /** Starts it again on the same port, empty. */
  start(): Promise<void>;
  /** Also done at the end of the test file. */
  close(): Promise<void>;
}

/**
 * A Redis of one's own: a private server where there is one to start; on a shared one a database chosen by the number of
 * the test process, which cannot be stopped.
 */
export async function testRedis(): Promise<TestRedis> {
  const { redis } = testContext();
  switch (redis.kind) {
    case 'program':
      return startProgram(redis.path);
    case 'container':
      return startContainer();
    case 'external':
      return useExternal(redis.url);
    case 'none':
      throw new Error(`there is no Redis to test with: ${redis.reason}`);
  }
}

async function startProgram(path: string): Promise<TestRedis> {
  const port = await freePort();
  const url = `redis://127.0.0.1:${port}/0`;
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-redis-'));
  let child: ChildProcess | undefined;
  const start = async (): Promise<void> => {
    const args = [
      '--port',
      String(port),
      '--bind',
      '127.0.0.1',
      '--save',
      '',
      '--appendonly',
      'no',
      '--dir',
      folder,
    ];
    const started = spawn(path, args, { stdio: 'ignore' });
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

async function startContainer(): Promise<TestRedis> {
  const { GenericContainer } = await import('testcontainers');
  // A fixed port of the host, because a restart must find the server where it was.
  const port = await freePort();
  const container = await new GenericContainer('redis:7-alpine')
    .withCommand(['redis-server', '--save', '', '--appendonly', 'no'])
    .withExposedPorts({ container: 6379, host: port })
    .start();
  const url = `redis://${container.getHost()}:${port}/0`;
  const { getContainerRuntimeClient } = await import('testcontainers');
  const engine = (await getContainerRuntimeClient()).container;
  const close = closeAtEnd(async () => {
    await container.stop();
  });
  return {
    url,
    flush: () => command(url, 'flushall'),
    stop: async () => {
      await engine.getById(container.getId()).kill();
    },
    start: async () => {
      await engine.getById(container.getId()).start();
      await waitFor(() => ping(url), { message: 'Redis in the container answers' });
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}

async function useExternal(base: string): Promise<TestRedis> {
  const url = new URL(base);
  url.pathname = `/${Number(process.env.VITEST_POOL_ID ?? 1) % 16}`;
  const flush = () => command(url.href, 'flushdb');
  await flush();
  const refuse = (): Promise<void> => {
    throw new Error(
      'the Redis of TEST_REDIS_URL is shared and cannot be stopped; unset it to test with a private one',
    );
  };
  const close = closeAtEnd(flush);
  return { url: url.href, flush, start: refuse, stop: refuse, close, [Symbol.asyncDispose]: close };
}

async function command(url: string, name: 'flushall' | 'flushdb' | 'ping'): Promise<void> {
  const client = new Redis(url, { lazyConnect: true, maxRetriesPerRequest: 0, retryStrategy: () => null });
  // The failure shows in the command.
  client.on('error', () => {});
  try {
    await client.connect();
    await client.call(name);
  } finally {
    client.disconnect();
  }
}

async function ping(url: string): Promise<boolean> {
  try {
    await command(url, 'ping');
    return true;
  } catch {
    return false;
  }
}
