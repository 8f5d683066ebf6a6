/** The cards that a step leaves: the model's words, its calls, and the kernel's notices to it. */
import {
  type AgentId,
  buildCard,
  CARD_TYPES,
  type CardDraft,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  MAX_CARD_BYTES,
  type ModelReply,
  type ModelToolCall,
  type NewCard,
  type ProjectId,
  type ProviderData,
  parseJson,
  sanitizeJson,
  sanitizeText,
  type ToolCallId,
  toProviderCallId,
} from '@boxcar/kernel';
import { UNLIMITED } from '../end/index.js';
import { newId } from '../lib/index.js';
import { attachmentOf, reasoningMetadata } from '../model/index.js';

const NAME_OUTSIDE = /[^a-zA-Z0-9_.-]/g;
const MAX_NAME = 64;

export interface StepAuthor {
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
}

export interface CleanText {
  readonly value: string;
  /** True when the text differs from the text that the model wrote. */
  readonly isChanged: boolean;
}

// The content is already cut to size; the structure around it must not make it fail.
const cardOf = (author: StepAuthor, draft: CardDraft): NewCard =>
  buildCard(draft, { id: newId<'card'>(), projectId: author.projectId }, UNLIMITED);

/**
 * A model can write characters that a card cannot hold, or more text than it can hold. Such text is cleaned, cut, and
 * marked as cut.
 */
export function cleanText(text: string, maxBytes: number = MAX_CARD_BYTES): CleanText {
  const clean = sanitizeText(text);
  if (Buffer.byteLength(clean.value) <= maxBytes) return clean;
  const bytes = Buffer.from(clean.value);
  let end = Math.max(maxBytes - 64, 0);
  // Do not cut in the middle of a character: its later bytes begin with the bits 10.
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return { value: `${bytes.toString('utf8', 0, end)} … (cut)`, isChanged: true };
}

/**
 * Data of an answer that its card keeps in addition to its words: the model's reasoning, and the data that its provider
 * attached.
 */
export interface AnswerFacts {
  readonly metadata: JsonObject;
  readonly providerData?: ProviderData;
}

export function factsOf(reply: ModelReply, model: string): AnswerFacts {
  const { metadata, ...attached } = attachmentOf(reply, model);
  return { metadata: { ...reasoningMetadata(reply), ...metadata }, ...attached };
}

const withFacts = (card: NewCard, { providerData }: AnswerFacts): NewCard =>
  providerData === undefined ? card : { ...card, providerData };

export function thoughtCard(author: StepAuthor, text: CleanText, facts: AnswerFacts): NewCard {
  const card = cardOf(author, {
    type: CARD_TYPES.thought,
    role: 'assistant',
    content: { kind: 'text', text: text.value },
    metadata: {
      role: 'assistant',
      ...(text.isChanged ? { sanitized: true } : {}),
      ...facts.metadata,
    },
    authorId: author.agentId,
  });
  return withFacts(card, facts);
}

/** The metadata value of the notice about the length of the context. */
export const CONTEXT_REMINDER = 'context_reminder';

/** The metadata value of the notice about the number of calls. */
export const CALLS_REMINDER = 'calls_reminder';

/** A message of the kernel to the model. */
export const noticeCard = (author: StepAuthor, text: string, notice?: string): NewCard =>
  cardOf(author, {
    type: CARD_TYPES.notice,
    role: 'user',
    content: { kind: 'text', text },
    metadata: { role: 'user', ...(notice === undefined ? {} : { notice }) },
    authorId: 'kernel',
  });

/** Arguments as the model wrote them: an object, or text when they are not a JSON object. */
function parseCallArguments(text: string): {
  readonly value: JsonValue;
  readonly isSanitized: boolean;
} {
  const clean = sanitizeText(text);
  if (clean.value.trim() === '') return { value: {}, isSanitized: clean.isChanged };
  try {
    const parsed = sanitizeJson(parseJson(clean.value));
    if (isJsonObject(parsed.value))
      return { value: parsed.value, isSanitized: clean.isChanged || parsed.isChanged };
  } catch {
    // Kept as text, so that the model sees its own words.
  }
  return { value: clean.value, isSanitized: clean.isChanged };
}

export interface CallOnPaper {
  readonly id: ToolCallId;
  readonly providerCallId: string;
  readonly name: string;
  readonly arguments: JsonValue;
  readonly card: NewCard;
}

/**
 * A call as the model made it, with an id of the kernel.
 *
 * @param options.facts - For the first call of an answer without words: its card holds the facts of the answer.
 */
export function writeCall(
  author: StepAuthor,
  call: ModelToolCall,
  {
    maxBytes,
    facts = { metadata: {} },
  }: { readonly maxBytes: number | undefined; readonly facts?: AnswerFacts },
): CallOnPaper {
  const id = newId<'tool_call'>();
  const text = cleanText(call.arguments, maxBytes);
  const { value, isSanitized } = parseCallArguments(text.value);
  const name = sanitizeText(call.name).value.replace(NAME_OUTSIDE, '_').slice(0, MAX_NAME) || 'unnamed';
  const providerCallId = toProviderCallId(call.id);
  const card = cardOf(author, {
    type: CARD_TYPES.toolCall,
    role: 'assistant',
    content: {
      kind: 'tool_call',
      tool_call_id: id,
      provider_call_id: providerCallId,
      name,
      arguments: value,
    },
    metadata: { ...(isSanitized || text.isChanged ? { sanitized: true } : {}), ...facts.metadata },
    authorId: author.agentId,
    toolCallId: id,
  });
  return { id, providerCallId, name, arguments: value, card: withFacts(card, facts) };
}
