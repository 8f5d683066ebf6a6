import { expect, test } from 'vitest';
import { cleanText } from './step-cards.js';

test('a text is cut after a whole character, and keeps the replacement characters that the model wrote', () => {
  const [character, bytes] = ['\u{1F600}', 4];
  for (let limit = 64; limit < 64 + 3 * bytes; limit += 1) {
    const { value, isChanged } = cleanText(character.repeat(100), limit);
    expect([value, isChanged]).toEqual([
      `${character.repeat(Math.floor((limit - 64) / bytes))} … (cut)`,
      true,
    ]);
  }
  expect(cleanText('a\uFFFD\uFFFDbbb'.padEnd(100, 'b'), 64 + 7).value).toBe('a\uFFFD\uFFFD … (cut)');
});

test('an answer of NUL characters is cut in linear time', () => {
  const { value } = cleanText(`${'\u0000'.repeat(1_000_000)}x${'y'.repeat(1_000_000)}`, 3_000_065);
  expect(value).toBe(`${'\uFFFD'.repeat(1_000_000)}x … (cut)`);
});
