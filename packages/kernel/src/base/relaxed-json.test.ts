import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { JsonValue } from './json.js';
import { parseRelaxedJson } from './relaxed-json.js';

test.each<[string, JsonValue]>([
  ['{goal: "Build API"}', { goal: 'Build API' }],
  ["{ tables : 5 , next: 'Routes', }", { tables: 5, next: 'Routes' }],
  [
    '{a: true, b: null, c: -1.5e2, d: 01, e: word/with.dots}',
    { a: true, b: null, c: -150, d: '01', e: 'word/with.dots' },
  ],
  [`{'it\\'s': "say \\"hi\\" \\u00e9", q: 'say "hi"'}`, { "it's": 'say "hi" é', q: 'say "hi"' }],
  [
    `{note: "two
lines"}`,
    { note: 'two\nlines' },
  ],
  ['[[], {}, [1,],]', [[], {}, [1]]],
  ['{a: 1, a: 2}', { a: 2 }],
  [' "text" ', 'text'],
  ['word', 'word'],
])('the relaxed JSON %s is read', (text, value) => {
  expect(parseRelaxedJson(text)).toEqual(value);
});

test('any valid JSON is read as JSON', () => {
  fc.assert(
    fc.property(fc.json({ stringUnit: 'grapheme' }), (text) => {
      expect(JSON.stringify(parseRelaxedJson(text))).toBe(JSON.stringify(JSON.parse(text)));
    }),
    { numRuns: 300 },
  );
});

test('a member named __proto__ is an ordinary member', () => {
  expect(Object.keys(parseRelaxedJson('{__proto__: {x: 1}}') as object)).toEqual(['__proto__']);
});

test.each([
  ['', 'a value is missing'],
  ['{', 'a value is missing'],
  ['{a}', 'a colon is missing'],
  ['{a: }', 'a value is missing'],
  ['{a: 1 b: 2}', 'a comma or } is missing'],
  ['[1,,2]', 'a value is missing'],
  ['{a: Build API}', 'a comma or } is missing'],
  ['{a: 1} x', 'ends too late'],
  ['{a: "open}', 'a value is missing'],
  ['{a: "\\x"}', 'an escape that JSON does not know'],
  ['{a: 1e999}', 'is not a finite number'],
  ['{a: "\\u0000"}', 'NUL'],
  ['['.repeat(300), 'is nested too deeply'],
])('the text %s is refused: %s', (text, why) => {
  expect(() => parseRelaxedJson(text)).toThrow(why);
  expect(() => parseRelaxedJson(text)).toThrow(expect.objectContaining({ code: 'bad_request' }));
});
