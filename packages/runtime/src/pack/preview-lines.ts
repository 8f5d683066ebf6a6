/** The cards of a planned context in the order in which they are shown. */
import { type Card, type CardId, candidatesOf, type NewCard, type PackCandidate } from '@boxcar/kernel';
import type { PlannedContext } from './plan.js';

export type Sized = Card & { readonly sizeBytes: number };

export interface Line {
  readonly card: Sized | undefined;
  readonly of: Pick<PackCandidate, 'rule' | 'argument' | 'source' | 'position' | 'tokens'>;
  readonly isNew: boolean;
  readonly reason: string | undefined;
}

/** Every card of the plan with its content. The digest has the place that it would have in the box: after the packed arguments. */
export function linesOf(
  { draft, cuts, packing }: PlannedContext,
  stored: ReadonlyMap<CardId, Sized>,
): readonly Line[] {
  const own = new Map<CardId, NewCard>(packing.cards.map((card) => [card.id, card]));
  const lines: Line[] = candidatesOf(draft, new Map()).map((candidate) => {
    const packed = own.get(candidate.cardId);
    return {
      card: packed ?? stored.get(candidate.cardId),
      of: candidate,
      isNew: packed !== undefined,
      reason: cuts?.reasons.get(candidate.cardId),
    };
  });
  const digest = cuts?.digest === undefined ? undefined : packing.cards[draft.args.length];
  if (digest !== undefined) {
    const of = {
      rule: 'digest' as const,
      argument: undefined,
      source: undefined,
      position: 0,
      tokens: digest.tokenEstimate,
    };
    lines.splice(draft.args.length, 0, { card: digest, of, isNew: true, reason: undefined });
  }
  return lines;
}

export const askedIn = ({ inherited }: PlannedContext['draft']): readonly CardId[] =>
  inherited.flatMap(({ asked }) => asked.flatMap(({ cardIds }) => cardIds));

/** Adds the instructions of turns to the lines, where a view shows them: at the starts of the turns on an inherited tape. */
export function withAsked(
  lines: readonly Line[],
  draft: PlannedContext['draft'],
  stored: ReadonlyMap<CardId, Sized>,
): readonly Line[] {
  if (askedIn(draft).length === 0) return lines;
  const inherited = new Set<CardId>(draft.inheritedIds);
  const isInherited = ({ card, isNew }: Line): boolean =>
    !isNew && card !== undefined && inherited.has(card.id);
  const byCard = new Map(
    lines.flatMap((line) => (isInherited(line) && line.card ? [[line.card.id, line]] : [])),
  );
  const shown = draft.inherited.flatMap(({ rule, argument, range, asked }) => {
    const placed: { readonly position: number; readonly line: Line }[] = [];
    for (const [index, cardId] of range.cardIds.entries()) {
      const line = byCard.get(cardId);
      if (line === undefined) continue;
      byCard.delete(cardId);
      placed.push({ position: range.positions[index] ?? 0, line });
    }
    for (const { position, cardIds } of asked)
      for (const cardId of cardIds) {
        const of = { rule, argument, source: range.source, position, tokens: 0 };
        placed.push({ position, line: { card: stored.get(cardId), of, isNew: false, reason: undefined } });
      }
    return placed.sort((a, b) => a.position - b.position).map(({ line }) => line);
  });
  const first = lines.findIndex(isInherited);
  const others = lines.filter((line) => !isInherited(line));
  const at = first === -1 ? draft.args.length : first;
  return [...others.slice(0, at), ...shown, ...others.slice(at)];
}
