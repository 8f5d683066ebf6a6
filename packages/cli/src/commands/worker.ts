import { resolve } from 'node:path';
import { createWorker, type Log, loadPlugins, type Worker } from '@boxcar/runtime';
import type { Command } from 'commander';
import { checkRedis } from '../check-redis.js';
import { collect, flag, helpOf, type Run, same } from '../command.js';
import { settingSchemas } from '../config.js';
import { type Context, untilStopped } from '../context.js';
import { reportError } from '../report-error.js';
import { openStack, type Stack } from '../stack.js';

interface WorkerFlags {
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
async function runWorker(context: Context, flags: WorkerFlags): Promise<number> {
  const { config, isJson, stop } = context;
  const log = context.log('info');
  const concurrency = flags.concurrency ?? config.concurrency;
  const targets = flags.target ?? config.workerTargets;
  const graceMs = flags.graceMs ?? config.graceMs;
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
      graceMs,
    });
    if (flags.door) {
      const doors = [stack.serveQueueDoor(), stack.serveToolResultsDoor()];
      door = { close: async () => void (await Promise.all(doors.map((each) => each.close()))) };
    }
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

  const outdated = await Promise.race([untilStopped(stop), worker.outdated]);
  context.note(`stopping; ${worker.activeCount} turns in hand (again to stop at once)`);
  await stopAll({ stack, worker, door, graceMs, log });
  if (isJson) context.answer({ event: 'worker.stopped', worker_id: ready.worker_id }, () => '');
  context.note('stopped');
  if (outdated !== undefined) throw outdated;
  return 0;
}

export function addWorker(program: Command, run: Run): void {
  program
    .command('worker')
    .description('Run turns, and accept primitives from the queue boxcar-primitives, until told to stop.')
    .option('--concurrency <n>', 'turns at once', flag(settingSchemas.concurrency))
    .option(
      '--target <name>',
      "a pool to serve, repeatable; '' is the default pool",
      collect(flag(settingSchemas.workerTarget)),
    )
    .option('--plugin <file>', 'a module that registers handlers and tools, repeatable', collect(same))
    .option('--lease-ms <ms>', 'how long its turns stay its own without news', flag(settingSchemas.leaseMs))
    .option(
      '--grace-ms <ms>',
      'how long turns in hand may take to their next commit when it stops',
      flag(settingSchemas.graceMs),
    )
    .option('--no-door', 'do not serve the queues boxcar-primitives and boxcar-tool-results')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'SIGTERM and Ctrl-C finish the steps in hand and give the turns back; the second one stops at once.',
        examples: [
          'boxcar worker --concurrency 50 --plugin ./my-tools.js',
          "boxcar worker --target gpu --target ''",
        ],
      }),
    )
    .action((flags: WorkerFlags) => run((context) => runWorker(context, flags)));
}
