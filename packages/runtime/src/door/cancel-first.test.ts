import { createModelRouter } from '@boxcar/llm';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { BullMqDoorbell, PRIMITIVES_QUEUE } from '../doorbell/bullmq.js';
import { silentLog } from '../log.js';
import { openQueues } from '../queues.js';
import { Runtime, type TurnResult } from '../runtime.js';
import { testBackend } from '../testing/queue-backend.js';
import { createQueueDoor } from './queue-door.js';

test.each(queueBackends())('a cancel that is put in front overtakes a full queue on %s', async (kind) => {
  await using backend = await testBackend(kind);
  const queues = openQueues(backend.connection);
  const { pool, url } = backend.database;
  const runtime = new Runtime({
    pool,
    directUrl: url,
    doorbell: new BullMqDoorbell(queues, silentLog),
    model: createModelRouter({}),
  });
  await runtime.applyProfile({
    name: 'writer',
    instructions: 'x',
    model: 'scripted',
    script: [{ say: 'x' }],
  });
  const receipt = (await runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'go',
  })) as unknown as TurnResult;
  const queue = backend.queue(PRIMITIVES_QUEUE);
  const project_id = 'default';
  const box = { cards: [{ type: 'note', content: { kind: 'text', text: 'x' } }] };
  const others = await queue.addBulk(
    Array.from({ length: 50 }, () => ({ name: 'create_box', data: { project_id, arguments: box } })),
  );
  const job = await queue.add(
    'cancel',
    { project_id, arguments: { turn_id: receipt.turn_id } },
    { lifo: true },
  );
  const door = createQueueDoor(runtime, queues, { concurrency: 1 });
  await waitFor(async () => (await queue.getCompletedCount()) === 51, { message: 'all are answered' });
  const startedAt = async (id: string | undefined): Promise<number> =>
    (await queue.getJob(id ?? ''))?.processedOn ?? 0;
  const [canceledAt, ...starts] = await Promise.all([job, ...others].map(({ id }) => startedAt(id)));
  expect(canceledAt).toBeGreaterThan(0);
  expect(starts.filter((at) => at < (canceledAt ?? 0))).toEqual([]);
  expect((await queue.getJob(job.id ?? ''))?.returnvalue).toMatchObject({ turn_ids: [receipt.turn_id] });
  await door.close();
  await runtime.close();
  await queues.close();
});
