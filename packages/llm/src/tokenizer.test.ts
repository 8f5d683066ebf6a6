import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { countAllTokens, countTokens, tokenizerOf } from './tokenizer.js';

const NEW = 'openai:gpt-5';
const OLD = 'openai:gpt-4';

describe('the encoding of a model', () => {
  test.each([
    ['openai:gpt-4o-mini', 'o200k_base', true],
    ['openai:gpt-4.1', 'o200k_base', true],
    ['openai:gpt-5.1', 'o200k_base', true],
    ['openai:o3-mini', 'o200k_base', true],
    ['openai:ft:gpt-4o:mine', 'o200k_base', true],
    ['openai:gpt-4-turbo', 'cl100k_base', true],
    ['openai:gpt-4', 'cl100k_base', true],
    ['openai:gpt-3.5-turbo', 'cl100k_base', true],
    ['openai:something-else', 'o200k_base', false],
    ['openai-compatible:gpt-4', 'cl100k_base', false],
    ['openai-compatible:llama-3', 'o200k_base', false],
    ['anthropic:claude-sonnet-4-5', 'o200k_base', false],
    ['scripted', 'o200k_base', false],
    ['', 'o200k_base', false],
  ] as const)('%s is %s, exact: %s', (model, encoding, isExact) => {
    expect(tokenizerOf(model)).toEqual({ encoding, isExact });
  });
});

describe('counting', () => {
  // The counts of another implementation of the published encodings.
  test.each([
    ['', 0, 0],
    ['hello world', 2, 2],
    ['Größe 東京', 3, 5],
    ['The quick brown fox, 42 times;\n\n  indented\ttabs — naïve café 🎉🎉 مرحبا 12345678', 28, 33],
    ['const x = await foo({ a: 1 });', 11, 11],
  ])('%j is %i tokens in the new encoding and %i in the old', async (text, fresh, old) => {
    expect(await countTokens(text, NEW)).toBe(fresh);
    expect(await countTokens(text, OLD)).toBe(old);
  });

  test('treats control tokens in a text as text, and accepts lone surrogates', async () => {
    expect(await countTokens('<|endoftext|>', NEW)).toBeGreaterThan(1);
    expect(await countTokens('a \ud800 b', NEW)).toBeGreaterThan(1);
  });

  test.each([' ', 'a', '\n', '-', 'é', '東', '😀'])(
    'does not take quadratic time for a run of %j, and counts it in slices',
    async (unit) => {
      const once = await countTokens(unit.repeat(512), NEW);
      expect(await countTokens(unit.repeat(512 * 100), NEW)).toBe(once * 100);
    },
  );

  test('slices only such runs', async () => {
    const text = 'The quick brown fox; '.repeat(1_000);
    const part = await countTokens('The quick brown fox; ', NEW);
    expect(await countTokens(text, NEW)).toBeLessThanOrEqual(part * 1_000);
    expect(await countTokens(`x${text}`, NEW)).toBeGreaterThan(4_000);
  });

  test('answers for each of many texts, in their order, whatever is counted at the same time', async () => {
    const texts = ['a', 'a b', '', 'a b c'];
    const [many, old] = await Promise.all([countAllTokens(texts, NEW), countAllTokens(texts, OLD)]);
    expect([many, old]).toEqual([
      [1, 2, 0, 3],
      [1, 2, 0, 3],
    ]);
  });

  test('leaves the event loop free for other work', async () => {
    let turns = 0;
    let isCounted = false;
    const counting = countTokens('The quick brown fox; '.repeat(100_000), NEW).then((tokens) => {
      isCounted = true;
      return tokens;
    });
    for (; !isCounted; turns += 1) await setImmediate();
    expect(await counting).toBeGreaterThan(400_000);
    expect(turns).toBeGreaterThan(5);
  });
});
