import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import type { JsonObject } from '../base/json.js';
import {
  buildTapeQuery,
  LAST_ANCHOR,
  matchesText,
  parseTapeQuery,
  selectRecords,
  type TapeQueryInput,
  toSlice,
} from './query.js';
import type { TapeRecord } from './record.js';
import { ENTRY_KINDS } from './tape.js';

const record = (
  position: number,
  kind: string,
  payload: JsonObject,
  date: string | null = null,
): TapeRecord => ({
  position,
  kind,
  payload,
  meta: {},
  date,
});

/**
 * Makes a tape with one entry per letter: a capital letter is an anchor of that name, any other letter a message with
 * that text.
 */
const tape = (letters: string): readonly TapeRecord[] =>
  [...letters].map((letter, index) =>
    /[A-Z]/.test(letter)
      ? record(index + 1, 'anchor', { name: letter, state: { n: index } })
      : record(index + 1, letter === '!' ? 'event' : 'message', { role: 'user', content: letter }),
  );

const lettersOf = (records: readonly TapeRecord[]): string =>
  records.map(({ payload }) => payload.name ?? payload.content).join('');

const select = (letters: string, input: TapeQueryInput): string =>
  lettersOf(selectRecords(tape(letters), parseTapeQuery(input)));

describe('a slice', () => {
  test.each<[string, TapeQueryInput, string]>([
    ['SabAcdAe', {}, 'SabAcdAe'],
    ['SabAcdAe', { last_anchor: true }, 'e'],
    ['abc', { last_anchor: true }, 'abc'],
    ['', { last_anchor: true }, ''],
    ['SabA', { last_anchor: true }, ''],
    ['A!b', { last_anchor: true }, '!b'],
    ['SabAcdAe', { after_anchor: 'S' }, 'abAcdAe'],
    ['SabAcdAe', { after_anchor: 'A' }, 'e'],
    ['SabAcdAe', { after_anchor: '' }, 'SabAcdAe'],
    ['SabAcBdBe', { between_anchors: { start: 'A', end: 'B' } }, 'c'],
    ['AaBbAcSdBeB', { between_anchors: { start: 'A', end: 'B' } }, 'cSd'],
    ['SaAb', { between_anchors: { start: 'S' } }, 'aAb'],
    ['SaAb', { between_anchors: { start: 'S', end: 'A' }, last_anchor: true }, 'a'],
    ['SaAb', { last_anchor: true, after_anchor: 'S' }, 'b'],
    ['SaAb', { last_anchor: true, kinds: ['anchor'] }, ''],
    ['aAbBc', { kinds: ['anchor'] }, 'AB'],
    ['aAbBc', { kinds: [] }, 'aAbBc'],
    ['abcd', { limit: 2 }, 'ab'],
    ['abcd', { limit: 0 }, ''],
    ['aAbAc', { kinds: ['message'], limit: 2 }, 'ab'],
    ['aAbAc', { text: '"name"', limit: 1 }, 'A'],
    ['aAbAc', { text: '' }, 'aAbAc'],
  ])('of %s by %j is %s', (letters, input, expected) => {
    expect(select(letters, input)).toBe(expected);
  });

  test.each<[string, TapeQueryInput, string]>([
    ['SaAb', { after_anchor: 'X' }, 'X'],
    ['ab', { after_anchor: 'X' }, 'X'],
    ['SaAb', { between_anchors: { start: 'X', end: 'A' } }, 'X'],
    ['SaAb', { between_anchors: { start: 'A', end: 'S' } }, 'S'],
    ['SaAb', { between_anchors: { start: 'A', end: 'A' } }, 'A'],
    ['SaAb', { between_anchors: { start: 'S', end: 'latest' } }, 'latest'],
  ])('of %s by %j does not find the anchor %s', (letters, input, name) => {
    const run = () => select(letters, input);
    expect(run).toThrow(`Anchor '${name}' was not found.`);
    expect(run).toThrow(expect.objectContaining({ code: 'not_found' }));
  });

  test('by a selector is the last anchor, a named anchor, or the whole tape', () => {
    expect([toSlice(LAST_ANCHOR), toSlice('phase/1'), toSlice(null)]).toEqual([
      { kind: 'after_last' },
      { kind: 'after', anchor: 'phase/1' },
      { kind: 'all' },
    ]);
  });

  test('equals, filter by filter, what a walk over the entries finds', () => {
    const letters = fc.string({ unit: fc.constantFrom('a', 'b', '!', 'A', 'B'), maxLength: 24 });
    const input = fc.record(
      {
        between_anchors: fc.record({ start: fc.constantFrom('A', 'B'), end: fc.constantFrom('A', 'B') }),
        last_anchor: fc.boolean(),
        after_anchor: fc.constantFrom('A', 'B', ''),
        kinds: fc.uniqueArray(fc.constantFrom('anchor', 'event', 'message'), { maxLength: 2 }),
        text: fc.constantFrom('a', '"b"', 'STATE'),
        limit: fc.nat(5),
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(letters, input, (text, query) => {
        const records = tape(text);
        const expected = walk(records, query);
        if (expected === undefined)
          expect(() => selectRecords(records, parseTapeQuery(query))).toThrow(KernelError);
        else expect(selectRecords(records, parseTapeQuery(query))).toEqual(expected);
      }),
      { numRuns: 500 },
    );
  });
});

/**
 * A second implementation of the rules, entry by entry: only earlier entries decide. Undefined when an anchor is
 * missing.
 */
function walk(records: readonly TapeRecord[], input: TapeQueryInput): readonly TapeRecord[] | undefined {
  const between = input.between_anchors;
  const start = between?.start ?? (input.last_anchor ? undefined : input.after_anchor || undefined);
  const isOpen = between === undefined && !input.last_anchor && start === undefined;
  let taken: TapeRecord[] = [];
  let isFound = isOpen || start === undefined;
  let isEnded = between === undefined;
  let isTaking = isFound;
  for (const entry of records) {
    const name = entry.kind === 'anchor' ? entry.payload.name : undefined;
    if (name !== undefined && !isOpen && (start === undefined || name === start)) {
      taken = [];
      isFound = true;
      isTaking = true;
      isEnded = between === undefined;
      // An anchor of the end's name may precede the start: only the first end after the latest start counts.
    } else if (name !== undefined && between !== undefined && name === between.end && isTaking) {
      isTaking = false;
      isEnded = true;
    } else if (isTaking) taken.push(entry);
  }
  if (!isFound || !isEnded) return undefined;
  const found = taken
    .filter(
      (entry) =>
        input.text === undefined || JSON.stringify(entry).toLowerCase().includes(input.text.toLowerCase()),
    )
    .filter((entry) => !input.kinds?.length || input.kinds.some((kind) => kind === entry.kind));
  return input.limit === undefined ? found : found.slice(0, input.limit);
}

describe('dates', () => {
  const dated = [
    record(1, 'message', { content: 'none' }),
    record(2, 'message', { content: 'first' }, '2026-02-21T00:00:00+00:00'),
    record(3, 'message', { content: 'last' }, '2026-02-21T23:59:59.999999+00:00'),
    record(4, 'message', { content: 'next' }, '2026-02-22T01:00:00+01:00'),
  ];
  const between = (start?: string, end?: string): readonly number[] =>
    selectRecords(
      dated,
      parseTapeQuery({
        between_dates: { ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }) },
      }),
    ).map(({ position }) => position);

  test('are inclusive; a day runs from its first to its last microsecond; an entry without a date has the date 1970', () => {
    expect(between('2026-02-21', '2026-02-21')).toEqual([2, 3]);
    expect(between('2026-02-21T00:00:00.000001', '2026-02-22T00:00:00')).toEqual([3, 4]);
    expect(between(undefined, '1970-01-01')).toEqual([1]);
    expect(between('2026-02-22')).toEqual([4]);
  });

  test('that are reversed or not valid are refused', () => {
    expect(() => between('2026-02-22', '2026-02-21')).toThrow(
      'Start date must be earlier than or equal to end date.',
    );
    expect(() => between('', '2026-02-21')).toThrow("Invalid ISO date or datetime: ''.");
  });
});

describe('a search for text', () => {
  const found = (payload: JsonObject, text: string): boolean =>
    matchesText(record(1, 'message', payload), text);

  test.each<[JsonObject, string]>([
    [{ content: 'Straße' }, 'STRASSE'],
    [{ content: 'οδοσα' }, 'ΟΔΟΣ'],
    [{ content: '数据库迁移' }, '迁移'],
    [{ content: 'say "hi"\nthere' }, 'say "hi"\nthere'],
    [{ content: 'x', role: 'user' }, '"content": "x", "role"'],
    [{ content: 'x' }, 'MESSAGE'],
  ])('in %j finds %j', (payload, text) => {
    expect(found(payload, text)).toBe(true);
  });

  test('also finds text in meta and date; the position and the line of a file are not searched', () => {
    const entry = {
      ...record(77, 'event', { name: 'run' }, '2026-02-21'),
      meta: { run_id: 'r-1' },
      line: 'secret',
    };
    expect(matchesText(entry, 'R-1')).toBe(true);
    expect(matchesText(entry, '02-21')).toBe(true);
    expect(matchesText(entry, '77')).toBe(false);
    expect(matchesText(entry, 'secret')).toBe(false);
  });
});

describe('a builder', () => {
  const built = buildTapeQuery((query) => lettersOf(selectRecords(tape('SaAbcBd'), parseTapeQuery(query))));

  test('does not change an earlier query; the last slice method is used', () => {
    const after = built.afterAnchor('S');
    expect(after.lastAnchor().all()).toBe('d');
    expect(after.all()).toBe('aAbcBd');
    expect(after.lastAnchor().afterAnchor('A').all()).toBe('bcBd');
    expect(built.lastAnchor().afterAnchor('').all()).toBe('SaAbcBd');
    expect(built.lastAnchor().betweenAnchors('S', 'B').kinds('message').limit(2).all()).toBe('ab');
    expect(built.betweenAnchors('A').query('b').all()).toBe('bB');
    expect(built.kinds('anchor').kinds().all()).toBe('SaAbcBd');
    expect(built.betweenDates(new Date(0), '1970-01-01').limit(1).all()).toBe('S');
  });

  test('reads nothing and refuses nothing before it is executed', () => {
    const wrong = built.limit(-1);
    expect(() => wrong.all()).toThrow('query.limit: must not be negative.');
    expect(() => built.betweenDates(new Date(Number.NaN), '2026-01-01').all()).toThrow('Invalid Date');
  });
});

test.each([
  [{ limit: -1 }, 'query.limit'],
  [{ limit: 1.5 }, 'query.limit'],
  [{ kinds: [''] }, 'query.kinds.0'],
  [{ between_anchors: { end: 'a' } }, 'query.between_anchors.start'],
  [{ anchor: 'a' }, 'query'],
  ['all', 'query'],
])('a query that is not valid is refused with the name of its field: %j', (input, field) => {
  expect(() => parseTapeQuery(input)).toThrow(`${field}: `);
});

test('every kind of entry can be queried', () => {
  expect(parseTapeQuery({ kinds: [...ENTRY_KINDS] }).kinds).toEqual(ENTRY_KINDS);
});
