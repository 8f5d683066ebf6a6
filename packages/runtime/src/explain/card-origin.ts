/** The origin of a card in a prompt: its place, the rule that put it there, and the boxes on its way. */
import {
  type AgentId,
  type BoxId,
  CARD_TYPES,
  type CardId,
  isStepNotice,
  type Role,
  type Segment,
  type TapeEntry,
  type TurnId,
  type ViewSource,
} from '@boxcar/kernel';
import {
  type BoxRow,
  rightKey,
  type SourcedCard,
  type StoredCard,
  type StoredEntry,
  type TurnRows,
} from '@boxcar/store/report';
import { CONTEXT_REMINDER } from '../turn/index.js';

export interface Named {
  readonly id: string;
  /** The name of an agent; null for tools, primitives and the kernel, whose id is their name. */
  readonly name: string | null;
}

/** The right by which a box was read when its cards were packed, according to the current rows. */
export type ReadRight =
  | { readonly kind: 'operator' | 'owner' | 'maker' | 'profile' | 'launcher' | 'parent' }
  | {
      readonly kind: 'grant';
      /** The giver: an agent, `turn:<id>` when the end of that turn gave it, or `card:<id>` of a handoff. */
      readonly source: Named;
      readonly upto_position: number | null;
      readonly until: Date | null;
      readonly given_at: Date;
    }
  /** Packed by trusted code, or by a right that no longer exists. */
  | { readonly kind: 'none' };

/** One box on the way of a card, from the context towards the box that holds it. */
export interface BoxHop {
  /** The box that was packed, and the rule and argument that packed it. */
  readonly into: BoxId;
  readonly rule: Segment['rule'];
  readonly argument: string | null;
  /** The box that was read, the agent that read it, and the right by which it read. */
  readonly from: BoxId;
  readonly read_by: Named | null;
  readonly right: ReadRight;
}

/** The box that holds the card itself. */
export interface FirstPlace {
  readonly box_id: BoxId;
  readonly kind: 'context' | 'tape';
  readonly position: number;
  /** In a context box: the rule and argument that put the card there. */
  readonly rule: Segment['rule'] | null;
  readonly argument: string | null;
  /** On a tape: the kind of its entry. */
  readonly entry: TapeEntry['kind'] | null;
  readonly turn_id: TurnId | null;
  readonly step: number | null;
}

export type CardPlace =
  | { readonly kind: 'profile'; readonly box_id: BoxId; readonly name: string; readonly version: number }
  | {
      readonly kind: 'tape';
      readonly box_id: BoxId;
      readonly position: number;
      readonly entry: TapeEntry['kind'];
      readonly anchor: string | null;
      readonly turn_id: TurnId | null;
      /** False for an entry of an earlier turn, or from outside. */
      readonly is_own_turn: boolean;
      readonly step: number | null;
      /** The writer: the agent of the turn, the kernel, or anyone else (another agent, the operator or a program). */
      readonly written_by: 'agent' | 'kernel' | 'outside';
    }
  | {
      readonly kind: 'context';
      readonly box_id: BoxId;
      /** In stored order, from 1; null for a card that a budget kept out. */
      readonly position: number | null;
      /** The packing rule, and the argument that carried the value or named the box. */
      readonly rule: Segment['rule'];
      readonly argument: string | null;
      readonly packed_by: Named | null;
      readonly first: FirstPlace;
      /** Empty for cards that were packed directly into this box. */
      readonly path: readonly BoxHop[];
    };

/** How a token budget left a card out when the context was packed. */
export interface BudgetCut {
  readonly strategy: string;
  readonly reason: string;
}

export interface CardOrigin {
  readonly card_id: CardId;
  readonly hash: string;
  readonly type: string;
  readonly role: Role | null;
  readonly author: Named;
  readonly tokens: number;
  readonly created_at: Date;
  readonly is_erased: boolean;
  /** The rule of a notice that the kernel wrote as a card. */
  readonly notice: 'steps_left' | 'reminder' | 'context' | null;
  readonly place: CardPlace;
}

function noticeOf({ card }: StoredCard): CardOrigin['notice'] {
  if (card.type !== CARD_TYPES.notice || card.content.kind !== 'text') return null;
  if (card.metadata.notice === CONTEXT_REMINDER) return 'context';
  return isStepNotice(card.content.text) ? 'steps_left' : 'reminder';
}

const holds = (segment: Segment, position: number): boolean =>
  segment.from <= position && position <= segment.to && segment.skip?.includes(position) !== true;

/**
 * The entries in a range of positions. A binary search, because each message of a prompt asks for a few of many
 * entries.
 */
function entriesIn(entries: readonly StoredEntry[], from: number, to: number): readonly StoredEntry[] {
  let first = 0;
  for (let end = entries.length; first < end; ) {
    const middle = (first + end) >> 1;
    if ((entries[middle]?.entry.position ?? to) < from) first = middle + 1;
    else end = middle;
  }
  let last = first;
  while ((entries[last]?.entry.position ?? Number.POSITIVE_INFINITY) <= to) last += 1;
  return entries.slice(first, last);
}

/** Finds the origins of the cards of one turn, only from the rows that it was given. */
export class CardOrigins {
  readonly #rows: TurnRows;

  constructor(rows: TurnRows) {
    this.#rows = rows;
  }

  named(id: string): Named {
    return { id, name: this.#rows.agentNames.get(id) ?? null };
  }

  profile(): CardOrigin {
    const { card, boxId, name, version } = this.#rows.turn.profile;
    return this.#origin(card, { kind: 'profile', box_id: boxId, name, version });
  }

  /** The cards at the positions of a source, with their places. Events have no cards. */
  at(source: ViewSource): readonly CardOrigin[] {
    if (source.kind === 'tape') return this.#onTape(source.from, source.to);
    if (source.kind !== 'context') return [];
    const cards = this.#rows.contexts.get(source.boxId) ?? [];
    return cards
      .slice(source.from - 1, source.to)
      .map((card, index) => this.#inContext(source.boxId, source.from + index, card));
  }

  #onTape(from: number, to: number): readonly CardOrigin[] {
    const { entries, turn } = this.#rows;
    return entriesIn(entries, from, to).flatMap(({ entry, stored }) => {
      if (stored === null) return [];
      return this.#origin(stored, {
        kind: 'tape',
        box_id: turn.outputBoxId,
        position: entry.position,
        entry: entry.kind,
        anchor: entry.anchorName,
        turn_id: entry.turnId,
        is_own_turn: entry.turnId === turn.turnId,
        step: entry.step,
        written_by: this.#writerOf(stored),
      });
    });
  }

  #writerOf({ card: { authorId } }: StoredCard): 'agent' | 'kernel' | 'outside' {
    if (authorId === 'kernel') return 'kernel';
    return authorId === this.#rows.turn.agentId ? 'agent' : 'outside';
  }

  /** The ids of the cards at the positions of a source. */
  idsAt(source: ViewSource): readonly CardId[] {
    if (source.kind === 'tape')
      return entriesIn(this.#rows.entries, source.from, source.to).flatMap(
        ({ stored }) => stored?.card.id ?? [],
      );
    if (source.kind !== 'context') return [];
    const cards = this.#rows.contexts.get(source.boxId) ?? [];
    return cards.slice(source.from - 1, source.to).map(({ stored }) => stored.card.id);
  }

  /** The cards that a budget left out of a context, each with its intended place, the strategy and the reason. */
  cutFrom(boxId: BoxId): readonly { readonly card: CardOrigin; readonly cut: BudgetCut }[] {
    return (this.#rows.cuts.get(boxId) ?? []).map((cut) => ({
      card: this.#inContext(boxId, null, cut),
      cut: { strategy: cut.strategy, reason: cut.reason },
    }));
  }

  #inContext(boxId: BoxId, position: number | null, sourced: SourcedCard): CardOrigin {
    const box = this.#rows.boxes.get(boxId);
    const segment = box?.segments[sourced.segment];
    return this.#origin(sourced.stored, {
      kind: 'context',
      box_id: boxId,
      position,
      rule: sourced.rule,
      argument: segment?.argument ?? null,
      packed_by: this.#maker(box),
      first: this.#firstPlace(segment?.source ?? boxId, sourced),
      path: segment === undefined ? [] : this.#path(boxId, segment, sourced.position),
    });
  }

  #firstPlace(boxId: BoxId, { position, entry }: SourcedCard): FirstPlace {
    const box = this.#rows.boxes.get(boxId);
    // A segment without a source lists cards that the sealed box holds itself.
    const own = box?.segments.find((segment) => segment.source === undefined && holds(segment, position));
    return {
      box_id: boxId,
      kind: box?.kind ?? 'context',
      position,
      rule: own?.rule ?? null,
      argument: own?.argument ?? null,
      entry: entry?.kind ?? null,
      turn_id: entry?.turnId ?? null,
      step: entry?.step ?? null,
    };
  }

  /** The boxes from the context to the holder of the card: each box names the next, until a box names the holder. */
  #path(boxId: BoxId, start: Segment, position: number): readonly BoxHop[] {
    const holder = start.source;
    const hops: BoxHop[] = [];
    const seen = new Set<BoxId>();
    let into: BoxId = boxId;
    let segment: Segment | undefined = start;
    while (holder !== undefined && segment !== undefined && !seen.has(into)) {
      seen.add(into);
      const from: BoxId = segment.via ?? holder;
      const box = this.#rows.boxes.get(into);
      hops.push({
        into,
        rule: segment.rule,
        argument: segment.argument ?? null,
        from,
        read_by: this.#maker(box),
        right: this.#right(box, segment, from),
      });
      if (from === holder) break;
      into = from;
      segment = this.#rows.boxes
        .get(into)
        ?.segments.find((next) => next.source === holder && holds(next, position));
    }
    return hops;
  }

  #maker(box: BoxRow | undefined): Named | null {
    return box?.makerAgentId ? this.named(box.makerAgentId) : null;
  }

  #right(box: BoxRow | undefined, segment: Segment, from: BoxId): ReadRight {
    const actor = box?.makerAgentId;
    if (!actor) return { kind: 'none' };
    const right = this.#rightTo(actor, from, segment.rule);
    if (right.kind !== 'none' || segment.rule !== 'snapshot') return right;
    // A snapshot also reads the context box of the agent. The right to the agent's tape covers that box.
    const owner = this.#rows.boxes.get(from)?.ownerAgentId;
    for (const { rule, source } of box.segments) {
      if (rule !== 'snapshot' || source === undefined) continue;
      const tape = this.#rows.boxes.get(source);
      if (tape?.kind === 'tape' && tape.ownerAgentId === owner) return this.#rightTo(actor, source, rule);
    }
    return right;
  }

  #rightTo(actor: AgentId, boxId: BoxId, rule: Segment['rule']): ReadRight {
    const right = this.#rows.rights.get(rightKey(actor, boxId));
    if (right === undefined) return { kind: 'none' };
    if (right.isOperator) return { kind: 'operator' };
    if (right.isOwner) return { kind: 'owner' };
    if (right.isMaker) return { kind: 'maker' };
    if (right.isProfile) return { kind: 'profile' };
    if (right.isLauncher && rule === 'snapshot') return { kind: 'launcher' };
    if (right.grant === null) return { kind: right.isParent ? 'parent' : 'none' };
    const { source, uptoPosition, expiresAt, createdAt } = right.grant;
    return {
      kind: 'grant',
      source: this.named(source),
      upto_position: uptoPosition,
      until: expiresAt,
      given_at: createdAt,
    };
  }

  #origin(stored: StoredCard, place: CardPlace): CardOrigin {
    const { card } = stored;
    return {
      card_id: card.id,
      hash: stored.hash,
      type: card.type,
      role: card.role,
      author: this.named(card.authorId),
      tokens: stored.tokens,
      created_at: stored.createdAt,
      is_erased: stored.isErased,
      notice: noticeOf(stored),
      place,
    };
  }
}
