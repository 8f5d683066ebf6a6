/** Closing always ends, even when all servers are away. */
import { createModelRouter } from '@boxcar/llm';
import { queueBackends, tcpProxy, testDatabase, testRedis } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import type { Log } from '../lib/log.js';
import { openRuntime } from '../open.js';
import { migrateQueues } from '../queue/queues.js';
import { createWorker } from '../worker/worker.js';

/** Much longer than the limits of all parts together, and much shorter than the time that an unreachable server stays silent. */
const SOON_MS = 30_000;

async function timed(work: Promise<unknown>): Promise<{ error: unknown; tookMs: number }> {
  const since = performance.now();
  const error = await work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  return { error, tookMs: performance.now() - since };
}

describe.each(queueBackends())('with queues on %s', (kind) => {
  test.each(['silent', 'cut off'] as const)(
    'worker and runtime close while every server is %s',
    async (how) => {
      await using database = await testDatabase();
      await migrateQueues(database.url);
      const redis = kind === 'redis' ? await testRedis() : undefined;
      await using postgresProxy = await tcpProxy(database.url);
      await using redisProxy = redis === undefined ? undefined : await tcpProxy(redis.url);
      const events: string[] = [];
      const log: Log = (_level, event) => void events.push(event);
      const opened = openRuntime({
        databaseUrl: postgresProxy.url,
        redisUrl: redisProxy?.url,
        model: createModelRouter(),
        log,
      });
      const door = opened.serveQueueDoor();
      const worker = await createWorker(opened.runtime, { sweepMs: 100 });
      await opened.runtime.applyProfile({
        name: 'slow',
        instructions: 'You are slow.',
        model: 'scripted',
        script: [{ say: 'done', delayMs: 600_000 }],
      });
      const receipt = await opened.runtime.submit('launch_principal', {
        profile_name: 'slow',
        instruction: 'x',
      });
      const { turn_id } = receipt as { turn_id: string };
      while ((await opened.runtime.getTurn(turn_id)).status !== 'running')
        await new Promise((resolve) => setTimeout(resolve, 20));
      // One turn has a caller that waits for it.
      const waiting = opened.runtime.waitForTurn(turn_id).catch((error: unknown) => error);

      for (const proxy of [postgresProxy, redisProxy]) {
        if (how === 'silent') proxy?.stall();
        else await proxy?.cut();
      }
      const closings = await Promise.all([timed(worker.close({ graceMs: 500 })), timed(door.close())]);
      const [ofWorker] = closings;
      // The error reports that the worker could not hand its turn back.
      expect(ofWorker?.error).toBeInstanceOf(AggregateError);
      const last = await timed(opened.close());
      for (const { tookMs } of [...closings, last]) expect(tookMs).toBeLessThan(SOON_MS);
      expect(last.error).toBeUndefined();
      expect(await waiting).toMatchObject({ code: 'internal_error' });
      if (how === 'silent') expect(events).toContain('runtime.not_closed');
      await postgresProxy.restore();
      await redisProxy?.restore();
      await redis?.stop();
    },
    120_000,
  );
});
