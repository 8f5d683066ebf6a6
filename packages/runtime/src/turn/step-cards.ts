/** The cards that a step leaves: what the model said, what it called, what the kernel tells it. */
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
  /** True when it is no longer what the model wrote. */
  readonly isChanged: boolean;
}

// Cut to size already; what it is wrapped in must not fail it.
const cardOf = (author: StepAuthor, draft: CardDraft): NewCard =>
  buildCard(draft, { id: newId<'card'>(), projectId: author.projectId }, UNLIMITED);

/** A model can write what no card may hold, or more than one may; the rest is cut and the card says so. */
export function cleanText(text: string, maxBytes: number = MAX_CARD_BYTES): CleanText {
  const clean = sanitizeText(text);
  if (Buffer.byteLength(clean.value) <= maxBytes) return clean;
  const bytes = Buffer.from(clean.value);
  let end = Math.max(maxBytes - 64, 0);
  // Not in the middle of a character: its later bytes begin with the bits 10.
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return { value: `${bytes.toString('utf8', 0, end)} … (cut)`, isChanged: true };
}

/** What the card that holds an answer keeps of it in addition to its words: the model's reasoning, and what its provider attached. */
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

/** What the metadata of the notice say that reminds of the length of the context. */
export const CONTEXT_REMINDER = 'context_reminder';

/** What the metadata of the notice say that reminds of the number of calls. */
export const CALLS_REMINDER = 'calls_reminder';

/** Words of the kernel to the model. */
export const noticeCard = (author: StepAuthor, text: string, notice?: string): NewCard =>
  cardOf(author, {
    type: CARD_TYPES.notice,
    role: 'user',
    content: { kind: 'text', text },
    metadata: { role: 'user', ...(notice === undefined ? {} : { notice }) },
    authorId: 'kernel',
  });

/** Arguments as the model wrote them: an object, or the text it sent instead. */
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
    // Kept as text: the model is shown what it wrote.
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
 * A call as the model made it, with an id of ours.
 *
 * @param options.facts - For the first call of an answer without words: its card holds the answer.
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
