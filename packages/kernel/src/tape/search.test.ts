import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { foldText, MAX_WORDS, matchSearch, parseSearch, wordsOf } from './search.js';

const match = (query: string, text: string) => matchSearch(parseSearch(query), foldText(text));

describe('a search in entries', () => {
  test.each([
    ['database migration', 'The Database Migration is done.', 'exact'],
    ['databse migrtion', 'The database migration is done.', 'near'],
    ['migration database', 'The database migration is done.', 'near'],
    ['dtabse', 'database', undefined],
    ['数据库', '我们迁移了数据库。', 'exact'],
    ['naïve', 'a NAI\u0308VE plan', 'exact'],
    ['ﬁle', 'the file', 'exact'],
    ['STRASSE', 'Straße', 'exact'],
    ['STRAẞE', 'Straße', 'exact'],
    ['ΟΔΟΣ', 'οδοσα', 'exact'],
    ['\u0390', '\u03aa\u0301', 'exact'],
    ['𠀀𠀁x𠀃', '𠀀𠀁𠀂𠀃', 'near'],
    ['𠀀𠀁', '𠀀𠀂', undefined],
    ['cat', 'a car', undefined],
    ['cats', 'a bats', 'near'],
    ['50%', '50% off', 'exact'],
    ['a_b', 'aXb', 'near'],
    ['', 'anything', undefined],
    ['  ', 'anything', undefined],
    ['?!', 'anything', undefined],
  ])('for %j in %j gives: %s', (query, text, expected) => {
    expect(match(query, text)).toBe(expected);
  });

  test('finds a word with as many typos as allowed: no match is missing from its candidates', () => {
    const letter = fc.constantFrom(...'abcdefg');
    fc.assert(
      fc.property(
        fc.string({ unit: letter, minLength: 4, maxLength: 14 }),
        fc.array(fc.record({ at: fc.nat(13), what: fc.constantFrom('drop', 'add', 'change'), letter }), {
          maxLength: 2,
        }),
        (word, edits) => {
          const search = parseSearch(word);
          let text = word;
          for (const { at, what, letter: other } of edits.slice(0, search.words[0]?.typos))
            text =
              text.slice(0, at) + (what === 'drop' ? '' : other) + text.slice(what === 'add' ? at : at + 1);
          expect(matchSearch(search, `x ${text} y`)).toBeDefined();
          expect(search.words[0]?.parts.some((part) => text.includes(part))).toBe(true);
        },
      ),
    );
  });
});

const contentOf = (content: string) =>
  ({ position: 1, kind: 'message', payload: { content }, meta: {}, date: null }) as const;

test('folds a long text in parts as it would fold the whole', () => {
  const letter = fc.constantFrom(
    ...[
      'a',
      'é',
      'e',
      '\u0301',
      '\u0323',
      'ﬁ',
      '\ufdfa',
      'ｶ',
      'ﾞ',
      '\u1100',
      '\u1161',
      '\u11a8',
      '각',
      '\u0390',
    ],
    ...['Σ', 'ß', 'ẞ', '𝔘', '\u09c7', '\u09be', '\u0345', ' ', '\n', 'İ'],
  );
  fc.assert(
    fc.property(fc.string({ unit: letter, minLength: 1, maxLength: 300 }), (part) => {
      const text = part.repeat(Math.ceil(10_000 / part.length));
      fc.pre(!/[\p{M}\u1161\u11a8ﾞ]{30}/u.test(text));
      expect(wordsOf(contentOf(text))).toBe(
        foldText(text)
          .slice(0, MAX_WORDS)
          .replace(/[\ud800-\udbff]$/, ''),
      );
    }),
    { numRuns: 50 },
  );
});

test('folds no more of a text that grows by folding than it searches', () => {
  const normalize = vi.spyOn(String.prototype, 'normalize');
  let folded = 0;
  try {
    wordsOf(contentOf('\ufdfa'.repeat(300_000)));
    for (const { value } of normalize.mock.results) folded += String(value).length;
  } finally {
    normalize.mockRestore();
  }
  expect(folded).toBeLessThan(4 * MAX_WORDS);
});

test('reads the texts and numbers of an entry’s payload', () => {
  const record = { position: 1, kind: 'message', meta: { hidden: 'no' }, date: null } as const;
  expect(wordsOf({ ...record, payload: { role: 'User', content: ['Eins', { n: 2 }, null, true] } })).toBe(
    'user\neins\n2',
  );
  expect(wordsOf({ ...record, payload: { content: `${'x'.repeat(MAX_WORDS - 1)}😀` } })).toHaveLength(
    MAX_WORDS - 1,
  );
});

test('does not read the state of a handoff’s anchor in the handoff event, since the state may be erased', () => {
  const payload = { name: 'handoff', data: { name: 'phase', state: { secret: 'word' } } };
  const record = { position: 1, kind: 'event', payload, meta: {}, date: null } as const;
  expect(wordsOf(record)).toBe('handoff\nphase');
});

test('folds only the parts of an entry that its words can come from', () => {
  const sizes: number[] = [];
  const native = String.prototype.normalize;
  const spy = vi.spyOn(String.prototype, 'normalize').mockImplementation(function (this: string, form) {
    sizes.push(this.length);
    return native.call(this, form);
  });
  const record = { position: 1, kind: 'message', meta: {}, date: null } as const;
  try {
    expect(wordsOf({ ...record, payload: { content: 'A'.repeat(2 ** 20) } })).toHaveLength(MAX_WORDS);
    expect(wordsOf({ ...record, payload: { content: Array(100_000).fill('Abcdefgh') } })).toHaveLength(
      MAX_WORDS,
    );
  } finally {
    spy.mockRestore();
  }
  expect(Math.max(...sizes)).toBeLessThanOrEqual(4 * MAX_WORDS);
});
