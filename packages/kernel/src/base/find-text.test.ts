import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { TEXT_MATCHES, type TextMatch, type TextRange, WantedText } from './find-text.js';

/** Runs a search to its end, and counts the characters that it reports as processed. */
function finish<T>(search: Generator<number, T>): { readonly value: T; readonly work: number } {
  let work = 0;
  for (;;) {
    const step = search.next();
    if (step.done === true) return { value: step.value, work };
    work += step.value;
  }
}

function rangesOf(text: string, wanted: string, match: TextMatch): readonly TextRange[] {
  const ranges: TextRange[] = [];
  const onFound = (range: TextRange): boolean => {
    ranges.push(range);
    return false;
  };
  finish(new WantedText(wanted).search(text, match, { onFound }));
  return ranges;
}

const found = (text: string, wanted: string): readonly (string | undefined)[] => {
  const match = finish(new WantedText(wanted).match(text)).value;
  if (match === undefined) return [undefined];
  return [match, ...rangesOf(text, wanted, match).map(({ start, end }) => text.slice(start, end))];
};

const longestIn = (text: string, wanted: string): number =>
  Math.max(
    ...(['whitespace', 'unescaped'] as const).map(
      (match) => finish(new WantedText(wanted).search(text, match, { onFound: () => true })).value,
    ),
  );

describe('a search in a text', () => {
  test.each<[string, string, string, readonly (string | undefined)[]]>([
    ['finds the text as it is, everywhere', 'abcabc', 'bc', ['exact', 'bc', 'bc']],
    ['finds matches that do not overlap', 'aaaa', 'aa', ['exact', 'aa', 'aa']],
    ['finds the text as it is, escapes included', '{"a":"x\\ny"}', 'x\\ny', ['exact', 'x\\ny']],
    [
      'finds a text that a terminal wrapped and indented',
      'one two\n\nthree',
      'two three\n',
      ['whitespace', 'two\n\nthree'],
    ],
    [
      'finds a text whose control characters were shown as spaces',
      'red\u001b[0m',
      'red [0m',
      ['whitespace', 'red\u001b[0m'],
    ],
    ['finds a text whose end was cut', 'a long story', '  a  long …', ['whitespace', 'a long']],
    ['finds a text whose line ends JSON escaped', '{"a":"x\\ny"}', 'x\ny', ['unescaped', 'x\\ny']],
    [
      'finds a text whose quotes JSON escaped twice',
      '"say \\\\\\"hi\\\\\\""',
      'say "hi"',
      ['unescaped', 'say \\\\\\"hi\\\\\\"'],
    ],
    ['finds a text that was copied escaped', 'say "hi"', 'say \\"hi\\"', ['unescaped', 'say "hi"']],
    [
      'finds a text whose letters JSON escaped',
      '"gr\\u00f6\\u00dfe"',
      'größe',
      ['unescaped', 'gr\\u00f6\\u00dfe'],
    ],
    ['finds nothing when the text is not there', 'abc', 'd', [undefined]],
    ['finds nothing when the wanted text is blank', 'a b', ' \n', [undefined]],
    ['finds nothing when the wanted text is empty', 'a b', '', [undefined]],
  ])('%s', (_how, text, wanted, expected) => {
    expect(found(text, wanted)).toEqual(expected);
  });

  test('finds every piece of every text, also after JSON escaped the text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', minLength: 1 }), fc.nat(), fc.nat(), (text, from, length) => {
        const start = from % text.length;
        const wanted = text.slice(start, start + 1 + (length % (text.length - start)));
        expect(found(text, wanted)).toContain(wanted);
        if (wanted.trim() !== '' && wanted.isWellFormed() && !/[\\…\p{Cc}]/u.test(wanted))
          expect(found(JSON.stringify({ text }), wanted)[0]).toBeDefined();
      }),
      { numRuns: 500 },
    );
  });
});

const scraps = fc.string({ unit: fc.constantFrom('a', 'b', ' ', '\n', '\\'), maxLength: 40 });

test('a search for an exact text finds the same places as the simplest search, also in a text that repeats itself', () => {
  fc.assert(
    fc.property(scraps, fc.string({ unit: fc.constantFrom('a', 'b', ' '), minLength: 1 }), (text, wanted) => {
      const starts: number[] = [];
      for (let at = text.indexOf(wanted); at !== -1; at = text.indexOf(wanted, at + wanted.length))
        starts.push(at);
      expect(rangesOf(text, wanted, 'exact').map(({ start }) => start)).toEqual(starts);
    }),
    { numRuns: 500 },
  );
});

test('each kind of search finds a text that crosses the border between two strides of a long text', () => {
  const wanted = 'needle of "hay" and straw';
  for (const [match, written] of [
    ['exact', wanted],
    ['whitespace', wanted.replaceAll(' ', '\n  ')],
    ['unescaped', JSON.stringify(wanted).slice(1, -1)],
  ] as const) {
    for (let before = 8_192 - written.length - 1; before <= 8_193; before += 1) {
      const text = `${'x'.repeat(before)}${written}${'y'.repeat(9_000)}`;
      expect(rangesOf(text, wanted, match)).toEqual([{ start: before, end: before + written.length }]);
    }
  }
});

test('the length of the longest prefix that occurs in the text is reported', () => {
  const text = 'the quick brown fox';
  expect(longestIn(text, 'the quick red fox')).toBe('the quick '.length);
  expect(longestIn(text, 'zebra')).toBe(0);
  expect(longestIn(text, 'the quick brown fox')).toBe(19);
  expect(longestIn('{"a":"the\\nquick"}', 'the  quick\n\nred fox')).toBe('the  quick\n\n'.length);
});

test('the longest prefix that is reported is the longest that a search finds', () => {
  const words = fc.string({ unit: fc.constantFrom('a', 'b', ' ', '\n'), minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(scraps, words, (text, wanted) => {
      fc.pre(found(text, wanted)[0] === undefined);
      let longest = wanted.length;
      const isFound = (): boolean => {
        const prefix = wanted.slice(0, longest);
        return prefix.trim() === '' || found(text, prefix)[0] !== undefined;
      };
      while (!isFound()) longest -= 1;
      // A text of only white space is never found.
      if (wanted.slice(0, longest).trim() === '') longest = 0;
      expect(longestIn(text, wanted)).toBe(longest);
    }),
    { numRuns: 1_000 },
  );
});

test('the work of a search grows only with the length of the text, even when the text and the wanted words are much alike', () => {
  const length = 200_000;
  for (const unit of ['x', 'ab', ' ', '\\', '\n"', '\u0000a']) {
    const text = unit.repeat(length / unit.length);
    for (const wanted of [`q${text.slice(0, 50_000)}`, `${text.slice(0, 50_000)}q`, `${unit.repeat(60)}q`])
      for (const match of TEXT_MATCHES) {
        const search = new WantedText(wanted).search(text, match, { onFound: () => true });
        expect(finish(search).work).toBeLessThanOrEqual(3 * length);
      }
  }
});

test('a search pauses repeatedly, and works through at most one stride between two pauses', () => {
  const text = 'some words of no great interest. '.repeat(5_000);
  for (const match of TEXT_MATCHES) {
    const steps = [...new WantedText('some other words').search(text, match, { onFound: () => true })];
    expect(steps.length).toBeGreaterThan(15);
    expect(Math.max(...steps)).toBeLessThan(10_000);
  }
});
