/**
 * Prices of models. Prices are list prices in micros (millionths of a dollar) per million tokens. A table of the
 * operator or of the project takes precedence over the built-in table. Source: docs/reference/budgets.md, "Prices".
 */
import { z } from 'zod';
import type { ModelUsage } from './ports.js';
import { accountModelOf, providerOf } from './provider.js';

const micros = z.number().int().nonnegative().max(1_000_000_000_000);

const priceSchema = z.strictObject({
  input: micros,
  output: micros,
  /** Input that was read from the provider's prompt cache; default: `input`. */
  cached_input: micros.optional(),
  /** Input that was written to the prompt cache; default: `input`. */
  cache_write: micros.optional(),
  /** Output that was reasoning; default: `output`. */
  reasoning: micros.optional(),
});
export type ModelPrice = z.infer<typeof priceSchema>;

/** Prices by model name, in the form that profiles use (`openai:gpt-4o`). */
export const pricesSchema = z.record(z.string().min(1).max(200), priceSchema);
export type PriceTable = Readonly<Record<string, ModelPrice>>;

/** A built-in price, its source, and the date on which it was read. */
export interface ListedPrice {
  readonly price: ModelPrice;
  readonly source: string;
  readonly readAt: string;
}

type Dollars = readonly [input: number, output: number, cachedInput?: number, cacheWrite?: number];

const dollars = ([input, output, cachedInput, cacheWrite]: Dollars): ModelPrice => ({
  input: Math.round(input * 1e6),
  output: Math.round(output * 1e6),
  ...(cachedInput === undefined ? {} : { cached_input: Math.round(cachedInput * 1e6) }),
  ...(cacheWrite === undefined ? {} : { cache_write: Math.round(cacheWrite * 1e6) }),
});

const readFrom = (
  source: string,
  readAt: string,
  prices: Readonly<Record<string, Dollars>>,
): [string, ListedPrice][] =>
  Object.entries(prices).map(([model, price]) => [model, { price: dollars(price), source, readAt }]);

/**
 * List prices for a million tokens, in dollars: input, output, input read from the cache, input written to the cache.
 * Providers change their lists. A model without a price in a public source is not listed.
 */
export const LISTED_PRICES: Readonly<Record<string, ListedPrice>> = Object.fromEntries([
  ...readFrom('https://platform.claude.com/docs/en/about-claude/pricing', '2026-11-24', {
    'anthropic:claude-opus-5': [5, 25, 0.5, 6.25],
    'anthropic:claude-opus-4-8': [5, 25, 0.5, 6.25],
    'anthropic:claude-opus-4-7': [5, 25, 0.5, 6.25],
    'anthropic:claude-opus-4-6': [5, 25, 0.5, 6.25],
    'anthropic:claude-opus-4-5': [5, 25, 0.5, 6.25],
    'anthropic:claude-opus-4-1': [15, 75, 1.5, 18.75],
  }),
  ...readFrom('https://docs.anthropic.com/en/docs/about-claude/pricing', '2026-11-24', {
    'anthropic:claude-opus-4': [15, 75, 1.5, 18.75],
    'anthropic:claude-sonnet-4': [3, 15, 0.3, 3.75],
    'anthropic:claude-3-7-sonnet': [3, 15, 0.3, 3.75],
    'anthropic:claude-3-5-haiku': [0.8, 4, 0.08, 1],
    'anthropic:claude-3-haiku': [0.25, 1.25, 0.03, 0.3],
  }),
  ...readFrom('https://platform.claude.com/docs/en/models/sonnet-5/overview', '2026-11-24', {
    'anthropic:claude-sonnet-5': [2, 10, 0.2, 2.5],
  }),
  // The cache rates are a tenth and five quarters of the input rate, as for all of these models.
  ...readFrom('https://platform.claude.com/docs/en/models/sonnet-4-5/overview', '2026-11-24', {
    'anthropic:claude-sonnet-4-5': [3, 15, 0.3, 3.75],
  }),
  ...readFrom(
    'https://dev.to/hiyoyok/claude-api-cheatsheet-2026-models-pricing-limits-in-one-place-4jf2',
    '2026-11-24',
    {
      'anthropic:claude-sonnet-4-6': [3, 15, 0.3, 3.75],
      'anthropic:claude-haiku-4-5': [1, 5, 0.1, 1.25],
    },
  ),
  ...readFrom('https://github.com/github/docs, data/tables/copilot/models-and-pricing.yml', '2026-11-24', {
    'openai:gpt-4.1': [2, 8, 0.5],
    'openai:gpt-5-mini': [0.25, 2, 0.025],
    'openai:gpt-5.2': [1.75, 14, 0.175],
  }),
  // Without cache rates, because public sources differ about them: cached input is charged like other input.
  ...readFrom(
    'https://deploybase.ai/articles/openai-pricing (of the list of OpenAI, March 2026)',
    '2026-11-24',
    {
      'openai:gpt-5': [1.25, 10],
      'openai:gpt-5-nano': [0.05, 0.4],
      'openai:gpt-4.1-mini': [0.4, 1.6],
      'openai:gpt-4.1-nano': [0.1, 0.4],
      'openai:o3': [2, 8],
      'openai:o3-mini': [1.1, 4.4],
      'openai:o4-mini': [1.1, 4.4],
    },
  ),
  ...readFrom('https://docs.rs/crate/openai-models/0.1.1 (of the list of OpenAI)', '2026-11-24', {
    'openai:gpt-4o': [2.5, 10, 1.25],
    'openai:gpt-4o-mini': [0.15, 0.6, 0.075],
  }),
]);

/** The built-in table. */
export const BUILT_IN_PRICES: PriceTable = Object.fromEntries(
  Object.entries(LISTED_PRICES).map(([model, { price }]) => [model, price]),
);

/** Scripted models call no provider, so they need no price. */
export const needsPrice = (model: string): boolean => providerOf(model) !== 'scripted';

/** True when every rate of an explicitly given price is zero. */
export const isFree = ({
  input,
  output,
  cached_input = 0,
  cache_write = 0,
  reasoning = 0,
}: ModelPrice): boolean => input + output + cached_input + cache_write + reasoning === 0;

/** A dated version costs the same as its model; `gpt-4o-mini` is another model than `gpt-4o`. */
const VERSION = /[-@](\d{6,8}|\d{4}-\d{2}-\d{2}|latest)$/;

/**
 * The price of a model in the first table that has it, under its own name or under the name of its account. Undefined
 * when no table has it: its calls then cost 0 and are marked as calls without a price.
 */
export function findPrice(model: string, tables: readonly PriceTable[]): ModelPrice | undefined {
  const names = [model, accountModelOf(model)].flatMap((name) => [name, name.replace(VERSION, '')]);
  for (const table of tables) for (const name of names) if (Object.hasOwn(table, name)) return table[name];
  return undefined;
}

/** The project's own prices take precedence over the other tables. A table that cannot be read is ignored. */
export function priceTables(own: unknown, tables: readonly PriceTable[]): readonly PriceTable[] {
  const parsed = pricesSchema.safeParse(own);
  return parsed.success ? [parsed.data as PriceTable, ...tables] : tables;
}

/**
 * The price of a call whose use of the cache and of reasoning is not known: each rate is the highest that may apply.
 */
export const dearestOf = ({
  input,
  output,
  cached_input,
  cache_write,
  reasoning,
}: ModelPrice): ModelPrice => ({
  input: Math.max(input, cached_input ?? 0, cache_write ?? 0),
  output: Math.max(output, reasoning ?? 0),
});

/** The cost of a call in micros, rounded up. */
export function costOf(price: ModelPrice, usage: ModelUsage): number {
  const cached = Math.min(usage.cachedInputTokens ?? 0, usage.inputTokens);
  const written = Math.min(usage.cacheWriteTokens ?? 0, usage.inputTokens - cached);
  const plain = usage.inputTokens - cached - written;
  const reasoning = Math.min(usage.reasoningTokens ?? 0, usage.outputTokens);
  const sum =
    plain * price.input +
    cached * (price.cached_input ?? price.input) +
    written * (price.cache_write ?? price.input) +
    (usage.outputTokens - reasoning) * price.output +
    reasoning * (price.reasoning ?? price.output);
  return Math.ceil(sum / 1e6);
}
