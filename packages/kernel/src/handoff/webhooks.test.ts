import { expect, test } from 'vitest';
import { handoffResultText } from './handoff-result.js';
import { deliveryPauseMs, withoutQuery } from './webhooks.js';

test('each pause is twice the previous pause, up to an hour, plus or minus a quarter', () => {
  const pauses = (random: number) =>
    [1, 2, 3, 10, 11, 12, 5_000].map((failures) => deliveryPauseMs(failures, { baseMs: 5_000, random }));
  expect(pauses(0.5)).toEqual([5_000, 10_000, 20_000, 2_560_000, 3_600_000, 3_600_000, 3_600_000]);
  expect(pauses(0)[0]).toBe(3_750);
  expect(pauses(1)[0]).toBe(6_250);
});

test('a URL is shown without its query', () => {
  expect(withoutQuery('https://a.example/hook?token=abc')).toBe('https://a.example/hook?…');
  expect(withoutQuery('https://a.example/hook')).toBe('https://a.example/hook');
});

test('the message about an end has the result or the error, and is cut when it is long', () => {
  const of = { handoffId: 'h1', targetAgent: 'reviewer', status: 'completed' } as const;
  expect(handoffResultText({ ...of, outcome: { result: 'good' } })).toBe(
    '[HANDOFF RESULT] reviewer: completed\nHandoff: h1\nResult: good',
  );
  expect(handoffResultText({ ...of, status: 'rejected', outcome: { error: 'not_found: none' } })).toContain(
    'rejected\nHandoff: h1\nError: not_found: none',
  );
  const long = handoffResultText({ ...of, outcome: { result: 'é'.repeat(40_000) } });
  expect(long).toHaveLength(
    32_000 + 4 + '[HANDOFF RESULT] reviewer: completed\nHandoff: h1\nResult: '.length,
  );
  expect(long.endsWith(' […]')).toBe(true);
});
