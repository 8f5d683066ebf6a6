/** The text of a card in a prompt. Texts here are fixed: the same card gives the same bytes in every view. */

import { isJsonObject, type JsonObject, type JsonValue, jsonText, pythonJson } from '../base/index.js';
import { CARD_TYPES, type Card, type CardContent, type ContentOf, type Field } from '../card/index.js';
import { FINAL_STATUSES } from '../turn/index.js';

/** Fillers for places where a provider requires a user message and the rows have none. */
export const CONTEXT_NOTICE = '[context]';
export const CONTINUE_NOTICE = '[continue]';
export const NOT_AVAILABLE = JSON.stringify({
  error: { code: 'not_available', message: 'The result of this call is not available.' },
});

const EMPTY = '(empty)';
const ERASED = '(erased)';

/**
 * Matches any character that is visible to every provider. The excluded characters are JavaScript's white space, and
 * further characters that Python and Rust count as white space.
 */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the control characters are the point
const visible = /[^\s\u0085\u001c-\u001f]/;
export const isBlank = (text: string): boolean => !visible.test(text);

const orEmpty = (text: string): string => (isBlank(text) ? EMPTY : text);
const textOf = (value: JsonValue): string => orEmpty(typeof value === 'string' ? value : jsonText(value));

function fileLine(file: ContentOf<'file'>): string {
  const facts = [file.content_type, file.size_bytes === undefined ? undefined : `${file.size_bytes} bytes`];
  const known = facts.filter((fact) => fact !== undefined);
  const head = `[file ${file.uri}${known.length > 0 ? ` (${known.join(', ')})` : ''}]`;
  return file.preview === undefined ? head : `${head} ${JSON.stringify(file.preview)}`;
}

const fieldLine = (field: Field): string => {
  const head = `- ${field.name} (${field.type ?? 'any'}, ${(field.required ?? true) ? 'required' : 'optional'})`;
  return field.description === undefined || isBlank(field.description)
    ? head
    : `${head}: ${field.description}`;
};

/** The result fields that bind a turn, with the instruction how to deliver them. */
export function renderFields(fields: readonly Field[], canSubmitResult: boolean): string {
  const last = canSubmitResult
    ? 'End this task by calling submit_result; its `result` is an object with exactly these fields.'
    : 'End this task by answering with one JSON object with exactly these fields, and nothing else.';
  return ['Result fields:', ...fields.map(fieldLine), last].join('\n');
}

const askedBody = (content: CardContent): string =>
  content.kind === 'fields_schema' ? `Result fields:\n${renderBody(content)}` : renderBody(content);

/**
 * The text of the cards that were packed for a turn, in their order. An erased card has no content. Cards that are
 * hidden from models are left out.
 */
export const askedText = (
  cards: readonly { readonly content: CardContent | null; readonly metadata: JsonObject }[],
): string =>
  cards
    .filter(({ metadata }) => metadata.context !== false)
    .map(({ content }) => (content === null ? ERASED : askedBody(content)))
    .join('\n\n');

/** Result fields that bound another turn: they are shown for reading, not for delivery. */
export const renderForeignFields = (fields: readonly Field[]): string =>
  ['[result fields of another task]', ...fields.map(fieldLine)].join('\n');

/** Texts of cards that were rendered in advance: their bodies, and the states of anchors. */
const ahead = { bodies: new WeakMap<CardContent, string>(), states: new WeakMap<CardContent, string>() };

/**
 * Renders a card's text before a prompt that shows it is built, and keeps the text as long as the content exists.
 * Building a prompt cannot be interrupted; its cards can be rendered one at a time before it.
 *
 * @returns How many characters were rendered; 0 for content that is already a text or was rendered before.
 */
export function renderAhead(card: Card): number {
  const { content } = card;
  if (content.kind === 'text' || ahead.bodies.has(content) || ahead.states.has(content)) return 0;
  const isState = card.type === CARD_TYPES.anchor && card.isReference !== true;
  const words = isState ? anchorBody(card) : renderBody(content);
  (isState ? ahead.states : ahead.bodies).set(content, words);
  return words.length;
}

/** The text of a card, never blank. */
export const renderBody = (content: CardContent): string => ahead.bodies.get(content) ?? bodyOf(content);

function bodyOf(content: CardContent): string {
  switch (content.kind) {
    case 'text':
      return orEmpty(content.text);
    case 'json':
      return jsonText(content.data);
    case 'fields_schema':
      return orEmpty(content.fields.map(fieldLine).join('\n'));
    case 'file':
      return fileLine(content);
    case 'tool_call':
      return jsonText(content.arguments);
    case 'tool_result':
      return renderResult(content);
    default:
      return content satisfies never;
  }
}

/**
 * A success is rendered as its result. Any other outcome shows status and error, and the result if there is one
 * (reference W1).
 */
function renderResult(content: ContentOf<'tool_result'>): string {
  const { status, error, result } = content;
  if (status === 'success') return textOf(result ?? null);
  return jsonText({ status, error: error ?? null, ...(result === undefined ? {} : { result }) });
}

/** Providers accept only objects as arguments; any other value from the model stays readable under `_raw`. */
export const callArguments = (value: JsonValue): JsonObject =>
  isJsonObject(value) ? value : { _raw: value };

/** The author of the kernel's own entries on an agent's tape. */
export const KERNEL = 'kernel';

/** How a prompt names agents to its reader. */
export interface Naming {
  readonly readerId: string;
  /** The name of an agent in a prompt; undefined when it has no name. */
  readonly labelOf: (id: string) => string | undefined;
}

/** Names the author of a quoted call to the agent that reads it. */
const named = (authorId: string, { readerId, labelOf }: Naming): string =>
  authorId === readerId ? 'you' : (labelOf(authorId) ?? `agent ${authorId}`);

export const quoteCall = (call: ContentOf<'tool_call'>, authorId: string, naming: Naming): string =>
  `[${named(authorId, naming)} called ${call.name}] ${renderBody(call)}`;

/**
 * The final status of the batch or turn that a call waited for. The call itself counts as a success as soon as it is
 * answered.
 */
function workStatus({ status, result }: ContentOf<'tool_result'>): string {
  if (status !== 'success' || !isJsonObject(result)) return status;
  const isOfWork = typeof result.batch_id === 'string' || typeof result.turn_id === 'string';
  return isOfWork && FINAL_STATUSES.some((final) => final === result.status) ? String(result.status) : status;
}

export const quoteResult = (
  result: ContentOf<'tool_result'>,
  callerId: string | undefined,
  naming: Naming,
): string => {
  const caller = callerId === undefined ? '' : ` for ${named(callerId, naming)}`;
  return `[result of ${result.name}${caller}: ${workStatus(result)}] ${renderBody(result)}`;
};

/** The agent that a parent pointer names; undefined for a card that names no agent. */
export function parentOf(content: CardContent): string | undefined {
  const data = content.kind === 'json' ? content.data : null;
  const id = isJsonObject(data) ? data.parent_agent_id : undefined;
  return typeof id === 'string' && !isBlank(id) ? id : undefined;
}

export function renderParent(content: CardContent, { labelOf }: Naming): string {
  const id = parentOf(content);
  return `Parent agent: ${id === undefined ? 'unknown' : (labelOf(id) ?? id)}`;
}

/** An anchor in Bub's wording, in prompts and for every other reader. `state`: as {@link pythonJson} prints it. */
export const anchorText = (name: string | null | undefined, state: string): string =>
  `[Anchor created: ${name ?? 'None'}]: ${state}`;

const nameOf = ({ metadata }: Card): string | undefined =>
  typeof metadata.name === 'string' ? metadata.name : undefined;

/** The text of an anchor's card in a prompt: its state, or the reference that a compaction has left. */
export function anchorBody({ content, isReference }: Card): string {
  if (isReference === true) return renderBody(content);
  const known = ahead.states.get(content);
  if (known !== undefined) return known;
  return pythonJson(content.kind === 'json' ? content.data : renderBody(content));
}

/** The name is taken from the entry or, in a context box, from the card's metadata. */
export const renderAnchor = (card: Card, anchorName: string | undefined): string =>
  anchorText(anchorName ?? nameOf(card), anchorBody(card));

/** The anchor of another agent, as user text that names its author. */
export const quoteAnchor = (card: Card, anchorName: string | undefined, { labelOf }: Naming): string => {
  const author =
    card.authorId === KERNEL ? 'the kernel' : (labelOf(card.authorId) ?? `agent ${card.authorId}`);
  return `[anchor of ${author}] ${renderAnchor(card, anchorName)}`;
};

/** A role that is not allowed in the middle of a prompt, as user text that names the role. */
export const renderNote = (role: 'system' | 'tool', card: Card, { labelOf }: Naming): string =>
  `[${role} note from ${labelOf(card.authorId) ?? card.authorId}] ${renderBody(card.content)}`;
