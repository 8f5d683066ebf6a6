import fc from 'fast-check';
import { expect, it } from 'vitest';
import { matchesGlob } from './glob.js';
import { referenceMatches } from './testing/reference-glob.js';

const numRuns = process.env.CI ? 3_000 : 1_000;

it.each([
  ['external-*', 'external-', true],
  ['external-*', 'external-a/b', true],
  ['external-*', 'external-a\nb', true],
  ['external-*', 'my-external-a', false],
  ['*', '', true],
  ['*', '.hidden', true],
  ['', '', true],
  ['', 'a', false],
  ['a', 'A', false],
  ['[A-Z]*', 'agent', false],
  ['?', '/', true],
  ['?', '\n', true],
  ['?', '', false],
  ['?', '😀', true],
  ['[😀-😃]', '😁', true],
  ['??', '😀', false],
  ['*.run', 'shell.run', true],
  ['*.run', 'shell.run ', false],
  ['[abc]x', 'bx', true],
  ['[a-c]x', 'dx', false],
  ['[!a-c]x', 'dx', true],
  ['[!a-c]x', 'x', false],
  ['[]]', ']', true],
  ['[!]]', ']', false],
  ['[]-a]', '^', true],
  ['[a-]', '-', true],
  ['[-a]', '-', true],
  ['[^a]', '^', true],
  ['[^a]', 'b', false],
  ['[b-a]', 'a', false],
  ['[!b-a]', 'a', true],
  ['[*]', '*', true],
  ['[*]', 'a', false],
  ['[a', '[a', true],
  ['[', '[', true],
  ['[]', '[]', true],
  ['[!]', '[!]', true],
  ['a\\*', 'a\\b', true],
  ['a.c', 'abc', false],
  ['(a|b)', 'a', false],
  ['caf\u00e9-*', 'cafe\u0301-1', true],
  ['cafe\u0301-*', 'caf\u00e9-1', true],
])('the glob %j against %j gives %j', (pattern, text, expected) => {
  expect(matchesGlob(pattern, text)).toBe(expected);
});

const word = fc
  .array(fc.constantFrom(...'ab*?[]!-^\\/\n.]'), { maxLength: 12 })
  .map((characters) => characters.join(''));

it('a glob agrees with a matcher that tries every way', () => {
  const text = fc.array(fc.constantFrom(...'ab!-^\\/\n.]['), { maxLength: 8 }).map((all) => all.join(''));
  let matched = 0;
  fc.assert(
    fc.property(word, text, (pattern, against) => {
      const expected = referenceMatches(pattern, against);
      if (expected) matched++;
      expect(matchesGlob(pattern, against)).toBe(expected);
    }),
    { numRuns: 5 * numRuns },
  );
  expect(matched).toBeGreaterThan(numRuns / 20);
});

it('a glob matches the texts that were made from it', () => {
  const part = fc.oneof(
    fc.constantFrom('a', 'b', '/').map((one) => ({ pattern: one, text: one })),
    fc.string({ maxLength: 5 }).map((run) => ({ pattern: '*', text: run })),
    fc.constantFrom('x', '\n', '.', '😀').map((one) => ({ pattern: '?', text: one })),
    fc.constantFrom('c', 'd', ']').map((one) => ({ pattern: '[]c-e]', text: one })),
  );
  fc.assert(
    fc.property(fc.array(part, { maxLength: 20 }), (parts) => {
      const pattern = parts.map((one) => one.pattern).join('');
      expect(matchesGlob(pattern, parts.map((one) => one.text).join(''))).toBe(true);
    }),
    { numRuns },
  );
});

it('matching takes at most text times pattern, where a regular expression would never end', () => {
  expect(matchesGlob(`${'a*'.repeat(100)}b`, 'a'.repeat(20_000))).toBe(false);
  expect(matchesGlob(`${'*a'.repeat(100)}*`, 'a'.repeat(20_000))).toBe(true);
});
