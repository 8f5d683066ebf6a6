/** BullMQ as the doorbell of the bare loop, on either backend, with minimal settings. */
import { createPostgresBackend, createRedisBackend, type Processor, withBackend } from 'bullmq';
import { Redis } from 'ioredis';

const NAME = 'floor-turns';

export interface DoorbellTarget {
  readonly databaseUrl: string;
  /** Undefined: the queue is in the database. */
  readonly redisUrl: string | undefined;
}

export interface FloorJob {
  readonly turn_id: string;
  readonly epoch: number;
}

interface Closable {
  close(): Promise<void>;
}

const onPostgres = (databaseUrl: string) => ({
  classes: withBackend(createPostgresBackend),
  connection: { connectionString: databaseUrl, schema: 'bullmq', max: 8, keepAlive: true },
  close: async () => undefined,
});

const onRedis = (redisUrl: string) => {
  const connection = new Redis(redisUrl, { maxRetriesPerRequest: null, replyMapping: 'legacy' });
  return {
    classes: withBackend(createRedisBackend),
    connection,
    close: async () => connection.disconnect(),
  };
};

interface Adder extends Closable {
  add(name: string, data: FloorJob, options: object): Promise<unknown>;
  addBulk(jobs: { name: string; data: FloorJob; opts: object }[]): Promise<unknown>;
}

export interface Bell extends Closable {
  ring(job: FloorJob): Promise<void>;
  /** Sends all rings as one command of the queue. */
  ringAll(jobs: readonly FloorJob[]): Promise<void>;
}

const optionsOf = (job: FloorJob): object => ({
  jobId: `${job.turn_id}-${job.epoch}`,
  removeOnComplete: true,
  removeOnFail: true,
});

/** The caller's side: rings for turns. */
export function openBell(target: DoorbellTarget): Bell {
  const open = (queue: Adder, close: () => Promise<void>): Bell => ({
    ring: async (job) => void (await queue.add('turn', job, optionsOf(job))),
    ringAll: async (jobs) =>
      void (await queue.addBulk(jobs.map((data) => ({ name: 'turn', data, opts: optionsOf(data) })))),
    close: async () => {
      await queue.close();
      await close();
    },
  });
  if (target.redisUrl === undefined) {
    const { classes, connection, close } = onPostgres(target.databaseUrl);
    return open(new classes.Queue<FloorJob>(NAME, { connection }), close);
  }
  const { classes, connection, close } = onRedis(target.redisUrl);
  return open(new classes.Queue<FloorJob>(NAME, { connection }), close);
}

/** The worker's side: handles rings, at most `concurrency` at a time. */
export function listen(
  target: DoorbellTarget,
  options: { readonly concurrency: number; readonly handle: (job: FloorJob) => Promise<void> },
): Closable {
  const process: Processor<FloorJob> = (job) => options.handle(job.data);
  const settings = {
    concurrency: options.concurrency,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
  };
  const open = (worker: Closable, close: () => Promise<void>): Closable => ({
    close: async () => {
      await worker.close();
      await close();
    },
  });
  if (target.redisUrl === undefined) {
    const { classes, connection, close } = onPostgres(target.databaseUrl);
    return open(new classes.Worker<FloorJob>(NAME, process, { ...settings, connection }), close);
  }
  const { classes, connection, close } = onRedis(target.redisUrl);
  return open(new classes.Worker<FloorJob>(NAME, process, { ...settings, connection }), close);
}
