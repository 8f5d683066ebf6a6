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
/** Long enough for several heartbeats and sweeps. */
const SECONDS = 20;
/** The activity of a start ends before this time. */
const REST_MS = 3_000;

/** A Redis database that no other suite uses. */
const EMPTY_REDIS = 1;

/** An idle worker, next to the idle BullMQ worker of the bare loop. Both idle at the same time, since neither can disturb the other. */
export async function benchQuiet(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const seconds = options.seconds ?? SECONDS;
  // Jobs of workers that another suite has killed are still redelivered for a while, which would disturb the measurement.
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
    // Milliseconds of CPU per second, of one thousand.
    CPU: { value: own.cpuMs / 10, floor: bare.cpuMs / 10 },
  };
}

interface Reading {
  readonly at: number;
  readonly statements: number;
  readonly cpuMs: number;
}

/** Forks a worker with its own proxy. @returns A function that reads the counters of both. */
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
