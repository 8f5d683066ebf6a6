import { expect, test } from 'vitest';
import {
  BUILT_IN_PRICES,
  costOf,
  findPrice,
  isFree,
  LISTED_PRICES,
  needsPrice,
  pricesSchema,
  priceTables,
} from './prices.js';

test('every built-in price names its source and the date of reading', () => {
  for (const [model, { source, readAt }] of Object.entries(LISTED_PRICES)) {
    expect(source, model).toMatch(/^https:\/\//);
    expect(readAt, model).toMatch(/^20\d\d-\d\d-\d\d$/);
  }
  expect(pricesSchema.safeParse(BUILT_IN_PRICES).success).toBe(true);
  expect(findPrice('anthropic:claude-sonnet-4-5-20250929', [BUILT_IN_PRICES])).toMatchObject({
    input: 3e6,
    output: 15e6,
  });
});

test('each part of a call has its own rate, and otherwise the nearest rate', () => {
  const usage = {
    inputTokens: 1_000_000,
    outputTokens: 1_000_000,
    cachedInputTokens: 400_000,
    cacheWriteTokens: 100_000,
    reasoningTokens: 600_000,
  };
  const plain = { input: 2_000_000, output: 8_000_000 };
  expect(costOf(plain, usage)).toBe(10_000_000);
  const full = { ...plain, cached_input: 500_000, cache_write: 4_000_000, reasoning: 1_000_000 };
  expect(costOf(full, usage)).toBe(1_000_000 + 200_000 + 400_000 + 3_200_000 + 600_000);
});

test('a price of zero is free; a model that calls no provider needs no price', () => {
  expect([isFree({ input: 0, output: 0 }), isFree({ input: 0, output: 0, reasoning: 1 })]).toEqual([
    true,
    false,
  ]);
  expect(['scripted', 'scripted:echo', 'openai:x', 'mine:scripted'].map(needsPrice)).toEqual([
    false,
    false,
    true,
    true,
  ]);
});

test('a price table that is not valid is ignored', () => {
  const others = [BUILT_IN_PRICES];
  expect(priceTables({ a: { input: -1 } }, others)).toEqual(others);
  expect(findPrice('a', priceTables({ a: { input: 1, output: 2 } }, others))).toEqual({
    input: 1,
    output: 2,
  });
});

test('a model costs the same through another API of its account, unless a table says otherwise', () => {
  expect(findPrice('openai-chat:gpt-4o-2024-08-06', [BUILT_IN_PRICES])).toEqual(
    BUILT_IN_PRICES['openai:gpt-4o'],
  );
  const own = { input: 1, output: 2 };
  const other = { input: 3, output: 4 };
  expect(findPrice('openai-chat:x', [{ 'openai:x': own, 'openai-chat:x': other }])).toBe(other);
  expect(findPrice('openai:x', [{ 'openai-chat:x': other }])).toBeUndefined();
  // The first table with the model decides.
  expect(findPrice('openai-chat:x', [{ 'openai:x': own }, { 'openai-chat:x': other }])).toBe(own);
  expect(findPrice('openai-compatible:gpt-4o', [BUILT_IN_PRICES])).toBeUndefined();
});
