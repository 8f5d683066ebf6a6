import {
  costOf,
  type ErrorBody,
  isFree,
  isJsonObject,
  type JsonObject,
  ModelError,
  type ModelPrice,
  type ModelReply,
  type ModelUsage,
  sanitizeJson,
  sanitizeText,
  takeCommands,
  toErrorBody,
} from '@boxcar/kernel';
import { z } from 'zod';

/** Characters of reasoning that are kept: it is for audit and can be as long as the whole answer. */
const MAX_REASONING = 65_536;

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

const replySchema = z.object({
  text: z.string(),
  reasoning: z.string().optional().catch(undefined),
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
  finishReason: z.enum(['stop', 'tool_calls', 'length', 'content_filter', 'other']).catch('other'),
});

/**
 * What an adapter returned, as the kernel can use it: adapters are outside code, whatever their types say.
 *
 * @throws ModelError `model_failed` when it is no answer at all.
 */
export function parseReply(reply: unknown): ModelReply {
  const parsed = replySchema.safeParse(reply);
  if (parsed.success) return parsed.data;
  const first = parsed.error.issues[0];
  const usage = parseUsage(isJsonObject(reply) ? reply.usage : undefined);
  throw new ModelError(
    'model_failed',
    `The model's answer is malformed: ${first?.path.join('.') ?? ''}: ${first?.message ?? ''}.`,
    { ...(usage === undefined ? {} : { usage }) },
  );
}

/** What a failed call has used, as its adapter says; undefined: nothing. */
export const parseUsage = (usage: unknown): ModelUsage | undefined =>
  usage === undefined ? undefined : usageSchema.safeParse(usage).data;

/** The comma commands of an answer as calls behind its own, and its text without them. An answer that was broken off has none: half a line would be run. */
export function withCommandCalls(reply: ModelReply): ModelReply {
  if (reply.finishReason === 'length' || reply.finishReason === 'content_filter') return reply;
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

/** The model's reasoning as metadata of the card that keeps its answer: no view shows metadata. */
export function reasoningMetadata({ reasoning }: Pick<ModelReply, 'reasoning'>): JsonObject {
  if (reasoning === undefined || reasoning.trim() === '') return {};
  const kept = sanitizeText(reasoning.slice(0, MAX_REASONING)).value;
  return { reasoning: kept, ...(reasoning.length > MAX_REASONING ? { reasoning_cut: true } : {}) };
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
