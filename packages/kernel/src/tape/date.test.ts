import fc from 'fast-check';
import { expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import { parseTapeDate, pythonDate, secondsToDate } from './date.js';

test.each([
  ['2026-02-21', '2026-02-21T00:00:00.000000Z', '2026-02-21T23:59:59.999999Z'],
  ['20260221', '2026-02-21T00:00:00.000000Z', '2026-02-21T23:59:59.999999Z'],
  ['2024-02-29T10', '2024-02-29T10:00:00.000000Z', '2024-02-29T10:00:00.000000Z'],
  ['2026-02-21T12:00:00', '2026-02-21T12:00:00.000000Z', '2026-02-21T12:00:00.000000Z'],
  ['2026-02-21 12:00:00.1234567+02:00', '2026-02-21T10:00:00.123456Z', '2026-02-21T10:00:00.123456Z'],
  ['2026-01-01T00:30:00.5+01', '2025-12-31T23:30:00.500000Z', '2025-12-31T23:30:00.500000Z'],
  ['2026-02-21T120000,25z', '2026-02-21T12:00:00.250000Z', '2026-02-21T12:00:00.250000Z'],
  ['0001-01-01', '0001-01-01T00:00:00.000000Z', '0001-01-01T23:59:59.999999Z'],
])('%s is read as a date, as a start and as an end', (text, start, end) => {
  expect(parseTapeDate(text, 'start')).toBe(start);
  expect(parseTapeDate(text, 'end')).toBe(end);
});

test.each([
  '',
  ' ',
  'today',
  '2026-02-30',
  '2026-13-01',
  '2026-02-21T24:00',
  '2026-02-21T10:60',
  '0000-01-01',
  '2026-02',
  '2026-02-21X',
  '9999-12-31T23:00-05:00',
])('a text that is not an ISO date is refused with the name of its field: %j', (text) => {
  const parse = () => parseTapeDate(text);
  expect(parse).toThrow(KernelError);
  expect(parse).toThrow(`Invalid ISO date or datetime: '${text}'.`);
});

test('bounds compare as text in the order of their moments', () => {
  const date = fc.date({ min: new Date('0100-01-01'), max: new Date('9990-01-01'), noInvalidDate: true });
  fc.assert(
    fc.property(date, date, (one, other) => {
      const [a, b] = [parseTapeDate(one.toISOString()), parseTapeDate(other.toISOString())];
      expect(Math.sign(one.getTime() - other.getTime())).toBe(a === b ? 0 : a < b ? -1 : 1);
    }),
    { numRuns: 200 },
  );
});

test('a moment is written as the original program writes it', () => {
  expect(pythonDate('2026-02-21 12:00:00.123456+00')).toBe('2026-02-21T12:00:00.123456+00:00');
  expect(pythonDate(new Date('2026-02-21T12:00:00Z'))).toBe('2026-02-21T12:00:00+00:00');
  expect(secondsToDate(0)).toBe('1970-01-01T00:00:00+00:00');
  expect(secondsToDate(1_771_675_200.25)).toBe('2026-02-21T12:00:00.250000+00:00');
  expect([secondsToDate(1e300), secondsToDate(-1e11), secondsToDate(Number.NaN)]).toEqual(
    Array(3).fill(undefined),
  );
  expect(secondsToDate(-0.5)).toBe('1969-12-31T23:59:59.500000+00:00');
});
