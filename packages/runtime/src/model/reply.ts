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

/** Characters of reasoning that are kept: it is for audit and can be as long as the whole answer. */
const MAX_REASONING = 65_536;

/** Bytes of what a provider attached that are kept. A part of it is of no use, so more is not kept at all, and the card says so. */
const MAX_PROVIDER_BYTES = 1024 * 1024;

/** No call has used more; sums of it fit the columns they are kept in. */
const MAX_COUNT = 1e12;
// Whole: what a turn has spent is kept in whole numbers.
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
/** The parts as a row can hold them; none when they have another form than the port's. */
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
 * What an adapter returned, as the kernel can use it: adapters are outside code, whatever their types say.
 *
 * @throws ModelError `model_failed` when it is no answer at all.
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

/** What a failed call has used, as its adapter says; undefined: nothing. */
export const parseUsage = (usage: unknown): ModelUsage | undefined =>
  usage === undefined ? undefined : usageSchema.safeParse(usage).data;

const isBrokenOff = ({ finishReason }: ModelReply): boolean =>
  finishReason === 'length' || finishReason === 'content_filter';

/** Whether a call has no arguments, as the SDK and the kernel read them: nothing, or an empty object. */
function hasNone(text: string): boolean {
  const words = text.trim();
  if (words === '') return true;
  return words.startsWith('{') && words.endsWith('}') && words.slice(1, -1).trim() === '';
}

/**
 * No arguments mean `{}`. In an answer that was broken off, the last call may be without them because they did not come: it gets a text
 * that is not an object, so that it is refused, and the model makes it again.
 */
export function withoutCutCall(reply: ModelReply): ModelReply {
  const last = reply.toolCalls.at(-1);
  if (last === undefined || !isBrokenOff(reply) || !hasNone(last.arguments)) return reply;
  return { ...reply, toolCalls: [...reply.toolCalls.slice(0, -1), { ...last, arguments: '(broken off)' }] };
}

/** The comma commands of an answer as calls behind its own, and its text without them. An answer that was broken off has none: half a line would be run. */
export function withCommandCalls(reply: ModelReply): ModelReply {
  if (isBrokenOff(reply)) return reply;
  const { visible, calls } = takeCommands(reply.text);
  if (calls.length === 0) return reply;
  const commands = calls.map((call, index) => ({ ...call, id: `command-${index + 1}` }));
  return { ...reply, text: visible, toolCalls: [...reply.toolCalls, ...commands] };
}

/** A step's usage as its row keeps it; what the provider did not say is left out, as is the cost without a price. */
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

/** Of an adapter's warnings so many are kept, and so much of each. */
const MAX_WARNINGS = 10;
const MAX_WARNING = 300;

/** Settings that were not sent as the profile says, as the step's row keeps them beside its usage. */
export function warningsRow({ warnings = [] }: Pick<ModelReply, 'warnings'>): JsonObject {
  if (warnings.length === 0) return {};
  const kept = [...new Set(warnings)].slice(0, MAX_WARNINGS);
  return { warnings: kept.map((text) => sanitizeText(text.slice(0, MAX_WARNING)).value) };
}

/** The model's reasoning as metadata of the card that keeps its answer: no view shows metadata. */
export function reasoningMetadata({ reasoning }: Pick<ModelReply, 'reasoning'>): JsonObject {
  if (reasoning === undefined || reasoning.trim() === '') return {};
  const kept = sanitizeText(reasoning.slice(0, MAX_REASONING)).value;
  return { reasoning: kept, ...(reasoning.length > MAX_REASONING ? { reasoning_cut: true } : {}) };
}

/** What a card that holds an answer keeps of what the provider attached to it. */
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
