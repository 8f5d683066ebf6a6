/** The number of statements that sending costs. */
import { createModelRouter } from '@boxcar/llm';
import { createPool } from '@boxcar/store';
import { statementProxy, testDatabase, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { HandoffTool } from '../handoff/index.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { openReceiver, WEBHOOK_SECRET } from '../testing/receiver.js';
import { createWorker } from '../worker/worker.js';

const COUNT = 16;

test('many deliveries are claimed and recorded together, and an idle sender sends no statement', async () => {
  await using database = await testDatabase();
  await using receiver = await openReceiver();
  await using proxy = await statementProxy(database.url);
  const pool = createPool({ connectionString: proxy.url });
  const runtime = new Runtime({
    pool,
    directUrl: database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    handoffs: { enabled: true, webhooks: { secret: WEBHOOK_SECRET, allowPrivate: ['127.0.0.1'] } },
  });
  runtime.webhooks.limits = { perHost: COUNT, maxInFlight: COUNT };
  const count = (label: string): number => proxy.statements.filter((text) => text.includes(label)).length;
  // Each handoff was refused at once and has ended, and no process sends yet.
  const tool = new HandoffTool({ runtime, concurrency: 0 });
  for (let n = 0; n < COUNT; n += 1)
    await tool
      .handoff({ source_agent: 'x', target_agent: 'nobody', task: 't', callback: { url: receiver.url } })
      .catch(() => undefined);
  expect(count('deliveries.claim')).toBe(0);
  const worker = await createWorker(runtime, { sweepMs: 50 });
  await waitFor(
    async () => (await tool.listWebhooks({ status: 'delivered' })).webhooks.length === COUNT || undefined,
    { message: 'all are delivered', deadlineMs: 30_000 },
  );
  // One statement claimed all events, and another found nothing left. Outcomes are recorded as the receivers answer.
  expect(count('deliveries.claim')).toBeLessThanOrEqual(3);
  expect(count('deliveries.record')).toBeLessThanOrEqual(COUNT);
  const claims = count('deliveries.claim');
  const probes = count('sweep.probe');
  await waitFor(() => Promise.resolve(count('sweep.probe') >= probes + 5 || undefined), {
    message: 'the sweep has looked five times',
    deadlineMs: 30_000,
  });
  expect(count('deliveries.claim')).toBe(claims);
  expect(new Set(receiver.received.map(({ id }) => id)).size).toBe(COUNT);
  await worker.close({ graceMs: 0 });
  await runtime.close();
  await pool.end();
});
