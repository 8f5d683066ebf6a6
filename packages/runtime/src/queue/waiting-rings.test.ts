import type { Ring } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { placeOf } from './ring-order.js';
import { WaitingRings } from './waiting-rings.js';

test('rings that leave together are in the order of their places, and keep the places in a queue', () => {
  let now = 1_000_000;
  const waiting = new WaitingRings(() => now);
  const ring = (priority: number): Ring => ({
    turnId: newId<'turn'>(),
    epoch: 1,
    workerTarget: '',
    priority,
  });
  const [late, early, raised, same] = [ring(9), ring(3), ring(20), ring(9)] as [Ring, Ring, Ring, Ring];
  for (const one of [late, early, raised, same]) waiting.add(one);
  waiting.raise(raised);
  const places = [raised, early, late, same].map((one) => (one === raised ? 0 : placeOf(one, now)));
  now += 5_000;
  const all = waiting.takeAll();
  expect(all.map(({ turnId }) => turnId)).toEqual([raised, early, late, same].map(({ turnId }) => turnId));
  expect(all.map((one) => placeOf(one, now))).toEqual(places);
  expect([waiting.size, waiting.takeAll()]).toEqual([0, []]);
});
