import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { SearchableText } from './find-text.js';

const found = (text: string, wanted: string): readonly (string | undefined)[] => {
  const searchable = new SearchableText(text);
  const match = searchable.match(wanted);
  if (match === undefined) return [undefined];
  return [match, ...searchable.find(wanted, match).map(({ start, end }) => text.slice(start, end))];
};

describe('a text is found', () => {
  test.each<[string, string, string, readonly (string | undefined)[]]>([
    ['as it is, everywhere', 'abcabc', 'bc', ['exact', 'bc', 'bc']],
    ['without overlaps', 'aaaa', 'aa', ['exact', 'aa', 'aa']],
    ['as it is, escapes included', '{"a":"x\\ny"}', 'x\\ny', ['exact', 'x\\ny']],
    [
      'however a terminal wrapped and indented it',
      'one two\n\nthree',
      'two three\n',
      ['whitespace', 'two\n\nthree'],
    ],
    [
      'where control characters were shown as spaces',
      'red\u001b[0m',
      'red [0m',
      ['whitespace', 'red\u001b[0m'],
    ],
    ['when the end was cut', 'a long story', '  a  long …', ['whitespace', 'a long']],
    ['when JSON escaped its line ends', '{"a":"x\\ny"}', 'x\ny', ['unescaped', 'x\\ny']],
    [
      'when JSON escaped its quotes, twice',
      '"say \\\\\\"hi\\\\\\""',
      'say "hi"',
      ['unescaped', 'say \\\\\\"hi\\\\\\"'],
    ],
    ['when it was copied escaped', 'say "hi"', 'say \\"hi\\"', ['unescaped', 'say "hi"']],
    ['when JSON escaped its letters', '"gr\\u00f6\\u00dfe"', 'größe', ['unescaped', 'gr\\u00f6\\u00dfe']],
    ['not at all', 'abc', 'd', [undefined]],
    ['not when it is blank', 'a b', ' \n', [undefined]],
    ['not when it is empty', 'a b', '', [undefined]],
  ])('%s', (_how, text, wanted, expected) => {
    expect(found(text, wanted)).toEqual(expected);
  });

  test('whatever it is: every piece of every text, also after JSON escaped it', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', minLength: 1 }), fc.nat(), fc.nat(), (text, from, length) => {
        const start = from % text.length;
        const wanted = text.slice(start, start + 1 + (length % (text.length - start)));
        expect(found(text, wanted)).toContain(wanted);
        const escaped = new SearchableText(JSON.stringify({ text }));
        if (wanted.trim() !== '' && wanted.isWellFormed() && !/[\\…\p{Cc}]/u.test(wanted))
          expect(escaped.match(wanted)).toBeDefined();
      }),
      { numRuns: 500 },
    );
  });
});

test('the longest beginning that is found', () => {
  const text = new SearchableText('the quick brown fox');
  expect(text.longestPrefix('the quick red fox')).toBe('the quick '.length);
  expect(text.longestPrefix('zebra')).toBe(0);
  expect(text.longestPrefix('the quick brown fox')).toBe(19);
});
