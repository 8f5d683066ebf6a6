import { type ErrorBody, ModelError, type ModelReply, sanitizeJson, toErrorBody } from '@boxcar/kernel';
import { z } from 'zod';

/** Calls of one answer; more than that is a model gone astray. */
const MAX_CALLS = 256;

const count = z.number().nonnegative().catch(0);

const replySchema = z.object({
  text: z.string(),
  toolCalls: z
    .array(
      z.object({
        id: z.string().catch(''),
        name: z.string().catch(''),
        arguments: z
          .unknown()
          .transform((value) => (typeof value === 'string' ? value : (JSON.stringify(value) ?? ''))),
      }),
    )
    .max(MAX_CALLS),
  usage: z.object({ inputTokens: count, outputTokens: count }).catch({ inputTokens: 0, outputTokens: 0 }),
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
  throw new ModelError(
    'model_failed',
    `The model's answer is malformed: ${first?.path.join('.') ?? ''}: ${first?.message ?? ''}.`,
  );
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
