import { randomBytes } from 'node:crypto';
import { freePort } from '@boxcar/embedded';
import { testContext } from './context.js';
import { closeAtEnd } from './lifecycle.js';
import { command, ping, startRedis, type TestRedis } from './redis-server.js';
import { waitFor } from './wait-for.js';

/**
 * A Redis for a test: a private server where one can be started. On a shared server it is a database chosen by the number of the test
 * process, and it cannot be stopped.
 */
export async function testRedis(): Promise<TestRedis> {
  const { redis } = testContext();
  switch (redis.kind) {
    case 'program':
      return startRedis(redis.path);
    case 'container':
      return startContainer();
    case 'external':
      return useExternal(redis.url);
    case 'none':
      throw new Error(`there is no Redis to test with: ${redis.reason}`);
  }
}

async function startContainer(): Promise<TestRedis> {
  const { GenericContainer } = await import('testcontainers');
  // A fixed port of the host, because a restarted server must have the same address.
  const port = await freePort();
  const password = randomBytes(24).toString('hex');
  const container = await new GenericContainer('redis:7-alpine')
    .withCommand(['redis-server', '--requirepass', password, '--save', '', '--appendonly', 'no'])
    .withExposedPorts({ container: 6379, host: port })
    .start();
  const url = `redis://:${password}@${container.getHost()}:${port}/0`;
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
