import { KernelError } from '@boxcar/kernel';
import { Redis } from 'ioredis';

/**
 * Asks Redis whether it is there and lets us in.
 *
 * @throws KernelError `redis_unavailable` with the reason; the URL's password is not part of it.
 */
export async function checkRedis(url: string, timeoutMs = 2_000): Promise<void> {
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
    await client.ping();
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
