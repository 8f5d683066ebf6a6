import { expect, test } from 'vitest';
import { TakenRings } from './taken-rings.js';

const ids = (...names: string[]): ReadonlySet<string> => new Set(names);

test('a ring is overdue when every check for that long has found it with a listener', () => {
  const rings = new TakenRings();
  expect(rings.note(ids('a'), 5_000, 1_000)).toEqual(ids());
  expect(rings.note(ids('a', 'b'), 5_000, 4_000)).toEqual(ids());
  expect(rings.note(ids('a', 'b'), 5_000, 6_000)).toEqual(ids('a'));
  expect(rings.note(ids('a', 'b'), 5_000, 9_000)).toEqual(ids('a', 'b'));
});

test('a ring that a check does not find with a listener counts from when it is taken next', () => {
  const rings = new TakenRings();
  rings.note(ids('a'), 5_000, 1_000);
  rings.note(ids(), 5_000, 3_000);
  expect(rings.note(ids('a'), 5_000, 7_000)).toEqual(ids());
  expect(rings.note(ids('a'), 5_000, 12_000)).toEqual(ids('a'));
});

test('with a limit of 0 every ring that a listener has is overdue', () => {
  expect(new TakenRings().note(ids('a'), 0, 1_000)).toEqual(ids('a'));
});
