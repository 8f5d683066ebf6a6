/**
 * BullMQ on Redis or on Postgres, behind one code path. It owns what BullMQ leaves open when a server goes away:
 *
 * B1  A queue or worker whose first connection failed is made anew; BullMQ would keep that failure for good.
 * B2  What a worker asks of the server waits until the server is back. Otherwise BullMQ asks again without a pause, and
 *     a job whose answer could not be stored at the first try is failed.
 * B3  What a queue asks fails while the server is away: the rows know better than a backlog in memory.
 * B4  A worker that closes waits for the jobs in hand and gives back what it was just being handed; the goodbyes to the
 *     server end in bounded time.
 * B5  The loss of a connection never ends the process.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel';
import { isTransient, toDatabaseError } from '@boxcar/store';
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

/** Where the queues live. */
export type QueueConnection =
  | { readonly kind: 'redis'; readonly url: string }
  | { readonly kind: 'postgres'; readonly url: string };

/** BullMQ keeps its tables in a schema of its own. */
const QUEUE_SCHEMA = 'bullmq';

/** What we use of a BullMQ queue. */
export interface JobQueue<D> {
  add(
    name: string,
    data: D,
    opts: { jobId: string; removeOnComplete: boolean; removeOnFail: boolean },
  ): Promise<unknown>;
  addBulk(
    jobs: {
      name: string;
      data: D;
      opts: { jobId: string; removeOnComplete: boolean; removeOnFail: boolean };
    }[],
  ): Promise<unknown>;
  getJobState(jobId: string): Promise<string>;
  getJob(
    jobId: string,
  ): Promise<{ promote(): Promise<void>; returnvalue: unknown; failedReason?: string } | undefined>;
  /** 0 when a worker has it in hand, or one of its children. */
  remove(jobId: string): Promise<number>;
}

/** What we use of BullMQ's flows: jobs with jobs below them, which are delivered when those have ended. */
export interface JobFlow {
  addBulk(flows: FlowJob[]): Promise<unknown>;
}

export interface JobWorker {
  /** Takes no more jobs, waits for those in hand. */
  close(): Promise<void>;
}

export interface WorkerSettings {
  readonly concurrency: number;
  readonly onError: (error: unknown) => void;
  readonly keepCompleted: boolean;
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
/** How long saying goodbye to a server may take. */
const GOODBYE_MS = 2_000;

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
  worker(isClosed: () => boolean): C;
  close(): Promise<void>;
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
  job: { readonly name: string; readonly processor: Processor<D, R>; readonly settings: WorkerSettings },
): JobWorker {
  const { name, processor, settings } = job;
  let isClosing = false;
  let isClosed = false;
  const connection = connector.worker(() => isClosed);
  const inHand = new Set<Promise<R>>();
  const work = async (next: Job<D, R>, token: string | undefined): Promise<R> => {
    if (!isClosing) return processor(next, token);
    // What cannot be moved stays active until its lock ends, and is given again then.
    await next.moveToWait(token).catch(settings.onError);
    throw new WaitingError();
  };
  const make = () => {
    const worker = new classes.Worker<D, R>(
      name,
      (next, token) => {
        const working = work(next as Job<D, R>, token);
        inHand.add(working);
        const forget = (): void => void inHand.delete(working);
        working.then(forget, forget);
        return working;
      },
      { ...workerOptions(settings), connection } as WorkerOptions<C>,
    );
    worker.on('error', settings.onError);
    return worker;
  };
  let worker = make();
  const run = async (): Promise<void> => {
    for (;;) {
      try {
        await worker.waitUntilReady();
        if (!isClosing) await worker.run();
        return;
      } catch (error) {
        if (isClosing) return;
        settings.onError(error);
        await worker.close().catch(settings.onError);
        await delay(RETRY_MAX_MS, undefined, { ref: false });
        if (isClosing) return;
        worker = make();
      }
    }
  };
  void run();
  return {
    close: async () => {
      isClosing = true;
      const closing = worker.close();
      // Closing a worker whose server is away can hang, so what counts is waited for here.
      while (inHand.size > 0) await Promise.allSettled(inHand);
      await within(closing, GOODBYE_MS).catch(settings.onError);
      isClosed = true;
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
    worker: (name, processor, settings) => openWorker(classes, connector, { name, processor, settings }),
    close: () => connector.close(),
  };
}

/** A pool whose statements are repeated while the server is away (B2), until their worker is closed. */
function toPatient(pool: pg.Pool, isClosed: () => boolean): pg.Pool {
  const query = async (text: string, values: unknown[]): Promise<pg.QueryResult> => {
    for (let pauseMs = RETRY_MIN_MS; ; pauseMs = Math.min(pauseMs * 2, RETRY_MAX_MS)) {
      try {
        return await pool.query(text, values);
      } catch (error) {
        if (isClosed() || !isTransient(toDatabaseError(error))) throw error;
        await delay(pauseMs, undefined, { ref: false });
      }
    }
  };
  const patient = {
    query,
    connect: () => pool.connect(),
    end: async () => undefined,
    on: (event: 'error', listener: (error: Error) => void) => pool.on(event, listener),
    options: pool.options,
  };
  return patient as unknown as pg.Pool;
}

function connectPostgres(url: string): Connector<pg.Pool> {
  // One pool for all queues of the process; each worker keeps one of its connections for LISTEN.
  const pool = new pg.Pool({
    connectionString: url,
    max: 8,
    options: `-c search_path=${QUEUE_SCHEMA}`,
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
    worker: (isClosed) => toPatient(pool, isClosed),
    close: async () => {
      const ended = pool.end();
      await within(ended, GOODBYE_MS).catch(() => {
        // A worker that could not say goodbye has kept its connections.
        for (const client of clients) (client as unknown as pg.Client).end().catch(() => undefined);
      });
    },
  };
}

function connectRedis(url: string): Connector<Redis> {
  const clients = new Set<Redis>();
  const track = (client: Redis): Redis => {
    client.on('error', () => undefined);
    clients.add(client);
    // BullMQ opens a second connection for each worker by itself.
    const duplicate = client.duplicate.bind(client);
    client.duplicate = (options) => track(duplicate(options));
    return client;
  };
  const open = (options: RedisOptions): Redis =>
    track(
      new Redis(url, {
        ...options,
        replyMapping: 'legacy',
        // The end of a blocking connection goes unnoticed, and it keeps the process alive for as long as this.
        disconnectTimeout: 50,
        retryStrategy: (times: number) => Math.min(times * RETRY_MIN_MS, RETRY_MAX_MS),
      }),
    );
  let shared: Redis | undefined;
  return {
    queue: () =>
      (shared ??= open({ enableOfflineQueue: false, maxRetriesPerRequest: 1, commandTimeout: 5_000 })),
    worker: () => open({ maxRetriesPerRequest: null }),
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
  const client = new pg.Client({ connectionString: databaseUrl });
  // A connection that is lost fails its statement and is also an event, which unheard ends the process.
  client.on('error', () => undefined);
  try {
    await client.connect();
    await runMigrations(client, QUEUE_SCHEMA);
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    await client.end();
  }
}
