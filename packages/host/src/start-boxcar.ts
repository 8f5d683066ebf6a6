/**
 * One call opens everything that a separate program needs: database, schema, queues, models and workers. It also ends them in the right
 * order.
 *
 * S1  `close` closes everything that the call has opened: first the workers, which hand their turns back, then queues and connections,
 *     then the embedded server.
 * S2  At SIGINT, SIGTERM and SIGHUP the workers stop, and the process exits with the code that a shell expects (130, 143, 129). The exit
 *     also leaves the embedded server, even while that server is still being started. A second signal ends the process at once. The
 *     runtime stays open until then, so that no wait of the program fails in between.
 * S3  With `handleSignals: false` no signal listener is installed: the program decides when to close. Other listeners do not count as a
 *     decision, since libraries that clean up at a signal (signal-exit) also listen and leave the exit to other code.
 */
import { constants } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import type { Model } from '@boxcar/kernel';
import type { ModelRouterOptions } from '@boxcar/llm';
import { createWorker, type Log, type Worker, type WorkerOptions } from '@boxcar/runtime';
import { parseConfig } from './config.js';
import { childEnvironment, declareEnvironmentSecrets } from './environment.js';
import { createProcessLog } from './log.js';
import { openStack, type Stack } from './stack.js';

export interface StartOptions {
  /** Default: `DATABASE_URL`, else the embedded Postgres of this account. */
  readonly databaseUrl?: string;
  /** The same database without a transaction pooler. Default: `databaseUrl`, else `DATABASE_DIRECT_URL`. */
  readonly directUrl?: string;
  /** A standby of the database, for lists. Default: `DATABASE_READ_URL`, unless `databaseUrl` is given. */
  readonly readUrl?: string;
  /** Default: `REDIS_URL`. Without it, or when it is empty, the queues are in Postgres. */
  readonly redisUrl?: string;
  /** False: a database that is given by URL must already be migrated. Default true. */
  readonly migrate?: boolean;
  /** False: the program handles signals itself, and calls `close`. Default true: SIGINT, SIGTERM and SIGHUP end the process. */
  readonly handleSignals?: boolean;
  /** Replaces the models below. */
  readonly model?: Model;
  /** The functions of `scripted:<name>`, custom adapters, and providers that replace those of the environment. */
  readonly models?: ModelRouterOptions;
  /** Default: warnings and errors on stderr; `BOXCAR_LOG_LEVEL` changes the level. */
  readonly log?: Log;
}

/** A runtime with everything that was opened for it. */
export interface Boxcar extends Stack {
  /** Fires when a signal asks the process to stop; never with `handleSignals: false`. */
  readonly stopping: AbortSignal;
  /**
   * Runs turns in this process, until `close`. Register handlers and tools first. The defaults are those of the environment
   * (`BOXCAR_CONCURRENCY`, `BOXCAR_WORKER_TARGETS`, `BOXCAR_LEASE_MS`, `BOXCAR_GRACE_MS`).
   */
  startWorker(options?: WorkerOptions): Promise<Worker>;
}

interface Opened {
  readonly stopping: AbortController;
  stopWorkers(): Promise<void>;
  /** Reports why the workers did not stop. */
  report(error: unknown): void;
}

/** How long `close` waits for a worker that is being started. */
const START_LIMIT_MS = 5_000;
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
const opened = new Set<Opened>();
let isStopping = false;

/** S2. */
function onSignal(name: NodeJS.Signals): void {
  const exit = (): never => process.exit(128 + constants.signals[name]);
  if (isStopping) exit();
  isStopping = true;
  const all = [...opened];
  for (const { stopping } of all) stopping.abort();
  const stops = all.map((each) => each.stopWorkers().catch((error: unknown) => each.report(error)));
  void Promise.all(stops).then(exit);
}

function watchSignals(one: Opened): void {
  if (opened.size === 0) for (const name of SIGNALS) process.on(name, onSignal);
  opened.add(one);
}

function forgetSignals(one: Opened): void {
  if (opened.delete(one) && opened.size === 0) for (const name of SIGNALS) process.off(name, onSignal);
}

/**
 * Opens the database of `databaseUrl`, of `DATABASE_URL` or the embedded one, migrates it, and opens the runtime on it. All other settings
 * are those of the environment (`boxcar --help`).
 *
 * @throws KernelError `bad_config` naming every wrong setting; `database_unavailable`, `schema_outdated`; all errors of the embedded
 * server.
 */
export async function startBoxcar(options: StartOptions = {}): Promise<Boxcar> {
  const {
    databaseUrl,
    directUrl,
    readUrl,
    redisUrl,
    migrate = true,
    handleSignals = true,
    ...stackOptions
  } = options;
  const env = childEnvironment({
    // The environment's direct connection and standby belong to another database.
    ...(databaseUrl === undefined
      ? {}
      : { DATABASE_URL: databaseUrl, DATABASE_DIRECT_URL: undefined, DATABASE_READ_URL: undefined }),
    ...(directUrl === undefined ? {} : { DATABASE_DIRECT_URL: directUrl }),
    ...(readUrl === undefined ? {} : { DATABASE_READ_URL: readUrl }),
    ...(redisUrl === undefined ? {} : { REDIS_URL: redisUrl }),
  });
  const config = parseConfig(env);
  const secrets = declareEnvironmentSecrets(env);
  const log = options.log ?? createProcessLog(config.logLevel ?? 'warn', { isJson: false });
  const workers = new Set<Promise<Worker>>();
  const one: Opened = {
    stopping: new AbortController(),
    stopWorkers: async () => {
      // A worker whose start waits for an unresponsive server is closed later, when its start completes.
      const closing = [...workers].map((worker) => worker.then((started) => started.close()));
      const starting = [...workers].map((worker) =>
        Promise.race([worker, delay(START_LIMIT_MS, undefined, { ref: false })]),
      );
      const isStarted = (await Promise.allSettled(starting)).map(
        (each) => each.status === 'fulfilled' && each.value !== undefined,
      );
      for (const each of closing) each.catch(() => undefined);
      const closed = await Promise.allSettled(closing.filter((_each, index) => isStarted[index]));
      const failures = closed.flatMap((each) => (each.status === 'rejected' ? [each.reason] : []));
      if (failures.length > 0) throw new AggregateError(failures, 'A worker could not be closed.');
    },
    report: (error) => log('error', 'workers.not_stopped', { error }),
  };
  if (handleSignals) watchSignals(one);
  let stack: Stack;
  try {
    stack = await openStack(config, { ...stackOptions, log, migrate });
  } catch (error) {
    forgetSignals(one);
    secrets[Symbol.dispose]();
    throw error;
  }
  let closing: Promise<void> | undefined;
  const end = async (): Promise<void> => {
    // From here on the runtime refuses new workers, because they would not be stopped.
    stack.runtime.beginClose();
    try {
      await one.stopWorkers();
    } finally {
      await stack.close();
      forgetSignals(one);
      secrets[Symbol.dispose]();
    }
  };
  const close = (): Promise<void> => {
    closing ??= end();
    return closing;
  };
  return {
    ...stack,
    stopping: one.stopping.signal,
    startWorker: (given = {}) => {
      const { concurrency, workerTargets, leaseMs, graceMs } = config;
      const worker = createWorker(stack.runtime, {
        ...{ concurrency, targets: workerTargets, leaseMs, graceMs },
        ...given,
      });
      workers.add(worker);
      return worker;
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}
