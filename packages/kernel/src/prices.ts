/**
 * What models cost. Prices are list prices in micros (millionths of a dollar) per million tokens; a table given by the
 * operator, or by the project, comes before the built-in one. Source: docs/budgets.md, "Prices".
 */
import { z } from 'zod';
import type { ModelUsage } from './ports.js';

const micros = z.number().int().nonnegative().max(1_000_000_000_000);

const priceSchema = z.strictObject({
  input: micros,
  output: micros,
  /** Input that came from the provider's prompt cache; default: `input`. */
  cached_input: micros.optional(),
  /** Input that was written to it; default: `input`. */
  cache_write: micros.optional(),
});
export type ModelPrice = z.infer<typeof priceSchema>;

/** Prices by model name, as profiles write it (`openai:gpt-4o`). */
export const pricesSchema = z.record(z.string().min(1).max(200), priceSchema);
export type PriceTable = Readonly<Record<string, ModelPrice>>;

const dollars = (input: number, output: number, cachedInput: number, cacheWrite?: number): ModelPrice => ({
  input: Math.round(input * 1e6),
  output: Math.round(output * 1e6),
  cached_input: Math.round(cachedInput * 1e6),
  ...(cacheWrite === undefined ? {} : { cache_write: Math.round(cacheWrite * 1e6) }),
});

/** A start, not a promise: providers change their lists. */
export const BUILT_IN_PRICES: PriceTable = {
  'openai:gpt-4o': dollars(2.5, 10, 1.25),
  'openai:gpt-4o-mini': dollars(0.15, 0.6, 0.075),
  'openai:gpt-4.1': dollars(2, 8, 0.5),
  'openai:gpt-4.1-mini': dollars(0.4, 1.6, 0.1),
  'openai:gpt-4.1-nano': dollars(0.1, 0.4, 0.025),
  'openai:gpt-5': dollars(1.25, 10, 0.125),
  'openai:gpt-5-mini': dollars(0.25, 2, 0.025),
  'openai:gpt-5-nano': dollars(0.05, 0.4, 0.005),
  'openai:o3': dollars(2, 8, 0.5),
  'openai:o4-mini': dollars(1.1, 4.4, 0.275),
  'anthropic:claude-3-5-haiku': dollars(0.8, 4, 0.08, 1),
  'anthropic:claude-3-7-sonnet': dollars(3, 15, 0.3, 3.75),
  'anthropic:claude-sonnet-4': dollars(3, 15, 0.3, 3.75),
  'anthropic:claude-sonnet-4-5': dollars(3, 15, 0.3, 3.75),
  'anthropic:claude-haiku-4-5': dollars(1, 5, 0.1, 1.25),
  'anthropic:claude-opus-4': dollars(15, 75, 1.5, 18.75),
  'anthropic:claude-opus-4-1': dollars(15, 75, 1.5, 18.75),
};

/** A dated version of a model costs what the model costs; `gpt-4o-mini` is another model than `gpt-4o`. */
const VERSION = /[-@](\d{6,8}|\d{4}-\d{2}-\d{2}|latest)$/;

/** The price of a model in the first table that knows it; undefined = unknown: its calls count as 0 and say so. */
export function findPrice(model: string, tables: readonly PriceTable[]): ModelPrice | undefined {
  const names = [model, model.replace(VERSION, '')];
  for (const table of tables) for (const name of names) if (Object.hasOwn(table, name)) return table[name];
  return undefined;
}

/** What a call cost, in micros, rounded up. */
export function costOf(price: ModelPrice, usage: ModelUsage): number {
  const cached = Math.min(usage.cachedInputTokens ?? 0, usage.inputTokens);
  const written = Math.min(usage.cacheWriteTokens ?? 0, usage.inputTokens - cached);
  const plain = usage.inputTokens - cached - written;
  const sum =
    plain * price.input +
    cached * (price.cached_input ?? price.input) +
    written * (price.cache_write ?? price.input) +
    usage.outputTokens * price.output;
  return Math.ceil(sum / 1e6);
}
