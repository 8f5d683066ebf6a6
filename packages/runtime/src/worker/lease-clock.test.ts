import { expect, test } from 'vitest';
import { createLeaseClock } from './lease-clock.js';

function fakeClock() {
  const time = { monotonic: 1_000, wall: 1_700_000_000_000 };
  return {
    time,
    clock: createLeaseClock(
      () => time.monotonic,
      () => time.wall,
    ),
  };
}

test('time in suspension counts, although the monotonic clock does not count it', () => {
  const { time, clock } = fakeClock();
  const renewedAt = clock.now();
  time.monotonic += 5;
  time.wall += 3_600_000;
  expect(clock.since(renewedAt)).toBe(3_600_000);
});

test('a wall clock that is set back does not make a lease younger', () => {
  const { time, clock } = fakeClock();
  const renewedAt = clock.now();
  time.monotonic += 9_000;
  time.wall -= 60_000;
  expect(clock.since(renewedAt)).toBe(9_000);
});
