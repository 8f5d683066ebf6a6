/**
 * A packing strategy is a pure function that chooses which inherited cards stay when all of them would be too many
 * tokens. Source: docs/reference/packing.md, "Budgets".
 *
 * B1  Packed arguments and the parent pointer always stay.
 * B2  Only whole cards are cut; a tool call and its results stay or go together.
 * B3  The kept cards are within the budget, and in stored order.
 * B4  Only cards of the boxes enter, and at most one digest of cards that were cut.
 */

import type { BoxId, CardId } from '../base/index.js';
import type { SegmentRule } from '../card/index.js';
import { estimateTokens, type Role } from '../card/index.js';

/** How many characters of a card's content a strategy sees. */
export const PREVIEW_CHARACTERS = 200;

/** The facts that strategies use, in addition to tokens and place. */
export interface CardFacts {
  readonly type: string;
  readonly role: Role | null;
  readonly authorId: string;
  readonly sizeBytes: number;
  /** The call id of a tool call or tool result; null for other cards. */
  readonly toolCallId: string | null;
  /** The cards that a summary replaces. */
  readonly summarizes: readonly string[];
  /** `metadata.context === false`: no model sees the card. */
  readonly isHidden: boolean;
  /** The first 200 characters of the card's content. */
  readonly preview: string;
}

export interface PackCandidate extends CardFacts {
  readonly cardId: CardId;
  readonly rule: SegmentRule;
  readonly argument: string | undefined;
  /** The box or tape that holds the card, and the card's position there; undefined for packed cards. */
  readonly source: BoxId | undefined;
  readonly position: number;
  /** The stored estimate, in which budgets are counted. */
  readonly tokens: number;
  /** True when the card must stay. */
  readonly isProtected: boolean;
}

export interface PackingOffer {
  /** Every card the box would hold, in stored order. */
  readonly candidates: readonly PackCandidate[];
  readonly budgetTokens: number;
}

export interface PackingChoice {
  /** The cards that stay, including the protected cards, in any order. */
  readonly keep: readonly string[];
  /** The reasons for cut cards, by card id; for the manifest. */
  readonly reasons?: Readonly<Record<string, string>> | undefined;
  /** A text that replaces cut cards; it becomes a summary card of the box. */
  readonly digest?: { readonly text: string; readonly cardIds: readonly string[] } | undefined;
}

/** Must be pure and synchronous: the same offer gives the same choice, both in a preview and in the actual packing. */
export type PackingStrategy = (offer: PackingOffer) => PackingChoice;

/** A checked choice: the reason of each cut card, and the digest. */
export interface PackingCuts {
  readonly strategy: string;
  readonly budgetTokens: number;
  readonly reasons: ReadonlyMap<CardId, string>;
  readonly digest: { readonly text: string; readonly cardIds: readonly CardId[] } | undefined;
}

/** Cards that stay or go together, and their tokens. */
export interface PackUnit {
  readonly cards: readonly PackCandidate[];
  readonly tokens: number;
  /** The id of the unit's newest card, which gives the unit's age: ids are ordered by time. */
  readonly newest: string;
}

/** The inherited cards in units: a tool call with its results, any other card alone. */
export function unitsOf(candidates: readonly PackCandidate[]): readonly PackUnit[] {
  const units: PackUnit[] = [];
  const calls = new Map<string, PackCandidate[]>();
  for (const card of candidates) {
    if (card.isProtected) continue;
    if (card.toolCallId === null) {
      units.push({ cards: [card], tokens: card.tokens, newest: card.cardId });
      continue;
    }
    const call = calls.get(card.toolCallId);
    if (call === undefined) calls.set(card.toolCallId, [card]);
    else call.push(card);
  }
  for (const cards of calls.values()) {
    const tokens = cards.reduce((sum, card) => sum + card.tokens, 0);
    units.push({
      cards,
      tokens,
      newest:
        cards
          .map(({ cardId }) => cardId)
          .sort()
          .at(-1) ?? '',
    });
  }
  return units;
}

export const byAge = (a: PackUnit, b: PackUnit): number => (a.newest < b.newest ? -1 : 1);

/** The tokens left for inherited cards. */
export const roomOf = ({ candidates, budgetTokens }: PackingOffer): number =>
  budgetTokens - candidates.reduce((sum, card) => sum + (card.isProtected ? card.tokens : 0), 0);

export const protectedIds = (candidates: readonly PackCandidate[]): CardId[] =>
  candidates.filter((card) => card.isProtected).map((card) => card.cardId);

/** The tokens of the card that a digest becomes. */
export const digestTokens = (text: string): number =>
  estimateTokens(Buffer.byteLength(JSON.stringify({ kind: 'text', text })));
