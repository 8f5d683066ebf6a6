import { KernelError } from '@boxcar/kernel';
import { Redis } from 'ioredis';
import type { RedisFacts } from '../../text/doctor-servers.js';

/** Connects, asks and disconnects; the reason of a failure says what Redis or the network said. */
async function ask<T>(url: string, timeoutMs: number, question: (client: Redis) => Promise<T>): Promise<T> {
  const client = new Redis(url, {
    lazyConnect: true,
    connectTimeout: timeoutMs,
    commandTimeout: timeoutMs,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
  });
  let reason: Error | undefined;
  client.on('error', (error: Error) => {
    reason = error;
  });
  try {
    await client.connect();
    return await question(client);
  } catch (error) {
    const { host } = new URL(url);
    const why = reason ?? (error instanceof Error ? error : new Error(String(error)));
    throw new KernelError('redis_unavailable', {
      message: `Redis at ${host}: ${why.message.replace(/\.$/, '')}; turns are taken from the rows until it is back.`,
      details: { host },
      cause: error,
    });
  } finally {
    client.disconnect();
  }
}

/**
 * Asks Redis whether it is there and lets us in.
 *
 * @throws KernelError `redis_unavailable` with the reason; the URL's password is not part of it.
 */
export async function checkRedis(url: string, timeoutMs = 2_000): Promise<void> {
  await ask(url, timeoutMs, (client) => client.ping());
}

/** @throws KernelError as `checkRedis`. */
export function readRedisFacts(url: string, timeoutMs = 2_000): Promise<RedisFacts> {
  return ask(url, timeoutMs, async (client) => {
    const info = await client.info();
    const lines = info.split(/\r?\n/);
    const field = (name: string): string =>
      lines.find((line) => line.startsWith(`${name}:`))?.slice(name.length + 1) ?? '';
    // Managed servers may refuse CONFIG, and say the policy in INFO.
    const save = await client.config('GET', 'save').catch(() => undefined);
    const saves = Array.isArray(save) ? String(save[1] ?? '') : '';
    return {
      version: field('redis_version'),
      policy: field('maxmemory_policy'),
      maxMemory: Number(field('maxmemory')),
      isPersistent: field('aof_enabled') === '1' || saves !== '',
    };
  });
}
