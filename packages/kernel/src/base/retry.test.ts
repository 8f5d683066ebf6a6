import fc from 'fast-check';
import { expect, test } from 'vitest';
import { DEFAULT_RETRIES, decideRetry, MAX_RETRY_AFTER_MS } from './retry.js';

const limits = fc.record(
  {
    model_retries: fc.integer({ min: 0, max: 100 }),
    retry_base_seconds: fc.double({ min: 0.001, max: 3_600, noNaN: true }),
    retry_max_seconds: fc.double({ min: 0.001, max: 86_400, noNaN: true }),
  },
  { requiredKeys: [] },
);
const random = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });
const retryAfterMs = fc.option(fc.integer({ min: 0, max: 10 * MAX_RETRY_AFTER_MS }), { nil: undefined });

test('a call is tried again as often as the profile says, and never when another try cannot help', () => {
  fc.assert(
    fc.property(limits, random, fc.boolean(), fc.nat(150), (allowed, chance, canRetry, retries) => {
      const { kind } = decideRetry({ canRetry }, { retries, limits: allowed, random: chance });
      const most = allowed.model_retries ?? DEFAULT_RETRIES.model_retries;
      expect(kind).toBe(canRetry ? (retries < most ? 'retry' : 'spent') : 'final');
    }),
  );
});

test('the pause is never shorter than the provider asks for, up to an hour, and otherwise never longer than the longest step', () => {
  fc.assert(
    fc.property(limits, random, retryAfterMs, fc.nat(99), (allowed, chance, asked, retries) => {
      const decided = decideRetry(
        { canRetry: true, retryAfterMs: asked },
        { retries, limits: { ...allowed, model_retries: 100 }, random: chance },
      );
      const floor = Math.min(asked ?? 0, MAX_RETRY_AFTER_MS);
      const longest = (allowed.retry_max_seconds ?? DEFAULT_RETRIES.retry_max_seconds) * 1000;
      const delayMs = decided.kind === 'retry' ? decided.delayMs : Number.NaN;
      expect(delayMs).toBeGreaterThanOrEqual(floor);
      expect(delayMs).toBeLessThanOrEqual(floor + Math.round(longest) + 1);
    }),
  );
});

test('the step doubles up to its maximum, and the jitter may use any part of the step', () => {
  const step = (retries: number, chance: number) =>
    decideRetry(
      { canRetry: true },
      { retries, limits: { retry_base_seconds: 1, retry_max_seconds: 6, model_retries: 9 }, random: chance },
    );
  expect([0, 1, 2, 3, 4].map((retries) => step(retries, 0.5))).toEqual(
    [500, 1_000, 2_000, 3_000, 3_000].map((delayMs) => ({ kind: 'retry', delayMs })),
  );
  expect(step(2, 0)).toEqual({ kind: 'retry', delayMs: 0 });
});
