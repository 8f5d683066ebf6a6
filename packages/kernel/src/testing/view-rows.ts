/** Builders of rows for tests of the view: ids by number, and a tape that grows entry by entry. */

import { type AgentId, type BoxId, type CardId, type Id, parseId, type TurnId } from '../base/ids.js';
import type { JsonObject, JsonValue } from '../base/json.js';
import {
  CARD_TYPES,
  type Card,
  type CardContent,
  type ContentOf,
  type Field,
  type Role,
} from '../card/card.js';
import { BOOTSTRAP_LENGTH, type EntryKind, type TapeEntry, TURN_STARTED } from '../tape/tape.js';
import type { ContextCard, ViewRows } from '../view/context.js';

const KINDS = { agent: 'a', box: 'b', card: 'c', turn: 'd', tool_call: 'e' } as const;

/** The same id for the same kind and number. */
export const testId = <K extends keyof typeof KINDS>(kind: K, number: number): Id<K> =>
  parseId<K>(`${KINDS[kind]}0000000-0000-7000-8000-${String(number).padStart(12, '0')}`, kind);

export const READER: AgentId = testId('agent', 1);
export const OTHER: AgentId = testId('agent', 2);

interface CardOptions {
  readonly authorId?: string;
  readonly metadata?: JsonObject;
}

/** Makes cards with ascending ids. */
export class CardMaker {
  #count = 0;

  card(type: string, role: Role | null, content: CardContent, options: CardOptions = {}): Card {
    this.#count += 1;
    const id: CardId = testId('card', this.#count);
    const { authorId = READER, metadata = {} } = options;
    return { id, type, role, content, metadata, authorId, toolCallId: null };
  }

  text(role: Role | null, text: string, options?: CardOptions): Card {
    return this.card('note', role, { kind: 'text', text }, options);
  }

  instruction(text: string, options?: CardOptions): Card {
    return this.card(CARD_TYPES.instruction, 'user', { kind: 'text', text }, options);
  }

  fields(fields: Field[], options?: CardOptions): Card {
    return this.card(CARD_TYPES.resultFields, 'user', { kind: 'fields_schema', fields }, options);
  }

  parent(parentId: string, options?: CardOptions): Card {
    const data = { parent_agent_id: parentId };
    return this.card(CARD_TYPES.parentPointer, 'system', { kind: 'json', data }, options);
  }

  thought(text: string, options?: CardOptions): Card {
    return this.card(CARD_TYPES.thought, 'assistant', { kind: 'text', text }, options);
  }

  call(id: string, name: string, args: JsonValue, options?: CardOptions): Card {
    const content = {
      kind: 'tool_call',
      tool_call_id: id,
      provider_call_id: 'call_0',
      name,
      arguments: args,
    } as const;
    return this.card(CARD_TYPES.toolCall, null, content, options);
  }

  result(id: string, name: string, body: JsonValue, options?: CardOptions): Card {
    return this.outcome({ tool_call_id: id, name, status: 'success', result: body }, options);
  }

  outcome(content: Omit<ContentOf<'tool_result'>, 'kind'>, options?: CardOptions): Card {
    return this.card(CARD_TYPES.toolResult, 'tool', { kind: 'tool_result', ...content }, options);
  }

  anchor(state: JsonValue, options?: CardOptions): Card {
    return this.card(CARD_TYPES.anchor, null, { kind: 'json', data: state }, options);
  }
}

interface EntryOptions {
  readonly turnId?: TurnId;
  readonly step?: number;
}

/** A tape after its bootstrap entries, with entries of an agent's steps and from outside. */
export class TestTape {
  readonly entries: TapeEntry[] = [];
  readonly contexts = new Map<BoxId, readonly ContextCard[]>();
  #position = BOOTSTRAP_LENGTH;
  #turn = { turnId: testId('turn', 0), contextBoxId: testId('box', 0) };
  #lastAnchorPosition = 1;

  #append(
    kind: EntryKind,
    card: Card | null,
    payload: JsonValue | null,
    options: EntryOptions,
    anchor: string | null,
  ): number {
    this.#position += 1;
    const { turnId = null, step = null } = options;
    this.entries.push({ position: this.#position, kind, card, payload, anchorName: anchor, turnId, step });
    return this.#position;
  }

  add(card: Card, options: EntryOptions = {}): number {
    const { kind } = card.content;
    return this.#append(
      kind === 'tool_call' || kind === 'tool_result' ? kind : 'message',
      card,
      null,
      options,
      null,
    );
  }

  event(name: string, data: JsonValue): number {
    return this.#append('event', null, { name, data }, {}, null);
  }

  anchor(name: string, card: Card, options: EntryOptions = {}): number {
    this.#lastAnchorPosition = this.#append('anchor', card, null, options, name);
    this.event('handoff', { name });
    return this.#lastAnchorPosition;
  }

  /** Begins the turn of this number with a context box of the same number; later views belong to this turn. */
  begin(number: number, context: readonly ContextCard[], stepsLeft?: number): TurnId {
    const [turnId, contextBoxId] = [testId('turn', number), testId('box', number)];
    this.#turn = { turnId, contextBoxId };
    this.contexts.set(contextBoxId, context);
    const left = stepsLeft === undefined ? {} : { steps_left: stepsLeft };
    const data = { turn_id: turnId, context_box_id: contextBoxId, ...left };
    this.#append('event', null, { name: TURN_STARTED, data }, { turnId }, null);
    return turnId;
  }

  /**
   * The rows as the store would load them now: from the last anchor, or from the first entry of a step that the anchor
   * cut.
   */
  rows(profile: Partial<ViewRows['profile']> = {}): ViewRows {
    const anchor = this.#lastAnchorPosition;
    const keyOf = (entry: TapeEntry): string | undefined =>
      entry.turnId === null || entry.step === null ? undefined : `${entry.turnId} ${entry.step}`;
    const behind = new Set(this.entries.filter(({ position }) => position > anchor).map(keyOf));
    behind.delete(undefined);
    const begins = (entry: TapeEntry): boolean => entry.position >= anchor || behind.has(keyOf(entry));
    const first = this.entries.findIndex(begins);
    return {
      turn: { ...this.#turn, agentId: READER },
      profile: { instructions: 'You work.', tools: ['list', 'read'], must_end_with: [], ...profile },
      entries: first === -1 ? [] : this.entries.slice(first),
      lastAnchorPosition: anchor,
      contexts: new Map(this.contexts),
    };
  }
}

export const argument = (card: Card): ContextCard => ({ card, rule: 'argument' });
export const inherited = (card: Card): ContextCard => ({ card, rule: 'inherited' });
export const native = (card: Card): ContextCard => ({ card, rule: 'inherited', native: true });
export const parent = (card: Card): ContextCard => ({ card, rule: 'parent' });
