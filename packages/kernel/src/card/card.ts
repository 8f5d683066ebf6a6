/**
 * Cards: the immutable units of content. A card is validated once, here, and never changes afterwards. Only the card's
 * `role` decides the role that a model sees; `authorId` is for audit.
 */
import { z } from 'zod';
import type { CardId, ProjectId, ToolCallId } from '../base/index.js';
import {
  canonicalJson,
  isPlainName,
  type JsonObject,
  type JsonValue,
  jsonObjectSchema,
  jsonText,
  KernelError,
  nameSchema,
  PLAIN_NAME,
  parseJsonValue,
  safeParse,
  sha256,
  toBadRequest,
} from '../base/index.js';
import type { ProviderData } from './provider-data.js';

export const ROLES = ['system', 'user', 'assistant', 'tool'] as const;
export type Role = (typeof ROLES)[number];

/** The card types of the kernel; any other non-empty string is a user's own type. */
export const CARD_TYPES = {
  instruction: 'task.instruction',
  resultFields: 'task.result_fields',
  context: 'task.context',
  input: 'task.input',
  parentPointer: 'meta.parent_pointer',
  thought: 'agent.thought',
  toolCall: 'tool.call',
  toolResult: 'tool.result',
  deliverable: 'task.deliverable',
  /** Replaces the cards whose ids are in `metadata.summarizes`. */
  summary: 'task.summary',
  agentError: 'agent.error',
  profile: 'sys.profile',
  notice: 'sys.notice',
  anchor: 'tape.anchor',
  /** The message of a handoff between agents; its fields come from `buildHandoff`. */
  handoff: 'context_handoff',
} as const;

const jsonValue = z.custom<JsonValue>((value) => value !== undefined);

export const fieldSchema = z.strictObject({
  name: z.string().trim().min(1).refine(isPlainName, PLAIN_NAME),
  description: z.string().optional(),
  type: z.enum(['string', 'number', 'boolean', 'object', 'array']).optional(),
  required: z.boolean().optional(),
});
export type Field = z.infer<typeof fieldSchema>;

/** A list of result fields with distinct names. */
export const fieldsSchema = z
  .array(fieldSchema)
  .refine(
    (fields) => new Set(fields.map((field) => field.name)).size === fields.length,
    'field names must differ',
  );

const OUTCOMES = ['success', 'failed', 'timeout', 'canceled'] as const;

const errorBody = z.strictObject({
  code: z.string().min(1),
  message: z.string(),
  details: jsonObjectSchema.optional(),
});

export const contentSchema = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('text'), text: z.string() }),
  z.strictObject({ kind: z.literal('json'), data: jsonValue }),
  z.strictObject({ kind: z.literal('fields_schema'), fields: fieldsSchema }),
  z.strictObject({
    kind: z.literal('tool_call'),
    tool_call_id: z.string(),
    provider_call_id: z.string(),
    name: z.string(),
    /** The parsed arguments; the model's text itself when it is not a JSON object. */
    arguments: jsonValue,
  }),
  z.strictObject({
    kind: z.literal('tool_result'),
    tool_call_id: z.string(),
    name: z.string(),
    status: z.enum(OUTCOMES),
    result: jsonValue.optional(),
    error: errorBody.optional(),
  }),
  z.strictObject({
    kind: z.literal('file'),
    uri: z.string().min(1),
    checksum: z.string().min(1),
    preview: z.string().optional(),
    size_bytes: z.number().int().nonnegative().optional(),
    content_type: z.string().optional(),
  }),
]);
export type CardContent = z.infer<typeof contentSchema>;
export type ContentOf<K extends CardContent['kind']> = Extract<CardContent, { kind: K }>;

/** The part of a card that readers need: everything but the bookkeeping. */
export interface Card {
  readonly id: CardId;
  readonly type: string;
  readonly role: Role | null;
  readonly content: CardContent;
  readonly metadata: JsonObject;
  readonly authorId: string;
  readonly toolCallId: ToolCallId | null;
  /** The provider's attachment to the answer in this card. Only views read it. */
  readonly providerData?: ProviderData;
  /** In a view: the content is a reference to the card's words, which a compaction has left out (view.ts, V8). */
  readonly isReference?: true;
  /** In a view: the card is not shown; its summary replaces it (V8). */
  readonly isLeftOut?: true;
}

/** A card ready to be stored: its content as JSON text in the caller's key order, and a hash over the RFC 8785 form. */
export interface NewCard extends Card {
  readonly projectId: ProjectId;
  readonly contentText: string;
  readonly contentHash: string;
  readonly sizeBytes: number;
  readonly tokenEstimate: number;
}

export interface CardDraft {
  readonly type: string;
  readonly role?: Role | null;
  readonly content: CardContent;
  readonly metadata?: JsonObject;
  readonly authorId: string;
  readonly toolCallId?: ToolCallId | null;
}

/** Default limit for the content of one card. */
export const MAX_CARD_BYTES = 1024 * 1024;

/**
 * About four bytes of UTF-8 are one token in current tokenizers. The estimate is good enough for sums, not for billing.
 */
export const estimateTokens = (sizeBytes: number): number => Math.ceil(sizeBytes / 4);

/**
 * Builds a card from content that is already plain, clean JSON (see `parseJsonValue`, `sanitizeJson`).
 *
 * @throws KernelError `payload_too_large` above `maxBytes`.
 */
export function buildCard(
  draft: CardDraft,
  ids: { id: CardId; projectId: ProjectId },
  maxBytes = MAX_CARD_BYTES,
): NewCard {
  const contentText = jsonText(draft.content);
  const sizeBytes = Buffer.byteLength(contentText);
  if (sizeBytes > maxBytes) {
    throw new KernelError('payload_too_large', {
      message: `The content of a ${draft.type} card has ${sizeBytes} bytes; the limit is ${maxBytes}.`,
      details: { type: draft.type, sizeBytes, limitBytes: maxBytes },
    });
  }
  return {
    id: ids.id,
    projectId: ids.projectId,
    type: draft.type,
    role: draft.role ?? null,
    content: draft.content,
    metadata: draft.metadata ?? {},
    authorId: draft.authorId,
    toolCallId: draft.toolCallId ?? null,
    contentText,
    contentHash: sha256(canonicalJson(draft.content as JsonValue)),
    sizeBytes,
    tokenEstimate: estimateTokens(sizeBytes),
  };
}

/** A card in the form that callers submit; unknown keys are refused. */
export const cardInputSchema = z.strictObject({
  type: nameSchema,
  role: z.enum(ROLES).optional(),
  content: contentSchema,
  metadata: jsonObjectSchema.optional(),
});
export type CardInput = z.infer<typeof cardInputSchema>;

/**
 * @throws KernelError `bad_request` for a wrong shape, NUL characters or lone surrogates; `field` names the place of
 * the card.
 */
export function parseCardInput(input: unknown, field: string): CardInput {
  const plain = parseJsonValue(input, field);
  const parsed = safeParse(cardInputSchema, plain);
  if (!parsed.success) throw toBadRequest(parsed.error, field);
  return parsed.data;
}
