import {
  costOf,
  type ErrorBody,
  findingsOf,
  findingWords,
  isFree,
  isJsonObject,
  type JsonObject,
  ModelError,
  type ModelPrice,
  type ModelReply,
  type ModelUsage,
  type ProviderData,
  type ProviderPart,
  providerDataBytes,
  readProviderData,
  safeParse,
  sanitizeJson,
  sanitizeText,
  takeCommands,
  toErrorBody,
} from '@boxcar/kernel';
import { z } from 'zod';

/** Maximum characters of reasoning that are kept: reasoning is for audit and can be as long as the whole answer. */
const MAX_REASONING = 65_536;

/**
 * Maximum bytes of a provider's attachment that are kept. A part of an attachment has no use, so a larger one is dropped, and the
 * card records that.
 */
const MAX_PROVIDER_BYTES = 1024 * 1024;

/** No call has used more tokens than this. Sums of such counts fit in their columns. */
const MAX_COUNT = 1e12;
// Whole numbers: the usage of a turn is stored as whole numbers.
const whole = z
  .number()
  .nonnegative()
  .transform((value) => Math.min(Math.ceil(value), MAX_COUNT));
const count = whole.catch(0);
const optionalCount = whole.optional().catch(undefined);

const usageSchema = z.object({
  inputTokens: count,
  outputTokens: count,
  cachedInputTokens: optionalCount,
  cacheWriteTokens: optionalCount,
  reasoningTokens: optionalCount,
  isEstimated: z.boolean().optional().catch(undefined),
});
/** The parts in a form that a row can hold; undefined when their form is not the port's. */
function readParts(parts: readonly unknown[]): readonly ProviderPart[] | undefined {
  if (parts.length === 0) return undefined;
  return readProviderData({ v: 1, model: '', parts: sanitizeJson(parts).value })?.parts;
}

const replySchema = z.object({
  text: z.string(),
  reasoning: z.string().optional().catch(undefined),
  providerParts: z
    .array(z.record(z.string(), z.unknown()))
    .optional()
    .catch(undefined)
    .transform((parts) => readParts(parts ?? [])),
  toolCalls: z.array(
    z.object({
      id: z.string().catch(''),
      name: z.string().catch(''),
      arguments: z
        .unknown()
        .transform((value) => (typeof value === 'string' ? value : (JSON.stringify(value) ?? ''))),
    }),
  ),
  usage: usageSchema.catch({ inputTokens: 0, outputTokens: 0 }),
  warnings: z.array(z.string()).optional().catch(undefined),
  finishReason: z.enum(['stop', 'tool_calls', 'length', 'content_filter', 'other']).catch('other'),
});

/**
 * An adapter's reply in a form that the kernel can use. Adapters are outside code, so their values may not have their declared
 * types.
 *
 * @throws ModelError `model_failed` when the reply is not an answer.
 */
export function parseReply(reply: unknown): ModelReply {
  const parsed = safeParse(replySchema, reply);
  if (parsed.success) return parsed.data;
  const usage = parseUsage(isJsonObject(reply) ? reply.usage : undefined);
  throw new ModelError(
    'model_failed',
    `The model's answer is malformed: ${findingWords(findingsOf(parsed.error), 'it')}`,
    { ...(usage === undefined ? {} : { usage }) },
  );
}

/** The usage of a failed call, as its adapter reported it; undefined when the adapter reported none. */
export const parseUsage = (usage: unknown): ModelUsage | undefined =>
  usage === undefined ? undefined : usageSchema.safeParse(usage).data;

const isBrokenOff = ({ finishReason }: ModelReply): boolean =>
  finishReason === 'length' || finishReason === 'content_filter';

/** Whether a call has no arguments as the SDK and the kernel read them: an empty text or an empty object. */
function hasNone(text: string): boolean {
  const words = text.trim();
  if (words === '') return true;
  return words.startsWith('{') && words.endsWith('}') && words.slice(1, -1).trim() === '';
}

/**
 * A call without arguments means `{}`. When an answer was broken off, the last call may lack its arguments because they did not
 * arrive. Such a call gets a text that is not an object, so that it is refused and the model repeats it.
 */
export function withoutCutCall(reply: ModelReply): ModelReply {
  const last = reply.toolCalls.at(-1);
  if (last === undefined || !isBrokenOff(reply) || !hasNone(last.arguments)) return reply;
  return { ...reply, toolCalls: [...reply.toolCalls.slice(0, -1), { ...last, arguments: '(broken off)' }] };
}

/**
 * Turns the comma commands of an answer into calls after its own calls, and removes them from its text. An answer that was broken
 * off keeps its text: otherwise half a line could be run.
 */
export function withCommandCalls(reply: ModelReply): ModelReply {
  if (isBrokenOff(reply)) return reply;
  const { visible, calls } = takeCommands(reply.text);
  if (calls.length === 0) return reply;
  const commands = calls.map((call, index) => ({ ...call, id: `command-${index + 1}` }));
  return { ...reply, text: visible, toolCalls: [...reply.toolCalls, ...commands] };
}

/** A step's usage in the form of its row. Fields that the provider did not report are left out, as is the cost without a price. */
export function usageRow(usage: ModelUsage, price?: ModelPrice): JsonObject {
  const { inputTokens, outputTokens, cachedInputTokens, cacheWriteTokens, reasoningTokens } = usage;
  return {
    input_tokens: inputTokens,
    output_tokens: outputTokens,
    ...(cachedInputTokens === undefined ? {} : { cached_input_tokens: cachedInputTokens }),
    ...(cacheWriteTokens === undefined ? {} : { cache_write_tokens: cacheWriteTokens }),
    ...(reasoningTokens === undefined ? {} : { reasoning_tokens: reasoningTokens }),
    ...(price === undefined ? {} : { cost_micros: costOf(price, usage) }),
    ...(price !== undefined && isFree(price) ? { free: true } : {}),
    ...(usage.isEstimated === true ? { estimated: true } : {}),
  };
}

/** Maximum warnings of an adapter that are kept, and maximum characters of each. */
const MAX_WARNINGS = 10;
const MAX_WARNING = 300;

/** Settings that were not sent as in the profile. The step's row keeps them with its usage. */
export function warningsRow({ warnings = [] }: Pick<ModelReply, 'warnings'>): JsonObject {
  if (warnings.length === 0) return {};
  const kept = [...new Set(warnings)].slice(0, MAX_WARNINGS);
  return { warnings: kept.map((text) => sanitizeText(text.slice(0, MAX_WARNING)).value) };
}

/** The model's reasoning as metadata of the card that holds its answer: no view shows metadata. */
export function reasoningMetadata({ reasoning }: Pick<ModelReply, 'reasoning'>): JsonObject {
  if (reasoning === undefined || reasoning.trim() === '') return {};
  const kept = sanitizeText(reasoning.slice(0, MAX_REASONING)).value;
  return { reasoning: kept, ...(reasoning.length > MAX_REASONING ? { reasoning_cut: true } : {}) };
}

/** The part of a provider's attachment that the card of the answer keeps. */
export function attachmentOf(
  { providerParts: parts }: ModelReply,
  model: string,
): { readonly providerData?: ProviderData; readonly metadata?: JsonObject } {
  if (parts === undefined) return {};
  const providerData = { v: 1, model, parts } as const;
  const bytes = providerDataBytes(providerData);
  return bytes > MAX_PROVIDER_BYTES ? { metadata: { provider_data_dropped: bytes } } : { providerData };
}

/** A failed model call as an error body that every column can hold. */
export function describeModelFailure(error: unknown): ErrorBody {
  const body = error instanceof ModelError ? error.toJSON() : toErrorBody(error, 'model_failed');
  const { code, message, details } = sanitizeJson(body).value as {
    code: string;
    message: string;
    details?: Record<string, unknown>;
  };
  return {
    code,
    message: message.slice(0, 10_000).toWellFormed(),
    ...(details === undefined ? {} : { details }),
  };
}
