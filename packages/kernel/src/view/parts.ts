/**
 * The parts of a view's message: the words of a card, and the words that a rule puts around them. The parts are derived
 * from the finished message, so building a view costs nothing more.
 *
 * E1  The texts of all parts of a field, joined, equal that field: no text of a prompt is without a part.
 * E2  Every part names the rule that wrote it. A part with `isOwn` holds words of its card and nothing else.
 */

import type { CardId } from '../base/index.js';
import { isJsonObject, jsonText } from '../base/index.js';
import type { Message } from '../card/index.js';
import { CARD_TYPES, type Card, type CardContent } from '../card/index.js';
import { contextContract } from '../model/index.js';
import { anchorBody, isBlank, renderBody } from '../render/render.js';
import type { MessageOrigin, ViewNotice } from './manifest.js';

/**
 * `instructions` to `result`: the words of a card, unchanged or as JSON text. The other rules are fixed wordings around
 * a card's facts (`parent`: "Parent agent: …"), or without any card (`notice.*`). `selector`: the turn's selector wrote
 * the text.
 */
export type PartRule =
  | 'instructions'
  | 'text'
  | 'json'
  | 'fields'
  | 'file'
  | 'arguments'
  | 'result'
  | 'failed_result'
  | 'empty'
  | 'parent'
  | 'anchor'
  | 'note'
  | 'quoted_call'
  | 'quoted_result'
  | 'result_fields'
  | 'foreign_result_fields'
  | 'reference'
  | 'context_contract'
  | 'call_name'
  | 'call_id'
  | 'selector'
  | `notice.${ViewNotice}`;

/** The place of a part in a message; `call` is the index of the tool call. */
export type PartField =
  | { readonly kind: 'content' }
  | { readonly kind: 'tool_name' | 'tool_call_id' }
  | { readonly kind: 'call_name' | 'call_id' | 'call_arguments'; readonly call: number };

export interface MessagePart {
  readonly field: PartField;
  readonly text: string;
  readonly rule: PartRule;
  /** The card that the words or facts come from; null for the profile's instructions and for notices. */
  readonly cardId: CardId | null;
  /** True when the card holds this text; false when the text is the rule's wording. */
  readonly isOwn: boolean;
}

const CONTENT: PartField = { kind: 'content' };
/** The separator between the instructions and the contract. */
const GAP = '\n\n';

/** The rule that writes a card's words in its body, and whether the text is the card's own. */
function bodyRule(content: CardContent): Pick<MessagePart, 'rule' | 'isOwn'> {
  switch (content.kind) {
    case 'text':
      return isBlank(content.text) ? { rule: 'empty', isOwn: false } : { rule: 'text', isOwn: true };
    case 'json':
      return { rule: 'json', isOwn: true };
    case 'fields_schema':
      return { rule: 'fields', isOwn: false };
    case 'file':
      return { rule: 'file', isOwn: false };
    case 'tool_call':
      return { rule: 'arguments', isOwn: true };
    case 'tool_result': {
      if (content.status !== 'success') return { rule: 'failed_result', isOwn: false };
      const isEmpty = typeof content.result === 'string' && isBlank(content.result);
      return isEmpty ? { rule: 'empty', isOwn: false } : { rule: 'result', isOwn: true };
    }
    default:
      return content satisfies never;
  }
}

/** The rule that writes the text around a card's body in a user message. */
function framingRule(card: Card, head: string): PartRule {
  if (card.content.kind === 'tool_call') return 'quoted_call';
  if (card.content.kind === 'tool_result') return 'quoted_result';
  if (card.type === CARD_TYPES.parentPointer) return 'parent';
  if (card.content.kind === 'fields_schema')
    return head.startsWith('[') ? 'foreign_result_fields' : 'result_fields';
  return card.type === CARD_TYPES.anchor ? 'anchor' : 'note';
}

/** Splits the text of a card into the card's own words and the rule's framing before and after them. */
function framedParts(content: string, card: Card): readonly MessagePart[] {
  const isAnchor = card.type === CARD_TYPES.anchor;
  const body = isAnchor ? anchorBody(card) : renderBody(card.content);
  // An anchor without state and a parent line show facts of the card, not its words.
  const hasBody = isAnchor
    ? card.content.kind !== 'json' || card.content.data !== null
    : card.type !== CARD_TYPES.parentPointer;
  const at = !hasBody ? -1 : content.endsWith(body) ? content.length - body.length : content.indexOf(body);
  const end = at + body.length;
  const framing = (text: string): MessagePart => ({
    field: CONTENT,
    text,
    rule: framingRule(card, content),
    cardId: card.id,
    isOwn: false,
  });
  if (at === -1) return [framing(content)];
  const own: MessagePart = { field: CONTENT, text: body, cardId: card.id, ...bodyRule(card.content) };
  return [
    ...(at > 0 ? [framing(content.slice(0, at))] : []),
    own,
    ...(end < content.length ? [framing(content.slice(end))] : []),
  ];
}

/** The instructions, and after them the text about the agent's context limit. */
function systemParts(content: string, contextLimit: number | undefined): readonly MessagePart[] {
  const contract = contextLimit === undefined ? '' : contextContract(contextLimit);
  const own = content.slice(0, content.length - contract.length);
  const part = (text: string, rule: PartRule, isOwn: boolean): readonly MessagePart[] =>
    text === '' ? [] : [{ field: CONTENT, text, rule, cardId: null, isOwn }];
  const gap = own.endsWith(GAP) && contract !== '' ? GAP : '';
  return [
    ...part(own.slice(0, own.length - gap.length), 'instructions', true),
    ...part(gap + contract, 'context_contract', false),
  ];
}

function contentParts(
  message: Message,
  origin: MessageOrigin,
  cards: readonly Card[],
): readonly MessagePart[] {
  const { content } = message;
  const { source } = origin;
  if (content === '') return [];
  if (source.kind === 'profile') return systemParts(content, source.contextLimit);
  if (source.kind === 'notice')
    return [{ field: CONTENT, text: content, rule: `notice.${source.notice}`, cardId: null, isOwn: false }];
  if (source.kind === 'selector')
    return [{ field: CONTENT, text: content, rule: 'selector', cardId: null, isOwn: false }];
  const [card] = cards;
  if (card === undefined) return [];
  if (origin.isReference === true)
    return [{ field: CONTENT, text: content, rule: 'reference', cardId: card.id, isOwn: false }];
  if (message.role === 'user' || card.type === CARD_TYPES.anchor) return framedParts(content, card);
  return [{ field: CONTENT, text: content, cardId: card.id, ...bodyRule(card.content) }];
}

function callParts(message: Message, cards: readonly Card[]): readonly MessagePart[] {
  if (message.role !== 'assistant') return [];
  const callCards = cards.filter((card) => card.content.kind === 'tool_call');
  return (message.toolCalls ?? []).flatMap((call, index): MessagePart[] => {
    const card = callCards[index];
    const shared = { cardId: card?.id ?? null, isOwn: true };
    // Arguments that are not an object are shown wrapped in one.
    const isAsWritten = card?.content.kind === 'tool_call' && isJsonObject(card.content.arguments);
    return [
      { ...shared, field: { kind: 'call_name', call: index }, text: call.name, rule: 'call_name' },
      {
        ...shared,
        field: { kind: 'call_arguments', call: index },
        text: jsonText(call.arguments),
        rule: 'arguments',
        isOwn: isAsWritten,
      },
      { ...shared, field: { kind: 'call_id', call: index }, text: call.id, rule: 'call_id' },
    ];
  });
}

/** Name and id come from the call. The result has the same values, unless two calls of a broken history share an id. */
function resultParts(message: Message, cards: readonly Card[]): readonly MessagePart[] {
  if (message.role !== 'tool') return [];
  const [card] = cards;
  const result = card?.content.kind === 'tool_result' ? card.content : undefined;
  const cardId = card?.id ?? null;
  return [
    {
      field: { kind: 'tool_name' },
      text: message.name,
      rule: 'call_name',
      cardId,
      isOwn: result?.name === message.name,
    },
    {
      field: { kind: 'tool_call_id' },
      text: message.toolCallId,
      rule: 'call_id',
      cardId,
      isOwn: result?.tool_call_id === message.toolCallId,
    },
  ];
}

/**
 * The parts of a message, field by field in reading order.
 *
 * @param cards - The cards that `origin.cardIds` names, in that order.
 */
export function messageParts(
  message: Message,
  origin: MessageOrigin,
  cards: readonly Card[],
): readonly MessagePart[] {
  return [
    ...contentParts(message, origin, cards),
    ...callParts(message, cards),
    ...resultParts(message, cards),
  ];
}
