/** BullMQ on Redis or on Postgres, behind one code path. */
import { KernelError } from '@boxcar/kernel';
import {
  createPostgresBackend,
  createRedisBackend,
  type IQueueBackend,
  runMigrations,
  type Processor,
  type QueueOptions,
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
export const QUEUE_SCHEMA = 'bullmq';

/** What we use of a BullMQ queue. */
export interface JobQueue<D> {
  add(
    name: string,
    data: D,
    options?: { jobId?: string; removeOnComplete?: boolean; removeOnFail?: boolean },
  ): Promise<unknown>;
  addBulk(
    jobs: {
      name: string;
      data: D;
      opts: { jobId: string; removeOnComplete: boolean; removeOnFail: boolean };
    }[],
  ): Promise<unknown>;
  getJobState(jobId: string): Promise<string>;
  getJob(jobId: string): Promise<{ promote(): Promise<void> } | undefined>;
  close(): Promise<void>;
}

export interface JobWorker {
  close(force?: boolean): Promise<void>;
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
  worker<D, R>(name: string, processor: Processor<D, R>, settings: WorkerSettings): JobWorker;
  close(): Promise<void>;
}

/** A worker whose query fails asks again at once; BullMQ has no pause of its own there. */
const workerOptions = (settings: WorkerSettings): Omit<WorkerOptions, 'connection'> => ({
  concurrency: settings.concurrency,
  // A job that was in hand when its process died is given again; it must never fail for that.
  maxStalledCount: 1_000_000,
  ...(settings.keepCompleted
    ? { removeOnComplete: { age: 3600, count: 10_000 }, removeOnFail: { age: 24 * 3600, count: 10_000 } }
    : { removeOnComplete: { count: 0 }, removeOnFail: { count: 0 } }),
});

function openOn<B extends IQueueBackend, C>(
  classes: ReturnType<typeof withBackend<B, C>>,
  connect: { queue: () => C; worker: () => C; close: () => Promise<void> },
  kind: QueueConnection['kind'],
): Queues {
  return {
    kind,
    queue: <D>(name: string): JobQueue<D> => {
      const queue = new classes.Queue<D>(name, { connection: connect.queue() } as QueueOptions<C>);
      queue.on('error', () => undefined);
      return queue as unknown as JobQueue<D>;
    },
    worker: <D, R>(name: string, processor: Processor<D, R>, settings: WorkerSettings): JobWorker => {
      const worker = new classes.Worker<D, R>(name, processor, {
        ...workerOptions(settings),
        connection: connect.worker(),
      } as WorkerOptions<C>);
      worker.on('error', settings.onError);
      return worker;
    },
    close: connect.close,
  };
}

/**
 * Opens the queues. Connections are made lazily and again after every loss.
 *
 * @throws KernelError `bad_config` for a URL of neither kind.
 */
export function openQueues(connection: QueueConnection): Queues {
  if (connection.kind === 'postgres') {
    // One pool for all queues of the process; each worker keeps one of its connections for LISTEN.
    const pool = new pg.Pool({
      connectionString: connection.url,
      max: 8,
      options: `-c search_path=${QUEUE_SCHEMA}`,
      keepAlive: true,
      application_name: 'boxcar-queues',
    });
    pool.on('error', () => undefined);
    const own = (): pg.Pool => pool;
    return openOn(
      withBackend(createPostgresBackend) as unknown as ReturnType<typeof withBackend<IQueueBackend, pg.Pool>>,
      { queue: own, worker: own, close: () => pool.end() },
      'postgres',
    );
  }
  if (!/^rediss?:\/\//.test(connection.url))
    throw new KernelError('bad_config', {
      message: `REDIS_URL: '${connection.url}' is no redis:// or rediss:// URL.`,
    });
  const clients: Redis[] = [];
  const open = (options: RedisOptions): Redis => {
    const client = new Redis(connection.url, {
      ...options,
      replyMapping: 'legacy',
      retryStrategy: (times: number) => Math.min(times * 100, 2_000),
    });
    client.on('error', () => undefined);
    clients.push(client);
    return client;
  };
  let ringer: Redis | undefined;
  return openOn(
    withBackend(createRedisBackend) as unknown as ReturnType<typeof withBackend<IQueueBackend, Redis>>,
    {
      // Rings fail at once while Redis is away: the rows know better than a backlog in memory.
      queue: () =>
        (ringer ??= open({ enableOfflineQueue: false, maxRetriesPerRequest: 1, commandTimeout: 5_000 })),
      worker: () => open({ maxRetriesPerRequest: null }),
      close: async () => {
        for (const client of clients) client.disconnect();
      },
    },
    'redis',
  );
}

/** Creates or updates BullMQ's own tables in Postgres. Idempotent; run on every deploy. */
export async function migrateQueues(databaseUrl: string): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await runMigrations(client, QUEUE_SCHEMA);
  } finally {
    await client.end();
  }
}
