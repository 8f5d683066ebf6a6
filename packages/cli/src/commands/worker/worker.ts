import { resolve } from 'node:path';
import { settingSchemas } from '@boxcar/host/config';
import { reportError } from '@boxcar/host/errors';
import { openStack, type Stack, untilReachable } from '@boxcar/host/open';
import { KernelError } from '@boxcar/kernel';
import { createWorker, loadPlugins, type Worker, withinTime } from '@boxcar/runtime';
import type { Command } from 'commander';
import { collect, EXIT, flag, helpOf, notBlank, type Run } from '../../command.js';
import { type Context, untilStopped } from '../../context.js';
import { CRASH_GRACE_MS } from '../../exit.js';
import { checkRedis } from '../admin/check-redis.js';

interface WorkerFlags {
  readonly concurrency?: number;
  readonly target?: readonly string[];
  readonly plugin?: readonly string[];
  readonly leaseMs?: number;
  readonly graceMs?: number;
  readonly handlerTimeoutMs?: number;
  /** False with `--no-door`. */
  readonly door: boolean;
}

/** Warns once when Redis is unavailable. The worker starts anyway, and takes turns from the rows. */
async function warnWithoutRedis(url: string | undefined, isJson: boolean): Promise<void> {
  if (url === undefined) return;
  try {
    await checkRedis(url);
  } catch (error) {
    reportError(error, { isJson, withStack: false });
  }
}

/** The maximum part of the grace time that is reserved for handing turns back and closing connections. */
const LEAVING_MS = 3_000;
const LEAVING_SHARE = 0.3;
/** The last part of that time, for closing the connections. */
const CONNECTIONS_MS = 1_000;

/** The part of the crash time that remains for the end of the process. */
const LEAVING_RESERVE_MS = 1_000;

/** A part of a worker that could not be closed, and why. */
interface NotClosed {
  readonly part: 'queue doors' | 'worker' | 'connections';
  readonly reason: string;
}

const reasonsOf = (error: unknown): string =>
  error instanceof AggregateError
    ? error.errors.map(reasonsOf).join('; ')
    : error instanceof Error
      ? error.message
      : String(error);

/**
 * Stops everything within the grace time, whichever servers are unavailable. Turns may run for the first part of it. A grace of less than a
 * few seconds is exceeded when a server does not answer.
 */
async function stopAll(parts: {
  readonly stack: Stack;
  readonly worker: Worker;
  readonly door: { close(): Promise<void> } | undefined;
  readonly graceMs: number;
  /** The error, when a bug ends the process. */
  readonly crash: KernelError | undefined;
}): Promise<readonly NotClosed[]> {
  const startedAt = performance.now();
  const turnsMs = Math.max(parts.graceMs - LEAVING_MS, parts.graceMs * (1 - LEAVING_SHARE));
  const endsAt = startedAt + Math.max(parts.graceMs, turnsMs + LEAVING_MS);
  const notClosed: NotClosed[] = [];
  const attempt = async (
    part: NotClosed['part'],
    closing: Promise<void> | undefined,
    untilMs: number,
  ): Promise<void> => {
    try {
      if (closing !== undefined)
        await withinTime(closing, Math.max(untilMs - performance.now(), 0), 'the goodbye');
    } catch (error) {
      notClosed.push({ part, reason: reasonsOf(error) });
    }
  };
  // When a server does not answer one of them, the other must still close.
  await Promise.all([
    attempt('queue doors', parts.door?.close(), endsAt - CONNECTIONS_MS),
    attempt('worker', parts.worker.close({ graceMs: turnsMs, crash: parts.crash }), endsAt - CONNECTIONS_MS),
  ]);
  await attempt('connections', parts.stack.close(), endsAt);
  return notClosed;
}

/** `boxcar worker`: runs turns and serves the queue door until it is told to stop. */
async function runWorker(context: Context, flags: WorkerFlags): Promise<number> {
  const { config, isJson, stop } = context;
  const log = context.log('info');
  const concurrency = flags.concurrency ?? config.concurrency;
  const targets = flags.target ?? config.workerTargets;
  const graceMs = flags.graceMs ?? config.graceMs;
  const handlerTimeoutMs = flags.handlerTimeoutMs ?? config.handlerTimeoutMs;
  const stack = await openStack({ ...config, handlerTimeoutMs, embeddedKeepMs: undefined }, { log });
  let worker: Worker;
  let door: { close(): Promise<void> } | undefined;
  try {
    await loadPlugins(
      stack.runtime,
      (flags.plugin ?? config.plugins).map((path) => resolve(path)),
    );
    await warnWithoutRedis(config.redisUrl, isJson);
    const options = {
      concurrency,
      targets,
      leaseMs: flags.leaseMs ?? config.leaseMs,
      graceMs,
      watchdog: true,
    };
    // The database may become unreachable again, or only the direct connection may be refused.
    worker = await untilReachable(() => createWorker(stack.runtime, options), {
      waitMs: config.databaseWaitMs,
      log,
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
  context.note(`stopping; ${worker.activeCount} turns in progress (a second signal stops it at once)`);
  const crash = stop.reason instanceof KernelError ? stop.reason : undefined;
  const notClosed = await stopAll({
    stack,
    worker,
    door,
    crash,
    graceMs: crash === undefined ? graceMs : Math.min(graceMs, CRASH_GRACE_MS - LEAVING_RESERVE_MS),
  });
  for (const { part, reason } of notClosed) context.note(`could not close the ${part}: ${reason}`);
  if (isJson)
    context.answer({ event: 'worker.stopped', worker_id: ready.worker_id, not_closed: notClosed }, () => '');
  context.note('stopped');
  if (outdated !== undefined) throw outdated;
  // If the worker could not be closed, its turns wait for the end of its lease. Unclosed queues are not an error: they
  // hold no facts.
  return notClosed.some(({ part }) => part === 'worker') ? EXIT.error : EXIT.success;
}

export function addWorker(program: Command, run: Run): void {
  program
    .command('worker')
    .option('--concurrency <n>', 'turns at once', flag(settingSchemas.concurrency))
    .option(
      '--target <name>',
      "a pool to serve, repeatable; '' is the default pool",
      collect(flag(settingSchemas.workerTarget)),
    )
    .option('--plugin <file>', 'a module that registers handlers and tools, repeatable', collect(notBlank))
    .option(
      '--lease-ms <ms>',
      'how long a silent worker keeps its turns before others take over',
      flag(settingSchemas.leaseMs),
    )
    .option(
      '--grace-ms <ms>',
      'on shutdown, how long to wait for running steps',
      flag(settingSchemas.graceMs),
    )
    .option(
      '--handler-timeout-ms <ms>',
      'time limit for a handler that no turn calls',
      flag(settingSchemas.handlerTimeoutMs),
    )
    .option('--no-door', 'do not serve the queues boxcar-primitives and boxcar-tool-results')
    .addHelpText(
      'after',
      helpOf({
        remarks:
          'After SIGTERM, SIGHUP or Ctrl-C, the worker finishes the steps in progress and hands the turns back, within the grace time. A second signal stops it at once.',
        examples: [
          'boxcar worker --concurrency 50 --plugin ./my-tools.mjs',
          "boxcar worker --target gpu --target ''",
        ],
        further: ['  4  a tool blocked the event loop; start the worker again'],
      }),
    )
    .action((flags: WorkerFlags) => run((context) => runWorker(context, flags)));
}
