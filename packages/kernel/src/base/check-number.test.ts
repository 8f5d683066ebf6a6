import { expect, test } from 'vitest';
import { checkDuration, checkWait, checkWholeNumber, MAX_DURATION_MS } from './check-number.js';

const codeOf = (check: () => unknown): unknown => {
  try {
    check();
    return undefined;
  } catch (error) {
    return error;
  }
};

const NOT_DURATIONS = [0, -1, Number.NaN, Infinity, -Infinity, MAX_DURATION_MS + 1, '5', null, undefined, {}];

test('a duration must be positive and at most 30 days; other values are refused with the name of their field', () => {
  for (const value of NOT_DURATIONS)
    expect(
      codeOf(() => checkDuration(value, 'timeoutMs')),
      String(value),
    ).toMatchObject({
      code: 'bad_request',
      details: { field: 'timeoutMs' },
    });
  for (const value of [0.5, 1, MAX_DURATION_MS]) expect(checkDuration(value, 'timeoutMs')).toBe(value);
  expect(checkDuration(0, 'graceMs', { allowsZero: true })).toBe(0);
  expect(codeOf(() => checkDuration(0, 'leaseMs', { code: 'bad_config' }))).toMatchObject({
    code: 'bad_config',
  });
});

test('a wait may have no time limit', () => {
  expect(checkWait(Infinity, 'timeoutMs')).toBe(Infinity);
  expect(checkWait(5, 'timeoutMs')).toBe(5);
  for (const value of NOT_DURATIONS.filter((each) => each !== Infinity))
    expect(
      codeOf(() => checkWait(value, 'timeoutMs')),
      String(value),
    ).toMatchObject({ code: 'bad_request' });
});

test('a whole number must be within its range', () => {
  for (const value of [0, 1.5, 11, Number.NaN, Infinity, '3', null])
    expect(
      codeOf(() => checkWholeNumber(value, 'n', { min: 1, max: 10 })),
      String(value),
    ).toMatchObject({
      code: 'bad_request',
      details: { field: 'n' },
    });
  expect(checkWholeNumber(10, 'n', { min: 1, max: 10 })).toBe(10);
});
