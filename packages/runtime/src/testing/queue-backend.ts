import {
  type QueueBackend,
  type TestDatabase,
  type TestRedis,
  testDatabase,
  testRedis,
} from '@boxcar/testkit';
import {
  createPostgresBackend,
  createRedisBackend,
  type Processor,
  type Queue,
  type QueueOptions,
  type WorkerOptions,
  withBackend,
} from 'bullmq';
import type { QueueConnection } from '../queue/job-queue.js';
import { migrateQueues } from '../queue/queues.js';

/** A database with the queues of one kind beside it, or in it. */
export interface TestBackend extends AsyncDisposable {
  readonly kind: QueueBackend;
  readonly database: TestDatabase;
  /** Undefined when the queues live in the database. */
  readonly redis: TestRedis | undefined;
  readonly connection: QueueConnection;
  /** Fits `openRuntime`. */
  readonly urls: { readonly databaseUrl: string; readonly redisUrl?: string };
  /** The BullMQ queue of this name, as any client opens it; closed with the backend. */
  queue(name: string): Queue;
  /** A bare BullMQ worker, as anyone runs one; closed with the backend. */
  worker(name: string, processor: Processor, options?: BareWorkerOptions): BareWorker;
  /** Takes one job of a queue as a worker does that dies with the job in its hands; its lock lasts for half a second. */
  takeAndDie(queueName: string): Promise<void>;
  close(): Promise<void>;
}

type BareWorkerOptions = Partial<Omit<WorkerOptions, 'connection'>>;

export interface BareWorker {
  close(force?: boolean): Promise<void>;
}

const toOptions = (connection: QueueConnection) =>
  connection.kind === 'redis'
    ? { connection: { url: connection.url } }
    : { connection: { connectionString: connection.url, max: 2 } };

const toClasses = (connection: QueueConnection) =>
  withBackend(
    (connection.kind === 'redis' ? createRedisBackend : createPostgresBackend) as typeof createRedisBackend,
  );

/** The bare queue of a client that knows nothing but BullMQ and a URL. */
function openBareQueue(name: string, connection: QueueConnection): Queue {
  const classes = toClasses(connection);
  return new classes.Queue(name, toOptions(connection) as QueueOptions) as unknown as Queue;
}

async function takeAndDie(name: string, connection: QueueConnection): Promise<void> {
  const classes = toClasses(connection);
  let take = (): void => undefined;
  const taken = new Promise<void>((settle) => {
    take = settle;
  });
  const hold = (): Promise<never> => {
    take();
    return new Promise(() => undefined);
  };
  const options = { ...toOptions(connection), lockDuration: 500, skipStalledCheck: true };
  const worker = new classes.Worker(name, hold, options as WorkerOptions);
  worker.on('error', () => undefined);
  await taken;
  await worker.close(true);
}

function openBareWorker(
  connection: QueueConnection,
  name: string,
  job: { readonly processor: Processor; readonly options: BareWorkerOptions },
): BareWorker {
  const classes = toClasses(connection);
  const worker = new classes.Worker(name, job.processor, {
    ...toOptions(connection),
    ...job.options,
  } as WorkerOptions);
  worker.on('error', () => undefined);
  return worker;
}

/** Opens a database and the queues of the given kind, all of one's own. */
export async function testBackend(kind: QueueBackend): Promise<TestBackend> {
  const database = await testDatabase();
  const redis = kind === 'redis' ? await testRedis() : undefined;
  if (redis === undefined) await migrateQueues(database.url);
  const connection: QueueConnection =
    redis === undefined ? { kind: 'postgres', url: database.url } : { kind: 'redis', url: redis.url };
  /** One for each name: each has connections of its own. */
  const queues = new Map<string, Queue>();
  const workers: BareWorker[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(workers.splice(0).map((worker) => worker.close(true)));
    await Promise.all([...queues.values()].map((queue) => queue.close()));
    queues.clear();
    await redis?.close();
    await database.close();
  };
  return {
    kind,
    database,
    redis,
    connection,
    urls: { databaseUrl: database.url, ...(redis === undefined ? {} : { redisUrl: redis.url }) },
    queue: (name) => {
      const known = queues.get(name);
      if (known !== undefined) return known;
      const queue = openBareQueue(name, connection);
      // A server that a test has stopped.
      queue.on('error', () => undefined);
      queues.set(name, queue);
      return queue;
    },
    worker: (name, processor, options = {}) => {
      const worker = openBareWorker(connection, name, { processor, options });
      workers.push(worker);
      return worker;
    },
    takeAndDie: (name) => takeAndDie(name, connection),
    close,
    [Symbol.asyncDispose]: close,
  };
}
