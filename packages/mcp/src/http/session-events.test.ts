import { expect, test } from 'vitest';
import { SessionEvents } from './session-events.js';

const message = (n: number) => ({ jsonrpc: '2.0' as const, method: 'notifications/x', params: { n } });

async function replay(events: SessionEvents, after: string): Promise<readonly unknown[]> {
  const sent: unknown[] = [];
  await events.replayEventsAfter(after, {
    send: async (_id, said) => void sent.push('params' in said ? said.params?.n : undefined),
  });
  return sent;
}

test('a reader continues in its stream after the last message that it has read', async () => {
  const events = new SessionEvents();
  const first = await events.storeEvent('a', message(1));
  await events.storeEvent('b', message(2));
  await events.storeEvent('a', message(3));
  expect(await events.getStreamIdForEventId(first)).toBe('a');
  expect(await replay(events, first)).toEqual([3]);
  for (const id of ['9_a', 'x', '', '_a', '1_'])
    expect([id, await events.getStreamIdForEventId(id)]).toEqual([id, undefined]);
});

test('the oldest messages are dropped, and the newest is kept whatever its size', async () => {
  const events = new SessionEvents();
  for (let n = 0; n < 1_000; n += 1) await events.storeEvent('a', message(n));
  expect((await replay(events, '0_a')).length).toBe(256);
  await events.storeEvent('a', { ...message(0), params: { n: 'x'.repeat(3_000_000) } });
  expect((await replay(events, '0_a')).length).toBe(1);
});

test('unread messages wait until the stream is opened', async () => {
  const events = new SessionEvents();
  expect(events.lastReadId).toBeUndefined();
  await events.storeEvent('_GET_stream', message(1));
  expect(await replay(events, events.lastReadId ?? '')).toEqual([1]);
  const close = events.openOwnStream();
  await events.storeEvent('_GET_stream', message(2));
  expect(events.lastReadId).toBeUndefined();
  close();
  expect(events.lastReadId).toBeUndefined();
  await events.storeEvent('_GET_stream', message(3));
  expect(await replay(events, events.lastReadId ?? '')).toEqual([3]);
});
