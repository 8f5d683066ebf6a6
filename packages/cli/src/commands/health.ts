import { hostname } from 'node:os';
import { findLiveWorkers } from '@boxcar/store';
import type { Context } from '../context.js';
import { openReader } from '../stack.js';
import { countOf } from '../text.js';

/**
 * `boxcar health`: whether a worker of this host holds a living lease, read from the rows. The lease is renewed by the
 * worker's own event loop, so one that hangs, or has lost the database, is found out within the lease.
 */
export async function checkHealth(context: Context, flags: { readonly pid?: number }): Promise<number> {
  await using reader = await openReader(context.config, context.log('warn'));
  const host = hostname();
  const workers = await findLiveWorkers(reader.pool, {
    hostname: host,
    ...(flags.pid === undefined ? {} : { pid: flags.pid }),
  });
  const isHealthy = workers.length > 0;
  const where = flags.pid === undefined ? host : `${host}, process ${flags.pid}`;
  context.answer({ status: isHealthy ? 'healthy' : 'unhealthy', hostname: host, workers }, () =>
    isHealthy
      ? `healthy: ${countOf(workers.length, 'live worker')} on ${where}`
      : `unhealthy: no live worker on ${where}`,
  );
  return isHealthy ? 0 : 1;
}
