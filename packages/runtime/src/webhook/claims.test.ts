/** Which process sends a delivery, and whose record of its outcome is accepted. */
import { claimDeliveries, type DeliveryOutcome, recordDeliveries } from '@boxcar/store';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { HandoffTool } from '../handoff/index.js';
import { newId } from '../lib/index.js';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;

beforeEach(async () => {
  h = await harness({
    connections: 8,
    handoffs: { enabled: true, webhooks: { secret: 'a secret', allowPrivate: ['127.0.0.0/8'] } },
  });
});
afterEach(() => h[Symbol.asyncDispose]());

/** Handoffs that end by being refused at once; no process sends their events. */
async function end(count: number, host: string): Promise<void> {
  const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  for (let n = 0; n < count; n += 1)
    await tool
      .handoff({
        source_agent: 'x',
        target_agent: 'nobody',
        task: 't',
        callback: { url: `http://${host}/` },
      })
      .catch(() => undefined);
}
const claim = (holderId: string, more: object = {}) =>
  claimDeliveries(h.database.pool, {
    holderId,
    limit: 20,
    perHost: 20,
    busy: new Map(),
    leaseMs: 60_000,
    ...more,
  });
const outcome = (of: { id: DeliveryOutcome['id']; attempts: number }, holderId: string): DeliveryOutcome => ({
  id: of.id,
  holderId,
  attempts: of.attempts,
  outcome: 'delivered',
  lastStatus: 200,
  lastError: null,
  pauseMs: 0,
});

test('of many claims at the same moment, one gets each delivery', async () => {
  await end(12, '127.0.0.1:9');
  const holders = Array.from({ length: 6 }, () => newId());
  const claimed = (await Promise.all(holders.map((holder) => claim(holder, { limit: 4 })))).flat();
  const rest = (await Promise.all(holders.map((holder) => claim(holder)))).flat();
  const ids = [...claimed, ...rest].map(({ id }) => id);
  expect(ids).toHaveLength(12);
  expect(new Set(ids).size).toBe(12);
});

test('a host gets no more than its share, and deliveries to other hosts are still found', async () => {
  await end(5, '127.0.0.1:9');
  await end(2, '127.0.0.2:9');
  const me = newId();
  const hosts = (await claim(me, { perHost: 2, busy: new Map([['127.0.0.1:9', 1]]) })).map(
    ({ host }) => host,
  );
  expect(hosts.sort()).toEqual(['127.0.0.1:9', '127.0.0.2:9', '127.0.0.2:9']);
});

test('a sender’s report counts only while its claim is valid', async () => {
  await end(1, '127.0.0.1:9');
  const [first, second] = [newId(), newId()];
  const [slow] = await claim(first);
  if (slow === undefined) throw new Error('nothing was claimed');
  expect(await claim(second)).toEqual([]);
  // The time of the first claim is over.
  await h.rows('update boxcar.webhook_deliveries set next_at = now()');
  const [again] = await claim(second);
  expect(again).toMatchObject({ id: slow.id, attempts: 2 });
  expect(await recordDeliveries(h.database.pool, [outcome(slow, first)])).toEqual([]);
  // A record for an earlier claim by the same sender is not accepted either.
  expect(await recordDeliveries(h.database.pool, [outcome(slow, second)])).toEqual([]);
  if (again === undefined) throw new Error('nothing was claimed again');
  expect(await recordDeliveries(h.database.pool, [outcome(again, second)])).toMatchObject([
    { id: slow.id, status: 'delivered' },
  ]);
  expect(await claim(first)).toEqual([]);
});
