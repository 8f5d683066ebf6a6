import { setTimeout as delay } from 'node:timers/promises';
import { forkBoxcarWorker } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { openCountingProxy } from '../counting-proxy.js';
import type { QueueName } from '../options.js';
import { openDatabase } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import type { Target } from '../system.js';
import { forkWorker, type WorkerProcess } from '../worker-process.js';
import { targetOf } from './pair.js';

const CONCURRENCY = 50;
/** Several heartbeats and sweeps. */
const SECONDS = 20;
/** What a start brings with it comes before. */
const REST_MS = 3_000;

/** A database of Redis that no other suite uses. */
const EMPTY_REDIS = 1;

/**
 * A worker with nothing to do, beside that of the bare loop, which is BullMQ's own. Both rest at the same time: neither has
 * anything that the other could disturb.
 */
export async function benchQuiet(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const seconds = options.seconds ?? SECONDS;
  // Jobs of workers that another suite has killed are delivered again for a while, which is not rest.
  await using database = await openDatabase(servers, `quiet_${queue}`);
  const { redisUrl, ...rest } = targetOf(servers, queue, options.concurrency ?? CONCURRENCY);
  const target = {
    ...rest,
    databaseUrl: database.url,
    ...(redisUrl === undefined ? {} : { redisUrl: `${redisUrl}/${EMPTY_REDIS}` }),
  };
  await using cleanup = new Cleanup();
  const [boxcar, floor] = await Promise.all([
    openObserved(cleanup, target, forkBoxcarWorker),
    openObserved(cleanup, target, (of) => forkWorker(new URL('../floor/worker', import.meta.url), of)),
  ]);
  await delay(Math.min(REST_MS, seconds * 1000));
  const [from, floorFrom] = [await boxcar(), await floor()];
  await delay(seconds * 1000);
  const [to, floorTo] = [await boxcar(), await floor()];
  say(`quiet ${queue}: watched for ${seconds} s`);
  const [own, bare] = [perSecond(from, to), perSecond(floorFrom, floorTo)];
  return {
    statements: { value: own.statements, floor: bare.statements },
    // Milliseconds of CPU per second, of a thousand that there are.
    CPU: { value: own.cpuMs / 10, floor: bare.cpuMs / 10 },
  };
}

interface Reading {
  readonly at: number;
  readonly statements: number;
  readonly cpuMs: number;
}

/** Forks a worker behind a proxy of its own. @returns What reads both. */
async function openObserved(
  cleanup: Cleanup,
  target: Target,
  fork: (target: Target) => Promise<WorkerProcess>,
): Promise<() => Promise<Reading>> {
  const proxy = await openCountingProxy(target.databaseUrl);
  cleanup.defer(() => proxy[Symbol.asyncDispose]());
  const worker = await fork({ ...target, databaseUrl: proxy.url });
  cleanup.defer(() => worker.close());
  return async () => {
    const { cpuMs } = await worker.usage();
    return { at: performance.now(), statements: proxy.statements, cpuMs };
  };
}

function perSecond(from: Reading, to: Reading): Pick<Reading, 'statements' | 'cpuMs'> {
  const seconds = (to.at - from.at) / 1000;
  return {
    statements: (to.statements - from.statements) / seconds,
    cpuMs: (to.cpuMs - from.cpuMs) / seconds,
  };
}
