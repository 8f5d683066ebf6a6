/**
 * A prompt under construction. Every message goes through `push` and every card through `take`. So each message has its
 * origin, no card enters twice, and each omitted card has its reason.
 */

import type { AgentId, CardId } from '../base/index.js';
import { agentLabel } from '../base/index.js';
import type { Message } from '../card/index.js';
import { CARD_TYPES, type Card, type ContentOf, type ProviderData, toProviderCallId } from '../card/index.js';
import {
  CONTEXT_NOTICE,
  CONTINUE_NOTICE,
  callArguments,
  isBlank,
  KERNEL,
  type Naming,
  NOT_AVAILABLE,
  quoteAnchor,
  quoteCall,
  quoteResult,
  renderAnchor,
  renderBody,
  renderForeignFields,
  renderNote,
  renderParent,
} from '../render/render.js';
import type { MessageOrigin, Omission, OmissionReason, ViewNotice, ViewSource } from './manifest.js';

/** A card and its place on the tape or in a context box. */
export interface Placed<C extends Card = Card> {
  readonly card: C;
  readonly source: Extract<ViewSource, { kind: 'tape' | 'context' }>;
  /** For a card in a context box: it is part of the history of a clone's source. */
  readonly isNative?: boolean;
  /** For an anchor on the tape: its name. */
  readonly anchorName?: string;
}

export type CallCard = Card & { readonly content: ContentOf<'tool_call'> };
export type ResultCard = Card & { readonly content: ContentOf<'tool_result'> };

export const isCall = (placed: Placed): placed is Placed<CallCard> =>
  placed.card.content.kind === 'tool_call';
export const isResult = (placed: Placed): placed is Placed<ResultCard> =>
  placed.card.content.kind === 'tool_result';
export const isThought = ({ card }: Placed): boolean =>
  card.type === CARD_TYPES.thought && card.role === 'assistant' && card.content.kind !== 'tool_call';

/** One call of a step, with its result if it has one. */
export interface StepCall {
  readonly call: Placed<CallCard>;
  readonly result: Placed<ResultCard> | undefined;
}

/** The output of one model call: its words, its calls, and their results. */
export interface Step {
  /** The card that holds the answer. Undefined for an answer without words; then the first call holds it. */
  readonly thought: Placed | undefined;
  readonly calls: readonly StepCall[];
}

export interface Prompt extends Naming {
  readonly readerId: AgentId;
  /** The names of agents that the messages show, by id. */
  readonly shownNames: Map<string, string>;
  /** The model that will read the prompt; undefined when no model will. */
  readonly model: string | undefined;
  readonly messages: Message[];
  readonly origins: MessageOrigin[];
  readonly omissions: Omission[];
  readonly shownCards: Set<CardId>;
  /** Ids of the calls in `messages`; each id may occur only once. */
  readonly callIds: Set<string>;
  /** The author of each call, by call id; quoted results name it. */
  readonly callers: Map<string, string>;
  /** Authors whose anchors the reader sees as its own: the reader itself, and the sources that it was cloned from. */
  readonly ownAuthors: Set<string>;
  /** Author of the last message when that message has a card, else undefined. */
  lastAuthorId: string | undefined;
}

export interface PromptReader {
  readonly agentId: AgentId;
  /** Undefined when no model will read the prompt. */
  readonly model?: string | undefined;
  /** Given names of agents, by id. */
  readonly names?: ReadonlyMap<string, string> | undefined;
}

export const startPrompt = (reader: PromptReader): Prompt => {
  const { agentId: readerId, model, names = new Map() } = reader;
  const shownNames = new Map<string, string>();
  const labelOf = (id: string): string | undefined => {
    const name = names.get(id);
    if (name !== undefined) shownNames.set(id, name);
    return agentLabel(id, names);
  };
  return { readerId, model, labelOf, shownNames, ...emptyPrompt(readerId) };
};

const emptyPrompt = (readerId: AgentId) => ({
  messages: [],
  origins: [],
  omissions: [],
  shownCards: new Set<CardId>(),
  callIds: new Set<string>(),
  callers: new Map<string, string>(),
  ownAuthors: new Set<string>([readerId]),
  lastAuthorId: undefined,
});

const endsWithAssistant = (prompt: Prompt): boolean => prompt.messages.at(-1)?.role === 'assistant';

/** True while the prompt holds nothing but its system message. */
export const hasNoTurns = (prompt: Prompt): boolean => {
  const last = prompt.messages.at(-1);
  return last === undefined || last.role === 'system';
};

export function push(prompt: Prompt, message: Message, source: ViewSource, cards: readonly Card[]): void {
  if (message.role === 'assistant' && hasNoTurns(prompt)) pushNotice(prompt, CONTEXT_NOTICE, 'context');
  prompt.messages.push(message);
  const isReference = cards[0]?.isReference === true ? ({ isReference: true } as const) : {};
  prompt.origins.push({ source, cardIds: cards.map((card) => card.id), ...isReference });
  prompt.lastAuthorId = cards[0]?.authorId;
}

export function pushNotice(prompt: Prompt, content: string, notice: ViewNotice): void {
  push(prompt, { role: 'user', content }, { kind: 'notice', notice }, []);
}

/** A prompt may have ended here. After assistant text it needs a user message before a model can answer. */
export function pushContinue(prompt: Prompt): void {
  if (endsWithAssistant(prompt)) pushNotice(prompt, CONTINUE_NOTICE, 'continue');
}

export function omit(prompt: Prompt, { card, source }: Placed, reason: OmissionReason): void {
  prompt.omissions.push({ source, cardId: card.id, reason });
}

export const isHidden = (card: Card): boolean => card.metadata.context === false;

/**
 * Whether a card may enter: its metadata do not hide it, no compaction leaves it out, and it was not shown before.
 * Records the reason when it may not enter.
 */
export function take(prompt: Prompt, placed: Placed): boolean {
  const { card } = placed;
  if (isHidden(card)) {
    omit(prompt, placed, 'hidden');
    return false;
  }
  if (card.isLeftOut === true) {
    omit(prompt, placed, 'summarized');
    return false;
  }
  if (prompt.shownCards.has(card.id)) {
    omit(prompt, placed, 'duplicate');
    return false;
  }
  prompt.shownCards.add(card.id);
  if (card.isReference === true) omit(prompt, placed, 'referenced');
  return true;
}

/** Writes a card that is not part of a step. */
export function writeCard(prompt: Prompt, placed: Placed): void {
  if (take(prompt, placed)) writeTaken(prompt, placed);
}

function writeTaken(prompt: Prompt, placed: Placed): void {
  if (placed.card.type === CARD_TYPES.anchor) {
    writeAnchor(prompt, placed);
    return;
  }
  const content = userText(prompt, placed);
  if (content === undefined) writeAssistant(prompt, placed);
  else push(prompt, { role: 'user', content }, placed.source, [placed.card]);
}

/**
 * Writes the reader's own anchor as an assistant message, and also the kernel's anchor on the reader's tape. An anchor
 * of another agent is quoted.
 */
function writeAnchor(prompt: Prompt, placed: Placed): void {
  const { card, source, anchorName, isNative = source.kind === 'tape' } = placed;
  const isByReader = prompt.ownAuthors.has(card.authorId) || (isNative && card.authorId === KERNEL);
  const isOwn = isByReader && card.isReference !== true;
  const message: Message = isOwn
    ? { role: 'assistant', content: renderAnchor(card, anchorName) }
    : { role: 'user', content: quoteAnchor(card, anchorName, prompt) };
  push(prompt, message, source, [card]);
}

/** The card as user text; undefined when it is an assistant message. */
function userText(prompt: Prompt, placed: Placed): string | undefined {
  const { card, source } = placed;
  const { content } = card;
  if (content.kind === 'tool_call') {
    prompt.callers.set(content.tool_call_id, card.authorId);
    if (card.providerData !== undefined && !isPackedForOthers(placed))
      omit(prompt, placed, reasonQuoted(prompt, placed));
    return quoteCall(content, card.authorId, prompt);
  }
  if (content.kind === 'tool_result') {
    return quoteResult(content, prompt.callers.get(content.tool_call_id), prompt);
  }
  if (card.type === CARD_TYPES.parentPointer) {
    const isOwn = source.kind === 'context' && source.rule !== 'inherited';
    const line = renderParent(content, prompt);
    return isOwn ? line : `[inherited] ${line}`;
  }
  if (card.type === CARD_TYPES.resultFields && content.kind === 'fields_schema') {
    return renderForeignFields(content.fields);
  }
  switch (card.role) {
    case 'assistant':
      return undefined;
    case 'system':
    case 'tool':
      return renderNote(card.role, card, prompt);
    case 'user':
    case null:
      return renderBody(content);
    default:
      return card.role satisfies never;
  }
}

const isBlankText = ({ content }: Card): boolean => content.kind === 'text' && isBlank(content.text);

/**
 * Writes an assistant's words without calls. A blank thought, or a deliverable that repeats the message before it, is
 * omitted.
 */
function writeAssistant(prompt: Prompt, placed: Placed): void {
  const { card, source } = placed;
  const content = renderBody(card.content);
  const last = prompt.messages.at(-1);
  const isRepeated =
    last?.role === 'assistant' && last.content === content && prompt.lastAuthorId === card.authorId;
  if (card.type === CARD_TYPES.thought && isBlankText(card)) omit(prompt, placed, 'blank');
  else if (card.type === CARD_TYPES.deliverable && isRepeated) omit(prompt, placed, 'repeated');
  else push(prompt, { role: 'assistant', content, ...attachedTo(prompt, placed, []) }, source, [card]);
}

/**
 * The provider's attachment to an answer, for the message that shows the answer (V9). Records the reason when it is
 * left out.
 */
function attachedTo(
  prompt: Prompt,
  placed: Placed,
  calls: readonly StepCall[],
): { readonly provider?: ProviderData } {
  const { providerData: data } = placed.card;
  if (data === undefined || isPackedForOthers(placed)) return {};
  const reason = reasonToLeaveOut(prompt, placed, { data, calls });
  if (reason === undefined) return { provider: data };
  omit(prompt, placed, reason);
  return {};
}

/**
 * The card was packed for an agent that did not receive the answer. No attachment was meant for this prompt, and
 * recording each omission could take thousands of entries.
 */
const isPackedForOthers = ({ source, isNative }: Placed): boolean =>
  source.kind === 'context' && isNative !== true;

const isOfReader = ({ readerId }: Prompt, { card, source, isNative }: Placed): boolean =>
  isNative ?? (source.kind === 'tape' && card.authorId === readerId);

/** For a quoted call, the reason why its attachment is left out. */
function reasonQuoted(prompt: Prompt, placed: Placed): OmissionReason {
  if (!isOfReader(prompt, placed)) return 'other_agent';
  return placed.card.providerData?.model === prompt.model ? 'step_split' : 'other_model';
}

function reasonToLeaveOut(
  prompt: Prompt,
  placed: Placed,
  { data, calls }: { readonly data: ProviderData; readonly calls: readonly StepCall[] },
): OmissionReason | undefined {
  if (!isOfReader(prompt, placed)) return 'other_agent';
  if (data.model !== prompt.model) return 'other_model';
  const ids = data.parts.flatMap((part) => (part.kind === 'call' ? [toProviderCallId(part.id)] : []));
  const isWhole = ids.every((id, index) => calls[index]?.call.card.content.provider_call_id === id);
  return isWhole ? undefined : 'step_split';
}

/** Tool names that every provider accepts in a history; adapters map the dot. */
const legalName = /^[a-zA-Z0-9_.-]{1,64}$/;
const legalCallId = /^[a-zA-Z0-9_-]{1,64}$/;

/**
 * Writes a step in the reader's own form: its words with its calls, then one result per call in call order. Some calls
 * may not have this form: `isNative` refuses the name, or a provider would refuse the name or the id. They follow as
 * quoted text with their results. A call without a result is answered by a fixed text.
 */
export function writeStep(prompt: Prompt, step: Step, isNative: (name: string) => boolean): void {
  const thought = step.thought !== undefined && take(prompt, step.thought) ? step.thought : undefined;
  const native: StepCall[] = [];
  const quoted: Placed[] = [];
  for (const entry of step.calls) {
    const { call, result } = entry;
    const { tool_call_id: callId, name } = call.card.content;
    const isTaken = take(prompt, call);
    const isLegal = legalName.test(name) && legalCallId.test(callId) && !prompt.callIds.has(callId);
    if (isTaken && isLegal && isNative(name)) {
      prompt.callIds.add(callId);
      prompt.callers.set(callId, call.card.authorId);
      native.push(entry);
      continue;
    }
    if (isTaken) quoted.push(call);
    if (result === undefined) continue;
    if (isHidden(call.card)) omit(prompt, result, 'call_hidden');
    else if (take(prompt, result)) quoted.push(result);
  }
  const [first, ...others] = native;
  if (first !== undefined) writeCalls(prompt, thought, [first, ...others]);
  else if (thought !== undefined) {
    if (!isBlankText(thought.card)) pushContinue(prompt);
    writeAssistant(prompt, thought);
  }
  for (const placed of quoted) writeTaken(prompt, placed);
}

function writeCalls(
  prompt: Prompt,
  thought: Placed | undefined,
  calls: readonly [StepCall, ...StepCall[]],
): void {
  const content = thought === undefined || isBlankText(thought.card) ? '' : renderBody(thought.card.content);
  const toolCalls = calls.map(({ call: { card } }) => ({
    id: card.content.tool_call_id,
    name: card.content.name,
    arguments: callArguments(card.content.arguments),
  }));
  const placed: readonly Placed[] = [
    ...(thought === undefined ? [] : [thought]),
    ...calls.map(({ call }) => call),
  ];
  const first = (thought ?? calls[0].call).source;
  const source = { ...first, to: placed.at(-1)?.source.to ?? first.to };
  pushContinue(prompt);
  push(
    prompt,
    {
      role: 'assistant',
      content,
      toolCalls,
      ...attachedTo(prompt, thought ?? calls[0].call, calls),
    },
    source,
    placed.map(({ card }) => card),
  );
  for (const { call, result } of calls) writeAnswer(prompt, call, result);
}

function writeAnswer(
  prompt: Prompt,
  { card: call }: Placed<CallCard>,
  result: Placed<ResultCard> | undefined,
): void {
  const head = { role: 'tool', toolCallId: call.content.tool_call_id, name: call.content.name } as const;
  if (result !== undefined && take(prompt, result)) {
    const { content } = result.card;
    const answer = { ...head, content: renderBody(content), isError: content.status !== 'success' };
    push(prompt, answer, result.source, [result.card]);
  } else {
    push(
      prompt,
      { ...head, content: NOT_AVAILABLE, isError: true },
      { kind: 'notice', notice: 'not_available' },
      [],
    );
  }
}
