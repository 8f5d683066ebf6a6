import { expect, it } from 'vitest';
import { cut, toLine, toPlain, widthOf } from './plain-text.js';

it('the width is that of the terminal: wide characters take two columns, and combining characters none', () => {
  expect(['abc', '作家', 'e\u0301', '🙂'].map(widthOf)).toEqual([3, 4, 1, 2]);
  expect(cut('作家作家', 5)).toBe('作家…');
  expect(cut('abc', 3)).toBe('abc');
});

it('no character moves the cursor, changes colors or reverses text, and the characters of scripts and emoji stay', () => {
  const bidi = '\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069';
  expect(toPlain(`a\u001b[31m\u009b2J\u0007\u007f${bidi}\u2028b`)).toBe(
    `a [31m 2J  ${' '.repeat(bidi.length)} b`,
  );
  expect(toLine(`a${bidi}b`)).toBe('a b');
  for (const text of ['👩‍🚀', 'می‌خواهم', 'a\tb\nc']) expect(toPlain(text)).toBe(text);
});
