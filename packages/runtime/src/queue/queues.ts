/**
 * BullMQ on Redis or on Postgres, behind one code path. It owns what BullMQ leaves open when a server goes away:
 *
 * B1  A queue or worker whose first connection failed is made anew; BullMQ would keep that failure for good.
 * B2  What a worker asks of the server waits until the server is back. Otherwise BullMQ asks again without a pause, and
 *     a job whose answer could not be stored at the first try is failed.
 * B3  What a queue asks fails while the server is away: the rows know better than a backlog in memory.
 * B4  A worker that closes waits for the jobs in hand and gives back what it was just being handed; the goodbyes to the
 *     server end in bounded time.
 * B5  The loss of a connection never ends the process. A Redis connection that owes an answer and says nothing for 5 s
 *     is closed and replaced.
 * B6  A job whose data is not JSON fails once, with the reason (`unreadable-jobs.ts`).
 * B7  A job that is given back wakes another worker. BullMQ does not notify waiting workers when it puts back a job with a
 *     priority, and on Redis they check again only after five seconds.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel';
import {
  createDirectClient,
  endClient,
  isTransient,
  limitsOf,
  SILENCE_MARGIN_MS,
  startupOptions,
  toDatabaseError,
} from '@boxcar/store';
import {
  createPostgresBackend,
  createRedisBackend,
  type FlowJob,
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
import { Redis, type RedisOptions } from 'ioredis';
import pg from 'pg';
import { failUnreadable, type UnreadableJob } from './unreadable-jobs.js';

/** Where the queues live. */
export type QueueConnection =
  | { readonly kind: 'redis'; readonly url: string }
  | { readonly kind: 'postgres'; readonly url: string };

/** BullMQ keeps its tables in a schema of its own. */
const QUEUE_SCHEMA = 'bullmq';

export interface NewJobOptions {
  readonly jobId: string;
  readonly removeOnComplete: boolean;
  readonly removeOnFail: boolean;
  /** The lowest priority is delivered first. 0 is before all others. */
  readonly priority?: number;
}

/** What we use of a BullMQ queue. */
export interface JobQueue<D> {
  add(name: string, data: D, opts: NewJobOptions): Promise<unknown>;
  addBulk(jobs: { name: string; data: D; opts: NewJobOptions }[]): Promise<unknown>;
  getJobState(jobId: string): Promise<string>;
  getJob(jobId: string): Promise<
    | {
        promote(): Promise<void>;
        changePriority(opts: { readonly priority: number }): Promise<void>;
        returnvalue: unknown;
        failedReason?: string;
      }
    | undefined
  >;
  /** 0 when a worker has it in hand, or one of its children. */
  remove(jobId: string): Promise<number>;
}

/** What we use of BullMQ's flows: jobs with jobs below them, which are delivered when those have ended. */
export interface JobFlow {
  addBulk(flows: FlowJob[]): Promise<unknown>;
}

export interface JobWorker {
  /** Takes no more jobs until `resume`. A job that is on its way may still arrive. */
  pause(): void;
  resume(): void;
  /** Takes no more jobs, waits for those in hand. */
  close(): Promise<void>;
}

export interface WorkerSettings {
  readonly concurrency: number;
  readonly onError: (error: unknown) => void;
  /** Called when a job is failed because its data is not JSON. */
  readonly onUnreadable?: (job: UnreadableJob) => void;
  readonly keepCompleted: boolean;
  /** Called just before a job is processed. False: the job is put back (B7), and the worker pauses. */
  readonly admit?: (job: Job) => boolean;
  /** Called when the queue had no further job. */
  readonly onEmpty?: () => void;
}

/** Opens queues and workers on one backend and closes what they share. */
export interface Queues {
  readonly kind: QueueConnection['kind'];
  queue<D>(name: string): JobQueue<D>;
  flow(): JobFlow;
  worker<D, R>(name: string, processor: Processor<D, R>, settings: WorkerSettings): JobWorker;
  close(): Promise<void>;
}

const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 1_000;
/** How many Postgres connections the statements of all queues of a process share. */
const QUEUE_CONNECTIONS = 7;
/** How long saying goodbye to a server may take. */
const GOODBYE_MS = 2_000;
/** A Redis connection that is silent for this time although an answer is due is closed; ioredis opens a new one. */
const SILENCE_MS = 5_000;
/**
 * The limit of the connection on which a BullMQ worker waits for jobs. A wait lasts 10 s at most, and BullMQ replaces the
 * connection 1 s after the end of a wait without an answer. BullMQ does not watch the start of a connection; this limit
 * does.
 */
const BLOCKING_SILENCE_MS = 15_000;

/** Parts of at most `size`: what one call to the queue takes. */
export function* chunks<T>(items: readonly T[], size: number): Generator<readonly T[]> {
  for (let from = 0; from < items.length; from += size) yield items.slice(from, from + size);
}

/** Settles like `work`, or rejects after `ms`; a late failure of `work` is nobody's any more. */
export async function within<T>(work: Promise<T>, ms: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  work.catch(() => undefined);
  try {
    return await Promise.race([
      work,
      new Promise<never>((_resolve, reject) => {
        timer = setTimeout(() => reject(new Error(`the queue did not answer within ${ms} ms`)), ms);
      }),
    ]);
  } finally {
    clearTimeout(timer);
  }
}

const workerOptions = (settings: WorkerSettings): Omit<WorkerOptions, 'connection'> => ({
  autorun: false,
  concurrency: settings.concurrency,
  // A job that was in hand when its process died is given again, soon; it must never fail for that.
  maxStalledCount: 1_000_000,
  lockDuration: 10_000,
  stalledInterval: 5_000,
  runRetryDelay: RETRY_MAX_MS,
  ...(settings.keepCompleted
    ? { removeOnComplete: { age: 3600, count: 10_000 }, removeOnFail: { age: 24 * 3600, count: 10_000 } }
    : { removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } }),
});

/** Where BullMQ's connections come from: one for all queues, and one for each worker. */
interface Connector<C> {
  queue(): C;
  worker(): WorkerConnection<C>;
  close(): Promise<void>;
}

interface WorkerConnection<C> {
  readonly connection: C;
  /** For a worker that has closed: what it still holds is closed, and it gets no further connection. */
  end(): void;
}

type Classes<C> = ReturnType<typeof withBackend<IQueueBackend, C>>;

/** Made at its first use, and again after its first connection failed (B1). */
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

interface Opened {
  on(event: 'error', listener: (error: Error) => void): unknown;
  waitUntilReady(): Promise<unknown>;
  close(): Promise<void>;
}

function openQueue<D>(make: () => Queue<D>): JobQueue<D> {
  const queue = lazily(make);
  return {
    add: (...job) => queue().add(...(job as unknown as Parameters<Queue<D>['add']>)),
    addBulk: (jobs) => queue().addBulk(jobs as unknown as Parameters<Queue<D>['addBulk']>[0]),
    getJobState: (jobId) => queue().getJobState(jobId),
    getJob: (jobId) => queue().getJob(jobId),
    remove: (jobId) => queue().remove(jobId),
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
  },
): JobWorker {
  const { kind, name, processor, settings } = job;
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
  const work = async (next: Job<D, R>, token: string | undefined): Promise<R> => {
    brought++;
    if (!isClosing && settings.admit?.(next) !== false) return processor(next, token);
    pause();
    // What cannot be moved stays active until its lock ends, and is given again then.
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
        { ...workerOptions(settings), connection } as WorkerOptions<C>,
      ),
      settings.onUnreadable,
    );
    worker.on('error', settings.onError);
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
  const queue = lazily(() => new classes.Queue(name, { connection: connector.queue() } as QueueOptions<C>));
  // BullMQ reports an empty queue only after the queue had a job.
  const tellIfEmpty = async (onEmpty: () => void): Promise<void> => {
    const before = brought;
    const counts = await queue().getJobCounts('waiting', 'prioritized');
    // A job that was delivered meanwhile may be followed by others.
    if (brought === before && Object.values(counts).every((count) => count === 0)) onEmpty();
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
        // A worker that is paused from the start is started by `resume`.
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
      // Closing a worker whose server is away can hang, so what counts is waited for here.
      while (inHand.size > 0) await Promise.allSettled(inHand);
      await within(closing, GOODBYE_MS).catch(settings.onError);
      end();
    },
  };
}

function openOn<C>(kind: QueueConnection['kind'], classes: Classes<C>, connector: Connector<C>): Queues {
  return {
    kind,
    queue: <D>(name: string): JobQueue<D> =>
      openQueue<D>(
        () =>
          new classes.Queue<D>(name, {
            connection: connector.queue(),
          } as QueueOptions<C>) as unknown as Queue<D>,
      ),
    flow: () => {
      const flow = lazily(() => new classes.FlowProducer({ connection: connector.queue() }));
      return { addBulk: (flows) => flow().addBulk(flows) };
    },
    worker: (name, processor, settings) =>
      openWorker(classes, connector, { kind, name, processor, settings }),
    close: () => connector.close(),
  };
}

/**
 * The connection of a worker to the pool of its process. Its statements are repeated while the server is away (B2), until
 * the worker has closed. BullMQ can check out a connection for LISTEN after the worker has closed, when the worker was
 * closed while it started; it never returns that connection.
 */
function patientPool(pool: pg.Pool): WorkerConnection<pg.Pool> {
  let isEnded = false;
  const held = new Set<pg.PoolClient>();
  pool.options.max += 1;
  const query = async (text: string, values: unknown[]): Promise<pg.QueryResult> => {
    for (let pauseMs = RETRY_MIN_MS; ; pauseMs = Math.min(pauseMs * 2, RETRY_MAX_MS)) {
      try {
        return await pool.query(text, values);
      } catch (error) {
        if (isEnded || !isTransient(toDatabaseError(error))) throw error;
        await delay(pauseMs, undefined, { ref: false });
      }
    }
  };
  const connect = async (): Promise<pg.PoolClient> => {
    const client = await pool.connect();
    const release = client.release.bind(client);
    if (isEnded) {
      release(true);
      throw new Error('The worker of this queue has closed.');
    }
    held.add(client);
    client.release = (how) => {
      held.delete(client);
      release(how);
    };
    return client;
  };
  const patient = {
    query,
    connect,
    end: async () => undefined,
    on: (event: 'error', listener: (error: Error) => void) => pool.on(event, listener),
    options: pool.options,
  };
  return {
    connection: patient as unknown as pg.Pool,
    end: () => {
      if (isEnded) return;
      isEnded = true;
      for (const client of held) client.release(true);
      pool.options.max -= 1;
    },
  };
}

function connectPostgres(url: string): Connector<pg.Pool> {
  const limits = limitsOf();
  // One pool for all queues of the process. Each worker keeps a connection for LISTEN and adds one to this limit.
  const pool = new pg.Pool({
    connectionString: url,
    max: QUEUE_CONNECTIONS,
    // The transactions of BullMQ hold locks too.
    options: `-c search_path=${QUEUE_SCHEMA} ${startupOptions(limits)}`,
    query_timeout: limits.statementMs + SILENCE_MARGIN_MS,
    keepAlive: true,
    connectionTimeoutMillis: 5_000,
    application_name: 'boxcar-queues',
  });
  // Each queue and worker listens for errors of its own.
  pool.setMaxListeners(0).on('error', () => undefined);
  const clients = new Set<pg.PoolClient>();
  pool.on('connect', (client) => {
    // BullMQ checks connections out and does not always listen for their errors.
    client.on('error', () => undefined);
    clients.add(client);
  });
  pool.on('remove', (client) => clients.delete(client));
  return {
    queue: () => pool,
    worker: () => patientPool(pool),
    close: async () => {
      const ended = pool.end();
      await within(ended, GOODBYE_MS).catch(() => {
        // A worker that could not say goodbye has kept its connections.
        for (const client of clients) client.connection.stream.destroy();
      });
    },
  };
}

function connectRedis(url: string): Connector<Redis> {
  const clients = new Set<Redis>();
  const track = (client: Redis): Redis => {
    client.on('error', () => undefined);
    clients.add(client);
    // BullMQ itself opens a second connection for each worker, and waits for jobs on it.
    const duplicate = client.duplicate.bind(client);
    client.duplicate = (options) => track(duplicate({ ...options, socketTimeout: BLOCKING_SILENCE_MS }));
    return client;
  };
  const open = (options: RedisOptions): Redis =>
    track(
      new Redis(url, {
        ...options,
        replyMapping: 'legacy',
        // Runs only while a command waits for its answer: an idle connection costs nothing. The new connection sends such
        // a command again, so the command may take effect twice. BullMQ refuses to end a job a second time and to add an
        // id twice. A job whose delivery was lost is delivered again after its lock ends, and the sweep rings for its
        // turn again.
        socketTimeout: SILENCE_MS,
        // The end of a blocking connection goes unnoticed, and it keeps the process alive for as long as this.
        disconnectTimeout: 50,
        retryStrategy: (times: number) => Math.min(times * RETRY_MIN_MS, RETRY_MAX_MS),
      }),
    );
  let shared: Redis | undefined;
  return {
    queue: () =>
      (shared ??= open({ enableOfflineQueue: false, maxRetriesPerRequest: 1, commandTimeout: SILENCE_MS })),
    worker: () => ({ connection: open({ maxRetriesPerRequest: null }), end: () => undefined }),
    close: async () => {
      for (const client of clients) client.disconnect();
    },
  };
}

/**
 * Opens the queues. Connections are made lazily and again after every loss.
 *
 * @throws KernelError `bad_config` for a URL of neither kind.
 */
export function openQueues(connection: QueueConnection): Queues {
  const { kind, url } = connection;
  if (kind === 'postgres') {
    const classes = withBackend(createPostgresBackend) as unknown as Classes<pg.Pool>;
    return openOn('postgres', classes, connectPostgres(url));
  }
  if (!/^rediss?:\/\//.test(url))
    throw new KernelError('bad_config', {
      message: 'REDIS_URL: begins with neither redis:// nor rediss://.',
    });
  return openOn('redis', withBackend(createRedisBackend) as unknown as Classes<Redis>, connectRedis(url));
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
