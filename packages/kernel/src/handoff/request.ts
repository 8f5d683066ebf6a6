/** The arguments of a handoff. Rule: docs/reference/handoff.md, "A request". */
import { z } from 'zod';
import {
  isPlainName,
  type JsonValue,
  jsonObjectSchema,
  MAX_DURATION_MS,
  PLAIN_NAME,
  parseJsonValue,
} from '../base/index.js';

const MAX_SECONDS = MAX_DURATION_MS / 1000;
const MAX_ATTEMPTS = 100;
/** The most characters in an idempotency key. */
export const MAX_HANDOFF_KEY = 500;
const MAX_URL = 2_000;

const filled = (most: number) =>
  z
    .string()
    .max(most)
    .refine((value) => value.trim() !== '', 'must not be blank');
const name = (most: number) => filled(most).refine(isPlainName, PLAIN_NAME);

/**
 * Null means that no payload is given, as for every argument: this schema refuses null, and the reader of the arguments
 * then drops it.
 */
const payloadSchema = z
  .custom<JsonValue>((value) => value !== null)
  .transform((value, context): JsonValue => {
    try {
      return parseJsonValue(value, 'payload');
    } catch {
      context.addIssue({ code: 'custom', message: 'must be JSON' });
      return z.NEVER;
    }
  });

const retrySchema = z.strictObject({
  max_attempts: z.int().min(1).max(MAX_ATTEMPTS).default(1),
  /** The first pause; each further pause is twice as long. */
  base_seconds: z.number().min(0).max(MAX_SECONDS).default(1),
  max_seconds: z.number().min(0).max(MAX_SECONDS).default(30),
});

export const handoffArgumentsSchema = z.strictObject({
  target_agent: name(500),
  task: filled(Number.POSITIVE_INFINITY),
  context: jsonObjectSchema.optional(),
  payload: payloadSchema.optional(),
  /** Any name of a platform, in any case. Default: the platform of the target with this name, else `agdd`. */
  platform: name(200).optional(),
  /** From outside, any text; for an agent, its own name, which is the default. */
  source_agent: name(200).optional(),
  run_id: name(500).optional(),
  /** Seconds for the execution, over all attempts. Fractions are allowed. */
  timeout: z.number().positive().max(MAX_SECONDS).optional(),
  retry: retrySchema.optional(),
  idempotency_key: name(MAX_HANDOFF_KEY).optional(),
  /** Only from outside: the handoff that this handoff is a part of. */
  parent_handoff_id: z.string().optional(),
  /** Boxes whose cards are sent along. */
  context_box_id: z.union([z.string(), z.array(z.string()).max(100)]).optional(),
  /** Reuse the result of an identical handoff that completed at most this long ago. Default: no reuse. */
  cache: z.strictObject({ ttl_seconds: z.int().min(1).max(MAX_SECONDS) }).optional(),
  /** True: the answer is the result. */
  wait: z.boolean().optional(),
  /** The receiver of the notification about the end. */
  callback: z.strictObject({ url: filled(MAX_URL) }).optional(),
  /** True: the end is written to the tape of the agent that asks. */
  notify: z.boolean().optional(),
});
export type HandoffArguments = z.output<typeof handoffArgumentsSchema>;

export const DEFAULT_HANDOFF_SECONDS = 3_600;
export const DEFAULT_HANDOFF_RETRY = { max_attempts: 1, base_seconds: 1, max_seconds: 30 } as const;
