import { type Boxcar, openBoxcar } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { openFloor } from '../floor/system.js';
import type { QueueName } from '../options.js';
import { query, type Servers } from '../servers.js';
import type { Bench } from '../suite.js';
import type { System, Target } from '../system.js';

const CONCURRENCY = 50;

/** Boxcar and its floor on the same servers, each with its own worker process; the one not measured is idle. */
export interface Pair extends AsyncDisposable {
  readonly boxcar: Boxcar;
  readonly floor: System;
}

/** Of the workers of a pair. */
export const concurrencyOf = (options: Bench['options']): number => options.concurrency ?? CONCURRENCY;

/** @param queue - Redis only where there is one. */
export const targetOf = (servers: Servers, queue: QueueName, concurrency: number): Target => ({
  databaseUrl: servers.databaseUrl,
  concurrency,
  ...(queue === 'redis' && 'url' in servers.redis ? { redisUrl: servers.redis.url } : {}),
});

export async function openPair(
  { servers, options }: Pick<Bench, 'servers' | 'options'>,
  queue: QueueName,
): Promise<Pair> {
  const target = targetOf(servers, queue, concurrencyOf(options));
  const cleanup = new Cleanup();
  try {
    const [floor, boxcar] = await Promise.all([
      openFloor(target).then((system) => {
        cleanup.defer(() => system[Symbol.asyncDispose]());
        return system;
      }),
      openBoxcar(target).then((system) => {
        cleanup.defer(() => system[Symbol.asyncDispose]());
        return system;
      }),
    ]);
    return { boxcar, floor, [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose]() };
  } catch (error) {
    await cleanup[Symbol.asyncDispose]();
    throw error;
  }
}

/** After the warm-up: what autovacuum would do within the first minutes, so that plans are those of a table with rows. */
export const settle = (databaseUrl: string): Promise<unknown> => query(databaseUrl, 'vacuum analyze');

/** Runs both sides alternately, changing who goes first, and keeps their results apart. */
export async function alternate<T>(
  rounds: number,
  sides: Readonly<Record<'boxcar' | 'floor', () => Promise<T>>>,
): Promise<{ readonly boxcar: readonly T[]; readonly floor: readonly T[] }> {
  const results = { boxcar: [] as T[], floor: [] as T[] };
  for (let round = 0; round < rounds; round += 1) {
    const order = round % 2 === 0 ? (['floor', 'boxcar'] as const) : (['boxcar', 'floor'] as const);
    for (const side of order) results[side].push(await sides[side]());
  }
  return results;
}

export const interleave = <T>(
  pair: Pair,
  rounds: number,
  measure: (system: System) => Promise<T>,
): ReturnType<typeof alternate<T>> =>
  alternate(rounds, { boxcar: () => measure(pair.boxcar), floor: () => measure(pair.floor) });
