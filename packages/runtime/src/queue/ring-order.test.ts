import { expect, test } from 'vitest';
import { placeOf } from './ring-order.js';

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
