import { resolve } from 'node:path';
import { createWorker, type Log, loadPlugins, type Worker } from '@boxcar/runtime';
import { checkRedis } from '../check-redis.js';
import { type Context, untilStopped } from '../context.js';
import { reportError } from '../report-error.js';
import { openStack, type Stack } from '../stack.js';

export interface WorkerFlags {
  readonly concurrency?: number;
  readonly target?: readonly string[];
  readonly plugin?: readonly string[];
  readonly leaseMs?: number;
  readonly graceMs?: number;
  /** False with `--no-door`. */
  readonly door: boolean;
}

/** A Redis that is away is said once, clearly, and is no reason not to start: turns are then taken from the rows. */
async function warnWithoutRedis(url: string | undefined, isJson: boolean): Promise<void> {
  if (url === undefined) return;
  try {
    await checkRedis(url);
  } catch (error) {
    reportError(error, { isJson, withStack: false });
  }
}

/** Stops everything in the order that loses least, whatever fails on the way. */
async function stopAll(parts: {
  readonly stack: Stack;
  readonly worker: Worker;
  readonly door: { close(): Promise<void> } | undefined;
  readonly graceMs: number;
  readonly log: Log;
}): Promise<void> {
  const steps: readonly [string, () => Promise<void> | undefined][] = [
    ['door', () => parts.door?.close()],
    ['worker', () => parts.worker.close({ graceMs: parts.graceMs })],
    ['stack', () => parts.stack.close()],
  ];
  for (const [part, close] of steps) {
    try {
      await close();
    } catch (error) {
      parts.log('warn', 'worker.stop_failed', { part, error });
    }
  }
}

/** `boxcar worker`: runs turns and serves the queue door until it is told to stop. */
export async function runWorker(context: Context, flags: WorkerFlags): Promise<number> {
  const { config, isJson, stop } = context;
  const log = context.log('info');
  const concurrency = flags.concurrency ?? config.concurrency;
  const targets = flags.target ?? config.workerTargets;
  const stack = await openStack(config, { log });
  let worker: Worker;
  let door: { close(): Promise<void> } | undefined;
  try {
    await loadPlugins(
      stack.runtime,
      (flags.plugin ?? config.plugins).map((path) => resolve(path)),
    );
    await warnWithoutRedis(config.redisUrl, isJson);
    worker = await createWorker(stack.runtime, {
      concurrency,
      targets,
      leaseMs: flags.leaseMs ?? config.leaseMs,
    });
    if (flags.door) door = stack.serveQueueDoor();
  } catch (error) {
    await stack.close().catch(() => undefined);
    throw error;
  }
  const queues = config.redisUrl === undefined ? 'postgres' : 'redis';
  const ready = { worker_id: worker.id, pid: process.pid, concurrency, targets, queues, door: flags.door };
  if (isJson) context.answer({ event: 'worker.ready', ...ready }, () => '');
  const pools = targets.map((target) => (target === '' ? 'default' : target)).join(', ');
  context.note(
    `worker ${worker.id} is ready (pools: ${pools}; ${concurrency} turns at once; queues on ${queues}${flags.door ? '' : '; no queue door'})`,
  );

  await untilStopped(stop);
  context.note(`stopping; ${worker.activeCount} turns in hand (again to stop at once)`);
  await stopAll({ stack, worker, door, graceMs: flags.graceMs ?? config.graceMs, log });
  if (isJson) context.answer({ event: 'worker.stopped', worker_id: ready.worker_id }, () => '');
  context.note('stopped');
  return 0;
}
