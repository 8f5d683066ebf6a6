import { expect, test } from 'vitest';
import { TakenRings } from './taken-rings.js';

const ids = (...names: string[]): ReadonlySet<string> => new Set(names);
/** A check of the rings a and b. */
const check = (...names: string[]) => ({ asked: ids('a', 'b'), taken: ids(...names) });

test('a ring is overdue when every check during the limit has found it with a listener', () => {
  const rings = new TakenRings();
  expect(rings.record(check('a'), 5_000, 1_000)).toEqual(ids());
  expect(rings.record(check('a', 'b'), 5_000, 4_000)).toEqual(ids());
  expect(rings.record(check('a', 'b'), 5_000, 6_000)).toEqual(ids('a'));
  expect(rings.record(check('a', 'b'), 5_000, 9_000)).toEqual(ids('a', 'b'));
});

test('a ring that one check does not find with a listener is counted from the next check that finds it', () => {
  const rings = new TakenRings();
  rings.record(check('a'), 5_000, 1_000);
  rings.record(check(), 5_000, 3_000);
  expect(rings.record(check('a'), 5_000, 7_000)).toEqual(ids());
  expect(rings.record(check('a'), 5_000, 12_000)).toEqual(ids('a'));
});

test('checks of other rings do not forget a ring until no check has asked about it for a long time', () => {
  const rings = new TakenRings();
  const others = { asked: ids('c'), taken: ids() };
  rings.record(check('a'), 5_000, 1_000);
  rings.record(others, 5_000, 3_000);
  expect(rings.record(check('a'), 5_000, 7_000)).toEqual(ids('a'));
  rings.record(others, 5_000, 700_000);
  expect(rings.record(check('a'), 5_000, 701_000)).toEqual(ids());
});

test('with a limit of 0 every ring that a listener has is overdue', () => {
  expect(new TakenRings().record(check('a'), 0, 1_000)).toEqual(ids('a'));
});
