import { createModelRouter } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { Redis } from 'ioredis';
import { expect, onTestFinished, test } from 'vitest';
import { createQueueDoor } from '../door/queue-door.js';
import { createToolResultsDoor } from '../door/tool-results-door.js';
import type { Log } from '../lib/log.js';
import { Runtime } from '../runtime.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';
import { TOOL_RESULTS_QUEUE, ToolQueue } from '../tool-queue/tool-queue.js';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from './doorbell-bullmq.js';
import { openQueues } from './queues.js';

const TURNS_QUEUE = 'boxcar-turns';

interface Logged {
  readonly event: string;
  readonly fields: Readonly<Record<string, unknown>>;
}

/** All parts of the runtime that take jobs: both doors and the doorbell. */
function serveAll(backend: TestBackend) {
  const log: Logged[] = [];
  const write: Log = (_level, event, fields = {}) => void log.push({ event, fields });
  const queues = openQueues(backend.connection);
  const runtime = new Runtime({
    pool: backend.database.pool,
    directUrl: backend.database.url,
    doorbell: new BullMqDoorbell(queues, write),
    model: createModelRouter({}),
    log: write,
    toolQueue: new ToolQueue(queues, write),
  });
  const rings: string[] = [];
  const doors = [createQueueDoor(runtime, queues), createToolResultsDoor(runtime, queues)];
  const listening = runtime.doorbell.listen({
    workerTarget: '',
    concurrency: 5,
    handle: async ({ turnId }) => void rings.push(turnId),
    onError: (error) => write('warn', 'doorbell.error', { error: String(error) }),
  });
  return {
    log,
    rings,
    [Symbol.asyncDispose]: async (): Promise<void> => {
      await (await listening).close();
      for (const door of doors) await door.close();
      await runtime.close();
      await queues.close();
    },
  };
}

/** Adds a job to a queue without workers, then makes the job's data in Redis unreadable. @returns The job's id. */
async function addSpoiled(backend: TestBackend, redis: Redis, queueName: string): Promise<string> {
  const { id = '' } = await backend.queue(queueName).add('launch_principal', { project_id: 'default' });
  await redis.hset(`bull:${queueName}:${id}`, { data: '{"project_id": "defau' });
  return id;
}

test('a job whose data is not JSON fails once with its reason, on every queue, and the queue continues', async () => {
  await using backend = await testBackend('redis');
  const redis = new Redis(backend.redis?.url ?? '');
  onTestFinished(() => redis.disconnect());
  const names = [PRIMITIVES_QUEUE, TOOL_RESULTS_QUEUE, TURNS_QUEUE] as const;
  const spoiled = new Map<string, string>();
  for (const name of names) spoiled.set(name, await addSpoiled(backend, redis, name));
  await using served = serveAll(backend);

  for (const name of [PRIMITIVES_QUEUE, TOOL_RESULTS_QUEUE]) {
    const queue = backend.queue(name);
    const id = spoiled.get(name) ?? '';
    await waitFor(async () => (await queue.getJobState(id)) === 'failed', {
      message: `the job of ${name} has failed`,
    });
    const stored = await redis.hgetall(`bull:${name}:${id}`);
    expect(stored.failedReason).toMatch(/^bad_request: data: not valid JSON \(/);
    expect(stored.atm).toBe('1');
  }
  // A failed ring leaves nothing in its queue. The log has the reason.
  const bells = backend.queue(TURNS_QUEUE);
  await waitFor(async () => (await bells.getJobState(spoiled.get(TURNS_QUEUE) ?? '')) === 'unknown', {
    message: 'the ring is gone',
  });
  expect(served.log.filter(({ event }) => event === 'doorbell.no_ring')).toEqual([
    {
      event: 'doorbell.no_ring',
      fields: expect.objectContaining({ error: expect.stringMatching(/^bad_request: data: not valid JSON/) }),
    },
  ]);
  expect(served.log.filter(({ event }) => /\.error$/.test(event))).toEqual([]);

  const job = await backend.queue(PRIMITIVES_QUEUE).add('nothing_of_the_kind', {
    project_id: 'default',
    arguments: {},
  });
  await waitFor(async () => (await job.getState()) === 'failed', { message: 'the next job is served' });
  const turnId = '01890000-0000-7000-8000-000000000001';
  await bells.add('turn', { turn_id: turnId, epoch: 1 });
  await waitFor(() => served.rings.includes(turnId), { message: 'the next ring is heard' });
});
