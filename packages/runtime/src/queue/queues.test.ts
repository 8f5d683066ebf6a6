import { queueBackends, spawnNode, tcpProxy, testDatabase, testRedis, waitFor } from '@boxcar/testkit';
import { PostgresQueueBackend, RedisQueueBackend, Worker } from 'bullmq';
import { Redis } from 'ioredis';
import pg from 'pg';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { queuePlaces, testBackend } from '../testing/queue-backend.js';
import type { WorkerProcessOptions } from '../testing/worker-process.js';
import { migrateQueues, openQueues } from './queues.js';

test('a migration of the queues that loses its connection reports an error, and does not end the process', async () => {
  await using database = await testDatabase();
  await using proxy = await tcpProxy(database.url);
  const blocker = await database.pool.connect();
  try {
    await blocker.query('begin; create schema bullmq');
    const migrating = migrateQueues(proxy.url).catch((error: unknown) => error);
    await waitFor(
      async () =>
        (
          await database.pool.query(
            'select from pg_locks where not granted and pid in (select pid from pg_stat_activity where datname = current_database())',
          )
        ).rowCount === 1,
      { message: 'the migration waits in the midst of a statement' },
    );
    proxy.breakOnce();
    expect(await migrating).toMatchObject({ code: 'database_unavailable' });
  } finally {
    await blocker.query('rollback');
    blocker.release();
  }
});

describe('the workers of a process whose queues live in Postgres', () => {
  const onPostgres = async () => {
    const database = await testDatabase();
    await migrateQueues(database.url);
    const queues = openQueues({ kind: 'postgres', url: database.url });
    const taken: string[] = [];
    const work = (name: string, onEmpty = (): void => undefined) =>
      queues.worker<unknown, void>(name, async (job) => void taken.push(`${name} ${job.id}`), {
        concurrency: 1,
        keepCompleted: false,
        onError: () => undefined,
        onEmpty,
      });
    const add = (name: string) =>
      queues.queue(name).add('job', {}, { jobId: 'job', removeOnComplete: true, removeOnFail: true });
    const close = async () => {
      await queues.close();
      await database[Symbol.asyncDispose]();
    };
    return { taken, work, add, [Symbol.asyncDispose]: close };
  };

  test('keep no connection when they are closed at any moment of their start', async () => {
    await using place = await onPostgres();
    for (let n = 0; n < 20; n++) {
      const worker = place.work('q');
      for (let turns = 0; turns < n; turns++) await new Promise((settle) => setImmediate(settle));
      await worker.close();
    }
    const last = place.work('q');
    await place.add('q');
    await waitFor(() => place.taken.includes('q job'), { message: 'the job is taken', deadlineMs: 60_000 });
    await last.close();
  });

  test('leave no listener and no place in the pool when they have closed', async () => {
    const listening = vi.spyOn(pg.Pool.prototype, 'on');
    onTestFinished(() => listening.mockRestore());
    await using place = await onPostgres();
    await place.add('q');
    const pools = () => [...new Set(listening.mock.contexts)] as pg.Pool[];
    const count = () => Math.max(...pools().map((pool) => pool.listenerCount('error')));
    const before = count();
    expect(before).toBeGreaterThan(0);
    const room = () => Math.max(...pools().map((pool) => pool.options.max));
    const roomBefore = room();
    let emptied = 0;
    const worker = place.work('q', () => void emptied++);
    await waitFor(() => place.taken.includes('q job'), { message: 'the job is taken' });
    worker.pause();
    const seen = emptied;
    worker.resume();
    await waitFor(() => emptied > seen, { message: 'the queue is reported as empty' });
    expect([count() > before, room()]).toEqual([true, roomBefore + 1]);
    await worker.close();
    expect([count(), room()]).toEqual([before, roomBefore]);
  });

  test('leave connections for the queues, for any number of workers', async () => {
    await using place = await onPostgres();
    const names = Array.from({ length: 12 }, (_, n) => `q${n}`);
    const workers = names.map((name) => place.work(name));
    await Promise.all(names.map(place.add));
    await waitFor(() => place.taken.length === names.length, {
      message: 'each has its job',
      deadlineMs: 60_000,
    });
    await Promise.all(workers.map((worker) => worker.close()));
  });
});

test.each(queueBackends())(
  'a queue on %s is not reported as empty while its job is on the way',
  async (kind) => {
    const backend = await testBackend(kind);
    const queues = openQueues(backend.connection);
    const events: string[] = [];
    const worker = queues.worker<unknown, void>('q', async () => undefined, {
      concurrency: 1,
      keepCompleted: false,
      onError: () => undefined,
      admit: () => {
        const isFirst = !events.includes('refused');
        events.push(isFirst ? 'refused' : 'admitted');
        return !isFirst;
      },
      onEmpty: () => void events.push('empty'),
    });
    onTestFinished(async () => {
      await worker.close();
      await queues.close();
      await backend.close();
    });
    await queues
      .queue('q')
      .add('job', {}, { jobId: 'job', removeOnComplete: true, removeOnFail: true, priority: 1 });
    await waitFor(() => events.includes('refused'), { message: 'the job is refused' });

    // The server gives the job; then it counts the jobs; then the job arrives.
    let given = (): void => undefined;
    let counted = (): void => undefined;
    const isGiven = new Promise<void>((settle) => {
      given = settle;
    });
    const isCounted = new Promise<void>((settle) => {
      counted = settle;
    });
    type Arrival = { nextJobFromJobData(job: unknown, ...rest: unknown[]): Promise<unknown> };
    const arrivals = Worker.prototype as unknown as Arrival;
    const arrive = arrivals.nextJobFromJobData;
    const arriving = vi.spyOn(arrivals, 'nextJobFromJobData').mockImplementation(async function (
      this: unknown,
      ...args
    ) {
      if (args[0]) {
        given();
        await isCounted;
      }
      return arrive.apply(this as Arrival, args);
    });
    type Counts = Pick<RedisQueueBackend, 'getCounts'>;
    const backends: Counts = (kind === 'redis' ? RedisQueueBackend : PostgresQueueBackend).prototype;
    const count = backends.getCounts;
    const counting = vi.spyOn(backends, 'getCounts').mockImplementation(async function (
      this: Counts,
      ...states
    ) {
      await isGiven;
      const counts = await count.apply(this, states);
      setImmediate(counted);
      return counts;
    });
    onTestFinished(() => {
      arriving.mockRestore();
      counting.mockRestore();
    });
    worker.resume();
    await waitFor(() => events.includes('admitted'), { message: 'the job is delivered again' });
    expect(counting).toHaveBeenCalled();
    expect(events.slice(events.indexOf('refused'), events.indexOf('admitted'))).toEqual(['refused']);
  },
);

describe.runIf(queueBackends().includes('redis'))('a silent Redis connection is replaced', () => {
  const PATIENCE = { deadlineMs: 60_000 };
  const kept = (jobId: string) => ({ jobId, removeOnComplete: false, removeOnFail: false });

  test('for all queues of a process', async () => {
    await using redis = await testRedis();
    await using proxy = await tcpProxy(redis.url);
    const queues = openQueues({ kind: 'redis', url: proxy.url });
    try {
      const queue = queues.queue('q');
      await waitFor(() => queue.getJobState('none').catch(() => undefined), { message: 'the queue answers' });
      expect(proxy.connectionCount).toBe(1);
      proxy.stallOpen();
      await expect(queue.getJobState('none')).rejects.toThrow('Command timed out');
      await waitFor(() => queue.getJobState('none').catch(() => undefined), {
        message: 'the queue answers on a new connection',
        ...PATIENCE,
      });
    } finally {
      await queues.close();
    }
  });

  test('for a worker: the job in progress ends, and the next job is taken', async () => {
    await using redis = await testRedis();
    await using proxy = await tcpProxy(redis.url);
    const near = openQueues({ kind: 'redis', url: redis.url });
    const far = openQueues({ kind: 'redis', url: proxy.url });
    let letGo = (): void => undefined;
    const held = new Promise<void>((settle) => {
      letGo = settle;
    });
    const errors: unknown[] = [];
    const taken: string[] = [];
    const worker = far.worker<unknown, void>(
      'q',
      async (job) => {
        taken.push(job.id ?? '');
        if (job.id === 'first') await held;
      },
      { concurrency: 1, keepCompleted: true, onError: (error) => void errors.push(error) },
    );
    try {
      const queue = near.queue('q');
      const add = (jobId: string) => queue.add('job', {}, kept(jobId)).then(() => true);
      const ends = (jobId: string) =>
        waitFor(async () => (await queue.getJobState(jobId)) === 'completed', {
          message: `${jobId} has ended`,
          ...PATIENCE,
        });
      await waitFor(() => add('first').catch(() => false), { message: 'the job is added' });
      await waitFor(() => taken.includes('first'), { message: 'the job has been taken' });
      proxy.stallOpen();
      letGo();
      await ends('first');
      await add('second');
      await ends('second');
      expect(errors.map(String).join()).toContain('Socket timeout');
    } finally {
      letGo();
      await worker.close();
      await far.close();
      await near.close();
    }
  });

  test('for a worker whose connection is silent from its start', async () => {
    await using redis = await testRedis();
    await using proxy = await tcpProxy(redis.url);
    let silent = 0;
    // The first request on a connection is sent when it opens, the second with its first message.
    proxy.stall((hello) => hello !== '' && silent < 2 && ++silent > 0);
    const near = openQueues({ kind: 'redis', url: redis.url });
    const far = openQueues({ kind: 'redis', url: proxy.url });
    const taken: string[] = [];
    const worker = far.worker<unknown, void>('q', async (job) => void taken.push(job.id ?? ''), {
      concurrency: 1,
      keepCompleted: true,
      onError: () => undefined,
    });
    try {
      const queue = near.queue('q');
      await waitFor(() => queue.add('job', {}, kept('first')).catch(() => undefined), {
        message: 'the job is added',
      });
      await waitFor(() => taken.includes('first'), { message: 'the job is taken', ...PATIENCE });
      expect(silent).toBe(2);
    } finally {
      await worker.close();
      await far.close();
      await near.close();
    }
  });
});

test.runIf(queueBackends().includes('redis'))(
  'a worker that has closed leaves no Redis connection',
  async () => {
    await using redis = await testRedis();
    const admin = new Redis(redis.url);
    const queues = openQueues({ kind: 'redis', url: redis.url });
    onTestFinished(async () => {
      await queues.close();
      admin.disconnect();
    });
    const list = async () => String(await admin.client('LIST'));
    const count = async () => (await list()).trim().split('\n').length;
    await queues.queue('q').getJobState('none');
    const before = await count();
    const worker = queues.worker<unknown, void>('q', async () => undefined, {
      concurrency: 1,
      keepCompleted: false,
      onError: () => undefined,
    });
    await waitFor(async () => (await list()).includes('cmd=bzpopmin'), { message: 'the worker waits' });
    expect(await count()).toBe(before + 2);
    await worker.close();
    await waitFor(async () => (await count()) === before, { message: 'its connections have ended' });
  },
);

/** How often the clients of a cluster have asked whether it is whole. A client asks when it connects. */
async function countChecks(nodes: readonly { readonly url: string }[]): Promise<number> {
  const counts = nodes.map(async ({ url }) => {
    const admin = new Redis(url);
    const stats = await admin.info('commandstats');
    admin.disconnect();
    return Number(/cmdstat_cluster(?:\|info)?:calls=(\d+)/.exec(stats)?.[1] ?? 0);
  });
  return (await Promise.all(counts)).reduce((sum, count) => sum + count, 0);
}

test.each(queuePlaces().filter((place) => place !== 'postgres'))(
  'a process that is closed while its %s is away ends',
  async (place) => {
    await using backend = await testBackend(place);
    const options: WorkerProcessOptions = {
      ...backend.urls,
      effectsUrl: backend.database.url,
      worker: { targets: [''] },
      graceMs: 0,
    };
    await using child = spawnNode(new URL('../testing/worker-process.ts', import.meta.url), [
      JSON.stringify(options),
    ]);
    const { cluster } = backend;
    const server = backend.redis ?? (await cluster?.ownerOf('{boxcar-turns}:key'));
    if (server === undefined) throw new Error('the queues are not on Redis');
    const admin = new Redis(server.url);
    await waitFor(async () => String(await admin.client('LIST')).includes('cmd=bzpopmin'), {
      message: 'the worker waits for rings',
      deadlineMs: 60_000,
    });
    admin.disconnect();
    await server.stop();
    await cluster?.untilWhole(false);
    const others = cluster?.nodes.filter((node) => node !== server) ?? [];
    const before = await countChecks(others);
    await waitFor(
      async () =>
        cluster === undefined
          ? child.stderr.includes('doorbell.error')
          : (await countChecks(others)) >= before + 3,
      { message: 'the worker tries to connect again', deadlineMs: 60_000 },
    );
    let hasEnded = false;
    void child.exited.then(() => {
      hasEnded = true;
    });
    process.kill(child.pid, 'SIGTERM');
    await waitFor(() => hasEnded, { message: 'the process has ended', deadlineMs: 30_000 });
    expect(child.stdout).toContain('closed');
  },
);
