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
  type Queue,
  type QueueOptions,
  withBackend,
} from 'bullmq';
import { migrateQueues, type QueueConnection } from '../queues.js';

/** A database with the queues of one kind beside it, or in it. */
export interface TestBackend extends AsyncDisposable {
  readonly kind: QueueBackend;
  readonly database: TestDatabase;
  /** Undefined when the queues live in the database. */
  readonly redis: TestRedis | undefined;
  readonly connection: QueueConnection;
  /** Fits `openRuntime`. */
  readonly urls: { readonly databaseUrl: string; readonly redisUrl?: string };
  /** A bare BullMQ queue, as any client opens it. */
  queue(name: string): Queue;
  close(): Promise<void>;
}

/** The bare queue of a client that knows nothing but BullMQ and a URL. */
function openBareQueue(name: string, connection: QueueConnection): Queue {
  const options =
    connection.kind === 'redis'
      ? { connection: { url: connection.url } }
      : { connection: { connectionString: connection.url, max: 2 } };
  const classes = withBackend(
    (connection.kind === 'redis' ? createRedisBackend : createPostgresBackend) as typeof createRedisBackend,
  );
  return new classes.Queue(name, options as QueueOptions) as unknown as Queue;
}

/** Opens a database and the queues of the given kind, all of one's own. */
export async function testBackend(kind: QueueBackend): Promise<TestBackend> {
  const database = await testDatabase();
  const redis = kind === 'redis' ? await testRedis() : undefined;
  if (redis === undefined) await migrateQueues(database.url);
  const connection: QueueConnection =
    redis === undefined ? { kind: 'postgres', url: database.url } : { kind: 'redis', url: redis.url };
  const queues: Queue[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(queues.splice(0).map((queue) => queue.close()));
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
      const queue = openBareQueue(name, connection);
      // A server that a test has stopped.
      queue.on('error', () => undefined);
      queues.push(queue);
      return queue;
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}
