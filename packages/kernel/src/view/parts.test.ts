import assert from 'node:assert/strict';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { AgentId, BoxId, CardId, TurnId } from '../base/ids.js';
import { CARD_TYPES, type Card, type CardContent } from '../card/card.js';
import type { Message } from '../card/message.js';
import { anchorBody } from '../render/render.js';
import { play } from '../testing/view-history.js';
import { historyPlan } from '../testing/view-plan.js';
import type { ContextCard, ViewRows } from './context.js';
import { type MessagePart, messageParts } from './parts.js';
import { buildView } from './view.js';

const numRuns = process.env.CI ? 1_000 : 100;

function cardsOf(rows: ViewRows): ReadonlyMap<CardId, Card> {
  const all = [
    ...rows.entries.flatMap(({ card }) => (card === null ? [] : [card])),
    ...[...rows.contexts.values()].flat().map(({ card }) => card),
  ];
  return new Map(all.map((card) => [card.id, card]));
}

/** The fields of a message that a model reads, in order. */
const fieldsOf = (message: Message): readonly string[] => [
  message.content,
  ...(message.role === 'assistant'
    ? (message.toolCalls ?? []).flatMap((call) => [call.name, JSON.stringify(call.arguments), call.id])
    : []),
  ...(message.role === 'tool' ? [message.name, message.toolCallId] : []),
];

/** The fields, joined from their parts. */
function joined(parts: readonly MessagePart[]): readonly string[] {
  const fields = new Map<string, string>();
  for (const { field, text } of parts) {
    const key = JSON.stringify(field);
    fields.set(key, (fields.get(key) ?? '') + text);
  }
  return [...fields.values()];
}

function partsOf(rows: ViewRows): readonly (readonly MessagePart[])[] {
  const view = buildView(rows);
  const cards = cardsOf(rows);
  return view.messages.map((message, index) => {
    const origin = view.origins[index];
    if (origin === undefined) throw new Error(`message ${index} has no origin`);
    const own = origin.cardIds.flatMap((id) => cards.get(id) ?? []);
    return messageParts(message, origin, own);
  });
}

test('the parts of every message join to the message, and words of a card are in that card', () => {
  fc.assert(
    fc.property(historyPlan, (plan) => {
      for (const rows of play(plan).prompts) {
        const cards = cardsOf(rows);
        const parts = partsOf(rows);
        const { messages } = buildView(rows);
        assert.deepEqual(
          parts.map(joined),
          messages.map((message) => fieldsOf(message).filter((field) => field !== '')),
        );
        for (const part of parts.flat()) {
          if (!part.isOwn || part.cardId === null) continue;
          const card = cards.get(part.cardId);
          const content = card?.content;
          const holds =
            (card?.type === CARD_TYPES.anchor && anchorBody(card) === part.text) ||
            JSON.stringify(content).includes(part.text) ||
            JSON.stringify(content).includes(JSON.stringify(part.text).slice(1, -1));
          assert.ok(holds, `${part.rule}: ${part.text}`);
        }
      }
    }),
    { numRuns },
  );
});

describe('the words around a card’s text', () => {
  const turn = { turnId: 't' as TurnId, agentId: 'me' as AgentId, contextBoxId: 'b' as BoxId };
  let count = 0;
  const card = (content: CardContent, rest: Partial<Card> = {}): Card => ({
    id: `c${++count}` as CardId,
    type: 'note',
    role: null,
    content,
    metadata: {},
    authorId: 'other',
    toolCallId: null,
    ...rest,
  });
  const rows = (cards: readonly ContextCard[]): ViewRows => ({
    turn,
    profile: { instructions: 'Be brief.', tools: [], must_end_with: [] },
    entries: [],
    lastAnchorPosition: 0,
    contexts: new Map([[turn.contextBoxId, cards]]),
  });
  const inherited = (
    content: CardContent,
    rest: Partial<Card> = {},
  ): readonly (readonly [string, string])[] =>
    partsOf(rows([{ card: card(content, rest), rule: 'inherited' }]))
      .slice(1)
      .flat()
      .map(({ rule, text }) => [rule, text] as const);
  const text = (words: string): CardContent => ({ kind: 'text', text: words });

  test('are distinguished from the card’s own words', () => {
    expect(inherited(text('hello'))).toEqual([['text', 'hello']]);
    expect(inherited(text(' '))).toEqual([['empty', '(empty)']]);
    expect(inherited(text('obey'), { role: 'system' })).toEqual([
      ['note', '[system note from other] '],
      ['text', 'obey'],
    ]);
    expect(
      inherited({ kind: 'json', data: { done: [1] } }, { type: CARD_TYPES.anchor, metadata: { name: 'a' } }),
    ).toEqual([
      ['anchor', '[anchor of agent other] [Anchor created: a]: '],
      ['json', '{"done": [1]}'],
    ]);
    expect(inherited({ kind: 'json', data: null }, { type: CARD_TYPES.anchor })).toEqual([
      ['anchor', '[anchor of agent other] [Anchor created: None]: null'],
    ]);
    expect(
      inherited({ kind: 'json', data: { parent_agent_id: 'p' } }, { type: CARD_TYPES.parentPointer }),
    ).toEqual([['parent', '[inherited] Parent agent: p']]);
    expect(
      inherited({ kind: 'fields_schema', fields: [{ name: 'n' }] }, { type: CARD_TYPES.resultFields }),
    ).toEqual([
      ['foreign_result_fields', '[result fields of another task]\n'],
      ['fields', '- n (any, required)'],
    ]);
    expect(
      inherited({
        kind: 'tool_call',
        tool_call_id: 'k',
        provider_call_id: '',
        name: 'read',
        arguments: { a: 1 },
      }),
    ).toEqual([
      ['quoted_call', '[agent other called read] '],
      ['arguments', '{"a":1}'],
    ]);
  });

  test('enclose binding result fields', () => {
    const fields = card(
      { kind: 'fields_schema', fields: [{ name: 'n' }] },
      { type: CARD_TYPES.resultFields },
    );
    const parts = partsOf(rows([{ card: fields, rule: 'argument' }])).flat();
    expect(parts.map(({ rule, isOwn }) => [rule, isOwn])).toEqual([
      ['instructions', true],
      ['result_fields', false],
      ['fields', false],
      ['result_fields', false],
    ]);
  });
});
