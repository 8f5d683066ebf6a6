import { openBoxcar } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { openFloor } from '../floor/system.js';
import type { Options, QueueName } from '../options.js';
import { query, type Servers } from '../servers.js';
import type { System, Target } from '../system.js';

/** Boxcar and its floor on the same servers, each with its own worker process; the one not measured is idle. */
export interface Pair extends AsyncDisposable {
  readonly boxcar: System;
  readonly floor: System;
}

export async function openPair(servers: Servers, queue: QueueName, options: Options): Promise<Pair> {
  const target: Target = {
    databaseUrl: servers.databaseUrl,
    concurrency: options.concurrency,
    ...(queue === 'redis' && 'url' in servers.redis ? { redisUrl: servers.redis.url } : {}),
  };
  const cleanup = new Cleanup();
  try {
    const floor = await openFloor(target);
    cleanup.defer(() => floor[Symbol.asyncDispose]());
    const boxcar = await openBoxcar(target);
    cleanup.defer(() => boxcar[Symbol.asyncDispose]());
    return { boxcar, floor, [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose]() };
  } catch (error) {
    await cleanup[Symbol.asyncDispose]();
    throw error;
  }
}

/** After the warm-up: what autovacuum would do within the first minutes, so that plans are those of a table with rows. */
export const settle = (servers: Servers): Promise<unknown> => query(servers.databaseUrl, 'vacuum analyze');

/** Runs both sides alternately, changing who goes first, and keeps their results apart. */
export async function interleave<T>(
  pair: Pair,
  rounds: number,
  measure: (system: System) => Promise<T>,
): Promise<{ readonly boxcar: readonly T[]; readonly floor: readonly T[] }> {
  const results = { boxcar: [] as T[], floor: [] as T[] };
  for (let round = 0; round < rounds; round += 1) {
    const order = round % 2 === 0 ? [pair.floor, pair.boxcar] : [pair.boxcar, pair.floor];
    for (const system of order) results[system.name].push(await measure(system));
  }
  return results;
}
