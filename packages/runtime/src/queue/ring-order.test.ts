import { expect, test } from 'vitest';
import { placeOf, priorityAt } from './ring-order.js';

test('a step of priority counts as much as a second, and priority 0 is first', () => {
  const now = 1_800_000_000_000;
  expect(placeOf({ priority: 0 }, now + 60_000)).toBe(0);
  expect(placeOf({ priority: 8 }, now)).toBeGreaterThan(placeOf({}, now + 6_000));
  expect(placeOf({ priority: 8 }, now)).toBe(placeOf({}, now + 7_000));
  expect(placeOf({ priority: 8 }, now)).toBeLessThan(placeOf({ priority: 1 }, now + 8_000));
  expect(placeOf({ priority: 8 }, now)).toBeLessThan(placeOf({ priority: 8 }, now + 1_000));
});

test('BullMQ accepts the computed place at any time', () => {
  for (const seconds of [0, 2_097_142, 2_097_143, 2_097_144, 2_097_151, 2_097_152, 1_800_000_000]) {
    const place = placeOf({ priority: 8 }, seconds * 1_000);
    expect(place).toBeGreaterThanOrEqual(1);
    expect(place).toBeLessThanOrEqual(2_097_152);
  }
});

test('a ring keeps its place, to the second, when it is added again later', () => {
  const now = 1_800_000_000_000;
  const wraps = (2_097_152 * 858 + 2_097_150) * 1_000;
  for (const from of [now, wraps])
    for (const priority of [0, 1, 8])
      for (const later of [0, 500, 1_000, 8_000, 60_000, 86_400_000]) {
        const place = placeOf({ priority }, from);
        const again = placeOf({ priority: priorityAt(place, from + later) }, from + later);
        expect([place, (place % 2_097_152) + 1]).toContain(again);
      }
});
