import { expect, test } from 'vitest';
import { TakenRings } from './taken-rings.js';

const ids = (...names: string[]): ReadonlySet<string> => new Set(names);

test('a ring is overdue once it has been with a listener for that long, look after look', () => {
  const rings = new TakenRings();
  expect(rings.note(ids('a'), 5_000, 1_000)).toEqual(ids());
  expect(rings.note(ids('a', 'b'), 5_000, 4_000)).toEqual(ids());
  expect(rings.note(ids('a', 'b'), 5_000, 6_000)).toEqual(ids('a'));
  expect(rings.note(ids('a', 'b'), 5_000, 9_000)).toEqual(ids('a', 'b'));
});

test('a ring that one look does not find with a listener is counted from its next taking', () => {
  const rings = new TakenRings();
  rings.note(ids('a'), 5_000, 1_000);
  rings.note(ids(), 5_000, 3_000);
  expect(rings.note(ids('a'), 5_000, 7_000)).toEqual(ids());
  expect(rings.note(ids('a'), 5_000, 12_000)).toEqual(ids('a'));
});

test('every ring with a listener is overdue where nothing is allowed', () => {
  expect(new TakenRings().note(ids('a'), 0, 1_000)).toEqual(ids('a'));
});
