import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { LONGEST_TIMER_MS, startTimer } from './timer.js';

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const DAY_MS = 86_400_000;

test('a timer beyond the longest timer of Node fires once, and not before its time', () => {
  const work = vi.fn();
  startTimer(60 * DAY_MS, work);
  vi.advanceTimersByTime(60 * DAY_MS - 1);
  expect(work).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  expect(work).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(60 * DAY_MS);
  expect(work).toHaveBeenCalledTimes(1);
});

test('a timer that is cleared never fires, also when it is cleared after its first part', () => {
  const work = vi.fn();
  const timer = startTimer(60 * DAY_MS, work);
  vi.advanceTimersByTime(LONGEST_TIMER_MS + 1);
  timer.clear();
  vi.advanceTimersByTime(60 * DAY_MS);
  expect(work).not.toHaveBeenCalled();
});

test('an infinite timer never fires, and sets no timer of Node', () => {
  const work = vi.fn();
  const timer = startTimer(Infinity, work);
  expect(vi.getTimerCount()).toBe(0);
  timer.clear();
  vi.advanceTimersByTime(100 * DAY_MS);
  expect(work).not.toHaveBeenCalled();
});
