import { type RedisAddress, readRedisUrl } from '@boxcar/kernel';
import {
  hasRedisCluster,
  type QueueBackend,
  queueBackends,
  type TestDatabase,
  type TestRedis,
  type TestRedisCluster,
  testDatabase,
  testRedis,
  testRedisCluster,
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
import { Cluster } from 'ioredis';
import { clusterPrefix } from '../queue/connect-cluster.js';
import type { QueueConnection } from '../queue/job-queue.js';
import { migrateQueues } from '../queue/queues.js';

/** The backends that this run can test, and a cluster as a third backend if it can be started. */
export const queuePlaces = (): readonly QueuePlace[] =>
  hasRedisCluster() ? [...queueBackends(), 'cluster'] : queueBackends();

export type QueuePlace = QueueBackend | 'cluster';

/** A database with queues of one kind, in the database or in another server. */
export interface TestBackend extends AsyncDisposable {
  readonly kind: QueueBackend;
  readonly database: TestDatabase;
  /** Undefined when the queues are in the database. */
  readonly redis: TestRedis | undefined;
  /** Undefined unless the queues are on a cluster. */
  readonly cluster: TestRedisCluster | undefined;
  readonly connection: QueueConnection;
  /** Options for `openRuntime`. */
  readonly urls: { readonly databaseUrl: string; readonly redisUrl?: string };
  /** The BullMQ queue of this name, as any client opens it. It is closed with the backend. */
  queue(name: string): Queue;
  /** A bare BullMQ worker, without Boxcar. It is closed with the backend. */
  worker(name: string, processor: Processor, options?: BareWorkerOptions): BareWorker;
  /** Takes one job of a queue like a worker that dies while it has the job. The lock of the job lasts for half a second. */
  takeAndDie(queueName: string): Promise<void>;
  close(): Promise<void>;
}

type BareWorkerOptions = Partial<Omit<WorkerOptions, 'connection'>>;

export interface BareWorker {
  close(force?: boolean): Promise<void>;
}

/** The options with which a client opens a queue, and the connections that it closes afterwards. */
function toOptions(name: string, connection: QueueConnection) {
  if (connection.kind === 'postgres') return { connection: { connectionString: connection.url, max: 2 } };
  const { address } = readRedisUrl(connection.url) as { address: RedisAddress };
  if (address.kind === 'server') return { connection: { url: connection.url } };
  const { nodes, password } = address;
  const redisOptions = { ...(password === undefined ? {} : { password }), maxRetriesPerRequest: null };
  const cluster = new Cluster([...nodes], { redisOptions });
  cluster.on('error', () => undefined);
  return { connection: cluster, prefix: clusterPrefix(address.name, name) };
}

/** BullMQ does not close a client that was passed to it. */
function closing<T extends { close(force?: boolean): Promise<void> }>(
  opened: T,
  { connection }: { readonly connection: unknown },
): T {
  if (!(connection instanceof Cluster)) return opened;
  const close = opened.close.bind(opened);
  opened.close = async (force) => {
    await close(force);
    connection.disconnect();
  };
  return opened;
}

const toClasses = (connection: QueueConnection) =>
  withBackend(
    (connection.kind === 'redis' ? createRedisBackend : createPostgresBackend) as typeof createRedisBackend,
  );

/** The bare queue of a client that knows only BullMQ and a URL. */
function openBareQueue(name: string, connection: QueueConnection): Queue {
  const classes = toClasses(connection);
  const options = toOptions(name, connection);
  return closing(new classes.Queue(name, options as QueueOptions) as unknown as Queue, options);
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
  const options = { ...toOptions(name, connection), lockDuration: 500, skipStalledCheck: true };
  const worker = closing(new classes.Worker(name, hold, options as WorkerOptions), options);
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
  const options = { ...toOptions(name, connection), ...job.options };
  const worker = closing(new classes.Worker(name, job.processor, options as WorkerOptions), options);
  worker.on('error', () => undefined);
  return worker;
}

/** Opens a new database and new queues of the given kind. */
export async function testBackend(place: QueuePlace): Promise<TestBackend> {
  const database = await testDatabase();
  const redis = place === 'redis' ? await testRedis() : undefined;
  const cluster = place === 'cluster' ? await testRedisCluster() : undefined;
  const redisUrl = redis?.url ?? cluster?.url;
  if (redisUrl === undefined) await migrateQueues(database.url);
  const connection: QueueConnection =
    redisUrl === undefined ? { kind: 'postgres', url: database.url } : { kind: 'redis', url: redisUrl };
  /** One queue for each name, because each queue has connections of its own. */
  const queues = new Map<string, Queue>();
  const workers: BareWorker[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(workers.splice(0).map((worker) => worker.close(true)));
    await Promise.all([...queues.values()].map((queue) => queue.close()));
    queues.clear();
    await redis?.close();
    await cluster?.close();
    await database.close();
  };
  return {
    kind: connection.kind,
    database,
    redis,
    cluster,
    connection,
    urls: { databaseUrl: database.url, ...(redisUrl === undefined ? {} : { redisUrl }) },
    queue: (name) => {
      const known = queues.get(name);
      if (known !== undefined) return known;
      const queue = openBareQueue(name, connection);
      // A test may have stopped the server.
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
