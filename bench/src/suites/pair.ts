import { type Boxcar, openBoxcar } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { openFloor } from '../floor/system.js';
import { openLeast } from '../least/system.js';
import type { QueueName } from '../options.js';
import { query, type Servers } from '../servers.js';
import type { Bench } from '../suite.js';
import type { System, Target } from '../system.js';

const CONCURRENCY = 50;

/** Boxcar and its floor on the same servers, each with its own worker process. The side that is not measured is idle. */
export interface Pair extends AsyncDisposable {
  readonly boxcar: Boxcar;
  readonly floor: System;
  /** The least floor, on the floor's worker. Must be open only while it is measured. */
  openLeast(): Promise<System>;
}

/** The concurrency of the workers of a pair. */
export const concurrencyOf = (options: Bench['options']): number => options.concurrency ?? CONCURRENCY;

/** @param queue - Redis only if it is available. */
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
    return {
      boxcar,
      floor,
      openLeast: () => openLeast(target, floor),
      [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
    };
  } catch (error) {
    await cleanup[Symbol.asyncDispose]();
    throw error;
  }
}

/** Must be called after the warm-up: does the work of autovacuum in the first minutes, so that plans are made for a table with rows. */
export const settle = (databaseUrl: string): Promise<unknown> => query(databaseUrl, 'vacuum analyze');

/** Runs all sides in alternation, with a changing first side, and keeps their results separate. */
export async function alternate<K extends string, T>(
  rounds: number,
  sides: Readonly<Record<K, () => Promise<T>>>,
): Promise<Readonly<Record<K, readonly T[]>>> {
  const names = Object.keys(sides) as K[];
  const results = Object.fromEntries(names.map((name) => [name, [] as T[]])) as Record<K, T[]>;
  for (let round = 0; round < rounds; round += 1)
    for (const name of round % 2 === 0 ? names : [...names].reverse())
      results[name].push(await sides[name]());
  return results;
}

export const interleave = <T>(
  pair: Pair,
  rounds: number,
  measure: (system: System) => Promise<T>,
): Promise<Readonly<Record<'floor' | 'boxcar', readonly T[]>>> =>
  alternate(rounds, { floor: () => measure(pair.floor), boxcar: () => measure(pair.boxcar) });
