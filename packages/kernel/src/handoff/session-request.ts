/** The arguments of the session tools. Rule: docs/reference/handoff-sessions.md. */
import { z } from 'zod';
import {
  isCleanText,
  isPlainName,
  type JsonObject,
  type JsonValue,
  jsonObjectSchema,
  PLAIN_NAME,
  parseJsonValue,
  toName,
} from '../base/index.js';
import { MAX_HANDOFF_KEY } from './request.js';
import { CONTEXT_TYPES, RETENTION_POLICIES, type RetentionPolicy, SESSION_STATUSES } from './sessions.js';

/** The most characters in a session's key. */
const MAX_SESSION_KEY = 256;
/** The most entries in one update. */
const MAX_CONTEXT_BATCH = 500;
/** The most bytes of UTF-8 in the content of one entry. */
export const MAX_CONTEXT_BYTES = 1_048_576;
/** The most bytes of JSON in the metadata of one entry. */
export const MAX_CONTEXT_METADATA_BYTES = 65_536;
/** The most entries in a page of context, and the most sessions in a list. */
export const MAX_SESSION_PAGE = 500;
const MAX_AGENT = 200;
const MAX_REASON = 1_000;
/** The most targets of a collaboration, without the first. */
const MAX_REQUEST_TARGETS = 19;

const name = (most: number) =>
  z
    .string()
    .min(1)
    .max(most)
    .refine((value) => value.trim() !== '', 'must not be blank')
    .refine(isPlainName, PLAIN_NAME)
    .transform(toName);

/** Whether a value is JSON that can be stored: no NUL, no lone surrogates, not nested too deeply. */
function isStorable(value: unknown): boolean {
  try {
    parseJsonValue(value, 'value');
    return true;
  } catch {
    return false;
  }
}
const STORABLE = 'must be JSON of at most 200 levels, without NUL characters and lone surrogates';
const objectSchema = jsonObjectSchema.refine(isStorable, STORABLE);
const reasonSchema = z
  .string()
  .max(MAX_REASON)
  .refine(isCleanText, 'must be without NUL characters and lone surrogates');

const key = name(MAX_SESSION_KEY);
const idempotencyKey = name(MAX_HANDOFF_KEY).optional();
const policy = z.enum(RETENTION_POLICIES as readonly [RetentionPolicy, ...RetentionPolicy[]]);

export const registerSessionSchema = z.strictObject({
  session_key: key.describe('Your name for the session, unique in the project.'),
  /** From outside, any name; for an agent, its own name, which is the default. */
  agent_from: name(MAX_AGENT).optional().describe('The agent that the session belongs to.'),
  metadata: objectSchema.optional(),
  /** Can also be given in the metadata. Default: standard. */
  retention_policy: policy.optional(),
  continues: key.optional().describe('The key of the completed session that this one continues.'),
  idempotency_key: idempotencyKey,
});

const contextEntrySchema = z.strictObject({
  context_type: z.enum(CONTEXT_TYPES),
  content: z.string().min(1).describe('At most 1,048,576 bytes of UTF-8.'),
  metadata: objectSchema.optional(),
});
export type ContextEntryInput = z.output<typeof contextEntrySchema>;

/** Either one entry, or several in `entries`. */
export const updateContextSchema = z
  .strictObject({
    session_key: key,
    ...contextEntrySchema.partial().shape,
    entries: z.array(contextEntrySchema).min(1).max(MAX_CONTEXT_BATCH).optional(),
    idempotency_key: idempotencyKey,
  })
  .refine(
    ({ entries, context_type: type, content, metadata }) =>
      entries === undefined
        ? type !== undefined && content !== undefined
        : type === undefined && content === undefined && metadata === undefined,
    { error: 'must have context_type and content, or entries alone', path: ['entries'] },
  );

export const getContextSchema = z.strictObject({
  session_key: key,
  cursor: z.int32().min(0).optional().describe('The next_cursor of the previous page.'),
  limit: z.int().min(1).max(MAX_SESSION_PAGE).optional(),
});

export const getSummarySchema = z.strictObject({ session_key: key });

export const listSessionsSchema = z.strictObject({
  agent: name(MAX_AGENT).optional(),
  status: z.enum(SESSION_STATUSES).optional(),
  cursor: z.string().optional(),
  limit: z.int().min(1).max(MAX_SESSION_PAGE).optional(),
});

export const closeSessionSchema = z.strictObject({
  session_key: key,
  status: z.enum(['completed', 'cancelled']).optional(),
  reason: reasonSchema.optional(),
  idempotency_key: idempotencyKey,
});

export const HANDOFF_REQUEST_TYPES = ['context_transfer', 'full_handoff', 'collaboration'] as const;
export type HandoffRequestType = (typeof HANDOFF_REQUEST_TYPES)[number];

/** The turn priorities for the words that clients use. */
export const REQUEST_PRIORITIES = { low: -50, normal: 0, high: 50, urgent: 100 } as const;
type RequestPriority = keyof typeof REQUEST_PRIORITIES;
const PRIORITY_WORDS = Object.keys(REQUEST_PRIORITIES) as [RequestPriority, ...RequestPriority[]];

/** The fields that the server reads; all other fields are passed along. */
const requestDataSchema = (
  z.looseObject({
    instructions: z
      .string()
      .refine((value) => value.trim() !== '', 'must not be blank')
      .optional()
      .describe('The task for the target.'),
    priority: z.enum(PRIORITY_WORDS).optional(),
  }) as unknown as z.ZodType<JsonObject>
).pipe(objectSchema);

export const requestHandoffSchema = z
  .strictObject({
    session_key: key,
    target_agent: name(MAX_AGENT).describe(
      'An agent or profile of this project. Under any other name the package waits until a client with that name accepts it.',
    ),
    target_agents: z
      .array(name(MAX_AGENT))
      .min(1)
      .max(MAX_REQUEST_TARGETS)
      .optional()
      .describe('More targets of a collaboration.'),
    request_type: z.enum(HANDOFF_REQUEST_TYPES).optional().describe('Default: context_transfer.'),
    request_data: requestDataSchema.optional(),
    idempotency_key: idempotencyKey,
  })
  .refine(({ target_agents: more, request_type: type }) => more === undefined || type === 'collaboration', {
    error: 'is for a collaboration only',
    path: ['target_agents'],
  });
export type SessionHandoffRequest = z.output<typeof requestHandoffSchema>;

/** The targets of a request, without repetitions. */
export const targetsOf = ({
  target_agent: first,
  target_agents: more = [],
}: SessionHandoffRequest): readonly string[] => [...new Set([first, ...more])];

/** The key is optional: repeating such a call has the same effect without a key. */
const packageFields = { handoff_id: z.string().min(1), idempotency_key: idempotencyKey };
export const acceptHandoffSchema = z.strictObject(packageFields);
export const rejectHandoffSchema = z.strictObject({
  ...packageFields,
  reason: reasonSchema.optional(),
});
export const completeHandoffSchema = z.strictObject({
  ...packageFields,
  result: z.custom<JsonValue>(isStorable, STORABLE).optional().describe('Any JSON.'),
});

/** The target's instruction when the client gives none. */
export const DEFAULT_HANDOFF_INSTRUCTION =
  'Continue the session that is handed to you. Its summary is in the context.';

/** The entries of an update, in either form. */
export function contextEntriesOf(update: z.output<typeof updateContextSchema>): readonly ContextEntryInput[] {
  const { entries, context_type: type, content, metadata } = update;
  if (entries !== undefined) return entries;
  if (type === undefined || content === undefined) return [];
  return [{ context_type: type, content, ...(metadata === undefined ? {} : { metadata }) }];
}

/** The requested policy, from its own field or from the metadata; undefined when the policy is unknown. */
export function retentionPolicyOf(asked: {
  readonly retention_policy?: RetentionPolicy | undefined;
  readonly metadata?: JsonObject | undefined;
}): RetentionPolicy | undefined {
  if (asked.retention_policy !== undefined) return asked.retention_policy;
  const named = asked.metadata?.retention_policy;
  return named === undefined ? 'standard' : policy.safeParse(named).data;
}
