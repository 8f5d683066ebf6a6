import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { sanitizeText } from './json.js';
import { MaskedText } from './masked-text.js';
import { declareSecrets, maskSecrets } from './secrets.js';

const KEY = 'sk-0123456789 abcdef';
let secrets: Disposable;
beforeEach(() => {
  secrets = declareSecrets({ MY_API_KEY: KEY, LONGER_API_KEY: `${KEY}-and-more` });
});
afterEach(() => secrets[Symbol.dispose]());

const shownOf = (parts: readonly string[]): readonly string[] => {
  const text = new MaskedText();
  return [...parts.map((part) => text.push(part)), text.end()];
};

describe('a text that arrives in parts', () => {
  test.each([
    `begin ${KEY} end`,
    `${KEY}-and-more`,
    `${KEY}-and-mo`,
    'at postgres://me:p%40ss@db:5432/x and redis://:hunter2@r:6379',
    '{"u":"postgres:\\/\\/u:pa\\"ss@h","m":"a@b"}',
    'postgres://h/x?sslmode=no&PASSWORD=abc#y then',
    'http://host:8080/a@b and http://[::1]:80/',
    'NUL \u0000, a lone \ud800 surrogate, a pair \ud83d\ude00 and an end \ud83d',
    'plain: words, with colons? and & more',
    '',
  ])('is masked like the whole text, in any division into parts: %j', (whole) => {
    const masked = sanitizeText(maskSecrets(whole)).value;
    for (let at = 0; at <= whole.length; at += 1)
      for (let to = at; to <= whole.length; to += 1)
        expect(shownOf([whole.slice(0, at), whole.slice(at, to), whole.slice(to)]).join('')).toBe(masked);
    expect(shownOf([...Array.from({ length: whole.length }, (_, at) => whole[at] ?? '')]).join('')).toBe(
      masked,
    );
  });

  test('shows its words at once', () => {
    expect(shownOf(['Hello', ' world', ', we go', ' on 12'])).toEqual([
      'Hello',
      ' world',
      ', we go',
      ' on 12',
      '',
    ]);
  });

  test('is not held back forever when it has no spaces', () => {
    const text = new MaskedText();
    const long = `http://${'a'.repeat(100_000)}`;
    expect(text.push(long).length).toBeGreaterThan(30_000);
    expect(text.end().length).toBeLessThan(70_000);
  });
});
