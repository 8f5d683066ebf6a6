/**
 * BullMQ on Redis or on Postgres, through one code path. It handles the cases that BullMQ leaves open when a server
 * goes away:
 *
 * B1  A queue or worker whose first connection failed is created again; BullMQ would keep that failure permanently.
 * B2  A worker's request to the server waits until the server is back. Otherwise BullMQ repeats it without a pause, and
 *     a job whose result could not be stored at the first try is failed.
 * B3  A queue's request fails while the server is away: the rows are more reliable than a backlog in memory.
 * B4  A worker that closes waits for the jobs in progress, and gives back a job that is being delivered to it.
 *     Disconnecting from the server ends in bounded time.
 * B5  The loss of a connection never ends the process. A Redis connection that owes an answer and is silent for 5 s is
 *     closed and replaced.
 * B6  A job whose data is not JSON fails once, with the reason (`unreadable-jobs.ts`).
 * B7  A job that is given back wakes another worker. BullMQ does not notify waiting workers when it puts back a job
 *     with a priority, and on Redis they check again only after five seconds.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError, readRedisUrl } from '@boxcar/kernel';
import { createDirectClient, endClient, toDatabaseError } from '@boxcar/store';
import {
  createPostgresBackend,
  createRedisBackend,
  type IQueueBackend,
  type Job,
  type Processor,
  type Queue,
  type QueueOptions,
  runMigrations,
  WaitingError,
  type WorkerOptions,
  withBackend,
} from 'bullmq';
import type { Cluster, Redis } from 'ioredis';
import type pg from 'pg';
import { clusterPrefix, connectCluster } from './connect-cluster.js';
import {
  type Connector,
  connectPostgres,
  connectRedis,
  GOODBYE_MS,
  QUEUE_SCHEMA,
  RETRY_MAX_MS,
} from './connectors.js';
import { Fetches } from './fetches.js';
import {
  type JobQueue,
  type JobWorker,
  type QueueConnection,
  type Queues,
  type WorkerSettings,
  within,
} from './job-queue.js';
import { failUnreadable } from './unreadable-jobs.js';

const workerOptions = (settings: WorkerSettings): Omit<WorkerOptions, 'connection'> => ({
  autorun: false,
  concurrency: settings.concurrency,
  // A job that was in progress when its process died is soon delivered again, and must never fail because of such
  // deliveries.
  maxStalledCount: 1_000_000,
  lockDuration: 10_000,
  stalledInterval: 5_000,
  runRetryDelay: RETRY_MAX_MS,
  ...(settings.keepCompleted
    ? { removeOnComplete: { age: 3600, count: 10_000 }, removeOnFail: { age: 24 * 3600, count: 10_000 } }
    : { removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } }),
});

type Classes<C> = ReturnType<typeof withBackend<IQueueBackend, C>>;

/** Created at the first use, and again after the first connection failed (B1). */
function lazily<T extends Opened>(make: () => T): () => T {
  let opened: T | undefined;
  return () => {
    if (opened !== undefined) return opened;
    const made = make();
    opened = made;
    made.on('error', () => undefined);
    made.waitUntilReady().catch(() => {
      if (opened === made) opened = undefined;
      made.close().catch(() => undefined);
    });
    return made;
  };
}

/** The prefix of BullMQ's keys. */
interface Prefix {
  readonly prefix?: string;
}

/** The jobs of a flow are in several queues; none of them is a queue of turns. */
const FLOWS = '';

interface Opened {
  on(event: 'error', listener: (error: Error) => void): unknown;
  waitUntilReady(): Promise<unknown>;
  close(): Promise<void>;
}

function openQueue<D>(make: () => Queue<D>): JobQueue<D> {
  const queue = lazily(make);
  return {
    add: async (...job) => queue().add(...(job as unknown as Parameters<Queue<D>['add']>)),
    addBulk: async (jobs) => queue().addBulk(jobs as unknown as Parameters<Queue<D>['addBulk']>[0]),
    getJobState: async (jobId) => queue().getJobState(jobId),
    getJob: async (jobId) => queue().getJob(jobId),
    remove: async (jobId) => queue().remove(jobId),
  };
}

function openWorker<D, R, C>(
  classes: Classes<C>,
  connector: Connector<C>,
  job: {
    readonly kind: QueueConnection['kind'];
    readonly name: string;
    readonly processor: Processor<D, R>;
    readonly settings: WorkerSettings;
    readonly prefix: Prefix;
  },
): JobWorker {
  const { kind, name, processor, settings, prefix } = job;
  let isClosing = false;
  const { connection, end } = connector.worker();
  let isPaused = false;
  const inHand = new Set<Promise<R>>();
  const givingBack = new Set<Promise<void>>();
  const giveBack = async (job: Job<D, R>, token: string | undefined): Promise<void> => {
    await job.moveToWait(token);
    // B7: a change of priority notifies the waiting workers, but puts the job after the others of its priority.
    if (kind === 'redis' && job.priority > 0) {
      await job.changePriority({ priority: job.priority });
      await job.changePriority({ priority: job.priority, lifo: true });
    }
    // On Postgres a job without a priority is put back at the end.
    if (kind === 'postgres' && job.priority === 0) await job.changePriority({ priority: 0, lifo: true });
  };
  /** How many jobs were delivered to this worker. */
  let brought = 0;
  const fetches = new Fetches();
  const work = async (next: Job<D, R>, token: string | undefined): Promise<R> => {
    if (!isClosing && settings.admit?.(next) !== false) return processor(next, token);
    pause();
    // A job that cannot be moved stays active until its lock ends, and is then delivered again.
    const giving = giveBack(next, token)
      .catch(settings.onError)
      .finally(() => givingBack.delete(giving));
    givingBack.add(giving);
    await giving;
    throw new WaitingError();
  };
  const make = () => {
    const worker = failUnreadable(
      new classes.Worker<D, R>(
        name,
        (next, token) => {
          const working = work(next as Job<D, R>, token);
          inHand.add(working);
          const forget = (): void => void inHand.delete(working);
          working.then(forget, forget);
          return working;
        },
        { ...workerOptions(settings), ...prefix, connection } as WorkerOptions<C>,
      ),
      settings.onUnreadable,
    );
    fetches.watch(worker);
    worker.on('error', settings.onError);
    worker.on('active', () => void brought++);
    if (settings.onEmpty !== undefined) worker.on('drained', settings.onEmpty);
    return worker;
  };
  let worker = make();
  // BullMQ sets its flag at once and reports failures as errors of the worker.
  const pause = (): void => {
    if (isPaused || isClosing) return;
    isPaused = true;
    worker.pause(true).catch(settings.onError);
  };
  const resume = (): void => {
    if (!isPaused || isClosing) return;
    isPaused = false;
    // A job that is still being put back would not be found.
    if (givingBack.size === 0) takeAgain();
    else void Promise.all(givingBack).then(takeAgain);
  };
  // BullMQ reports an empty queue only after the queue had a job.
  const tellIfEmpty = async (onEmpty: () => void): Promise<void> => {
    const before = brought;
    const counts = await worker.getBackend().getCounts(['waiting', 'prioritized']);
    if (counts.some((count) => count > 0)) return;
    // A job that the server has given to this worker is not counted any more, and may not have arrived yet.
    await fetches.settled();
    // After a job that was delivered meanwhile, there may be more jobs.
    if (brought === before) onEmpty();
  };
  const takeAgain = (): void => {
    if (isPaused || isClosing) return;
    if (settings.onEmpty !== undefined) tellIfEmpty(settings.onEmpty).catch(() => undefined);
    worker.resume().catch(settings.onError);
    // BullMQ does not restart a worker whose loop is ending at this moment.
    setImmediate(() => {
      if (!isPaused && !isClosing && !worker.isRunning()) worker.run().catch(settings.onError);
    });
  };
  const run = async (): Promise<void> => {
    for (;;) {
      try {
        await worker.waitUntilReady();
        // `resume` starts a worker that is paused from the start.
        if (!isClosing && !isPaused && !worker.isRunning()) await worker.run();
        return;
      } catch (error) {
        if (isClosing) return;
        settings.onError(error);
        await worker.close().catch(settings.onError);
        await delay(RETRY_MAX_MS, undefined, { ref: false });
        if (isClosing) return;
        worker = make();
        if (isPaused) await worker.pause(true);
      }
    }
  };
  void run();
  return {
    pause,
    resume,
    close: async () => {
      isClosing = true;
      const closing = worker.close();
      // Closing a worker whose server is away can hang, so the jobs in progress are awaited here.
      while (inHand.size > 0) await Promise.allSettled(inHand);
      await within(closing, GOODBYE_MS).catch(settings.onError);
      end();
    },
  };
}

/** @param prefixOf - The key prefix for a queue; default: BullMQ's own prefix. */
function openOn<C>(
  kind: QueueConnection['kind'],
  classes: Classes<C>,
  { connector, prefixOf = () => ({}) }: { connector: Connector<C>; prefixOf?: (queue: string) => Prefix },
): Queues {
  return {
    kind,
    queue: <D>(name: string): JobQueue<D> =>
      openQueue<D>(
        () =>
          new classes.Queue<D>(name, {
            ...prefixOf(name),
            connection: connector.queue(),
          } as QueueOptions<C>) as unknown as Queue<D>,
      ),
    flow: () => {
      const flow = lazily(
        () => new classes.FlowProducer({ ...prefixOf(FLOWS), connection: connector.queue() }),
      );
      return { addBulk: async (flows) => flow().addBulk(flows) };
    },
    worker: (name, processor, settings) =>
      openWorker(classes, connector, { kind, name, processor, settings, prefix: prefixOf(name) }),
    close: () => connector.close(),
  };
}

/**
 * Opens the queues. Connections are made lazily, and again after every loss.
 *
 * @throws KernelError `bad_config` for a URL that is neither of Redis nor of Postgres.
 */
export function openQueues(connection: QueueConnection): Queues {
  const { kind, url } = connection;
  if (kind === 'postgres') {
    const classes = withBackend(createPostgresBackend) as unknown as Classes<pg.Pool>;
    return openOn('postgres', classes, { connector: connectPostgres(url) });
  }
  const read = readRedisUrl(url);
  if (read.problem !== undefined)
    throw new KernelError('bad_config', { message: `REDIS_URL: ${read.problem}.` });
  const { address } = read;
  if (address.kind === 'server') {
    const classes = withBackend(createRedisBackend) as unknown as Classes<Redis>;
    return openOn('redis', classes, { connector: connectRedis(url) });
  }
  return openOn('redis', withBackend(createRedisBackend) as unknown as Classes<Cluster>, {
    connector: connectCluster(address),
    prefixOf: (queue) => ({ prefix: clusterPrefix(address.name, queue) }),
  });
}

/** Creates or updates BullMQ's own tables in Postgres. Idempotent; run on every deploy. */
export async function migrateQueues(databaseUrl: string): Promise<void> {
  const client = createDirectClient({
    connectionString: databaseUrl,
    applicationName: 'boxcar migrate',
    queryMs: Number.POSITIVE_INFINITY,
  });
  try {
    await client.connect();
    await runMigrations(client, QUEUE_SCHEMA);
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    await endClient(client);
  }
}
