/** A worker that receives a stop signal ends within its grace time, whichever servers are unavailable. */
import {
  type NodeChild,
  queueBackends,
  type TcpProxy,
  type TestDatabase,
  type TestRedis,
  tcpProxy,
  testDatabase,
  testRedis,
  waitFor,
} from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { prepare, startCli } from '../../testing/cli.js';

const GRACE_MS = 10_000;
/** Extra time for a busy machine. */
const SLACK_MS = 15_000;

let database: TestDatabase;
let redis: TestRedis | undefined;

beforeAll(async () => {
  database = await testDatabase();
  await (await prepare({ DATABASE_URL: database.url })).close();
  if (queueBackends().includes('redis')) redis = await testRedis();
});

interface Place extends AsyncDisposable {
  readonly worker: NodeChild;
  readonly postgres: TcpProxy;
  readonly redis: TcpProxy | undefined;
}

/** A worker that reaches both of its servers through proxies. */
async function open(queues: 'redis' | 'postgres'): Promise<Place> {
  const postgres = await tcpProxy(database.url);
  const redisProxy = queues === 'redis' && redis !== undefined ? await tcpProxy(redis.url) : undefined;
  const worker = startCli(['worker', '--grace-ms', String(GRACE_MS)], {
    DATABASE_URL: postgres.url,
    ...(redisProxy === undefined ? {} : { REDIS_URL: redisProxy.url }),
  });
  await waitFor(() => worker.stderr.includes(' is ready ') || undefined, {
    message: `the worker is ready: ${worker.stderr}`,
    deadlineMs: 120_000,
  });
  return {
    worker,
    postgres,
    redis: redisProxy,
    [Symbol.asyncDispose]: async () => {
      await worker[Symbol.asyncDispose]();
      await postgres.close();
      await redisProxy?.close();
    },
  };
}

/** The exit code of the worker, and how long it took. */
async function stop(worker: NodeChild): Promise<{ code: number | null; tookMs: number }> {
  const since = performance.now();
  process.kill(worker.pid, 'SIGTERM');
  const { code } = await worker.exited;
  return { code, tookMs: performance.now() - since };
}

type Strike = (proxy: TcpProxy) => void | Promise<void>;
const STRIKES: readonly [string, Strike][] = [
  ['refuses connections', (proxy) => proxy.cut()],
  ['is silent', (proxy) => proxy.stall()],
];

afterAll(() => redis?.stop());

describe.runIf(queueBackends().includes('redis'))('with queues on Redis', () => {
  it.each(STRIKES)(
    'a worker ends in time when Redis %s, and has lost nothing',
    async (_how, strike) => {
      await using place = await open('redis');
      const { redis: proxy } = place;
      if (proxy === undefined) throw new Error('there is no Redis');
      await waitFor(() => proxy.connectionCount > 0, {
        message: 'the worker is connected to Redis',
        deadlineMs: 60_000,
      });
      await strike(proxy);
      const { code, tookMs } = await stop(place.worker);
      expect(tookMs, place.worker.stderr).toBeLessThan(GRACE_MS + SLACK_MS);
      expect(code, place.worker.stderr).toBe(0);
      expect(place.worker.stderr).toMatch(/^boxcar: stopped$/m);
      expect((await database.pool.query('select from boxcar.workers')).rowCount).toBe(0);
    },
    240_000,
  );
});

describe.each(queueBackends())('with queues on %s', (queues) => {
  it.each(STRIKES)(
    'a worker ends in time when all of its servers are away: each %s',
    async (_how, strike) => {
      await using place = await open(queues);
      await strike(place.postgres);
      if (place.redis !== undefined) await strike(place.redis);
      const { code, tookMs } = await stop(place.worker);
      expect(tookMs, place.worker.stderr).toBeLessThan(GRACE_MS + SLACK_MS);
      // Its row remains, so other workers wait for its lease.
      expect(code, place.worker.stderr).toBe(1);
      expect(place.worker.stderr).toMatch(/^boxcar: could not close the worker: /m);
      await database.pool.query('delete from boxcar.workers');
    },
    240_000,
  );
});
