/** The manifest's record of a budget's cuts: for each inherited range, the cut positions as ranges, by reason. */

import type { CardId } from '../base/index.js';
import type { LeafRange, Segment, SegmentCut } from '../card/index.js';
import type { PackingCuts } from './strategy.js';

interface OpenPart {
  readonly ranges: [number, number][];
  count: number;
  tokens: number;
}

/**
 * The segment of a range with cut cards: narrowed to the cards that stay, with the cuts recorded.
 *
 * @param of.placed - The ids of earlier ranges; the ids of this range are added. An id that is already there is a
 * duplicate here, and a cut card is recorded at its first occurrence.
 */
export function cutSegment(
  whole: Segment,
  of: {
    readonly range: LeafRange;
    readonly cuts: PackingCuts;
    readonly placed: Set<CardId>;
  },
): Segment {
  const { cuts, placed } = of;
  const { cardIds, positions, tokens } = of.range;
  const repeated = new Set(whole.repeats);
  const repeats: number[] = [];
  const parts = new Map<string, OpenPart>();
  const cutPositions: number[] = [];
  let first: number | undefined;
  let last = 0;
  let lastReason: string | undefined;
  let cutTokens = 0;
  for (const [index, cardId] of cardIds.entries()) {
    const position = positions[index] ?? 0;
    const reason = cuts.reasons.get(cardId);
    if (placed.has(cardId)) {
      // A part of the history that another range lists.
      if (reason !== undefined || !repeated.has(position)) continue;
      repeats.push(position);
      first ??= position;
      last = position;
      continue;
    }
    placed.add(cardId);
    if (reason === undefined) {
      first ??= position;
      last = position;
    } else {
      const part = parts.get(reason) ?? { ranges: [], count: 0, tokens: 0 };
      parts.set(reason, part);
      const open = part.ranges.at(-1);
      if (lastReason === reason && open !== undefined) open[1] = position;
      else part.ranges.push([position, position]);
      part.count++;
      part.tokens += tokens[index] ?? 0;
      cutTokens += tokens[index] ?? 0;
      cutPositions.push(position);
    }
    lastReason = reason;
  }
  const { repeats: _repeats, ...unrepeated } = whole;
  const marked = repeats.length === 0 ? unrepeated : { ...unrepeated, repeats };
  if (cutPositions.length === 0) return marked;
  const { skip: _skip, native, ...rest } = marked;
  // Only cut positions between kept cards must be skipped.
  const from = first ?? whole.from;
  const to = first === undefined ? whole.from - 1 : last;
  const skip = [...(whole.skip ?? []), ...cutPositions]
    .filter((position) => position >= from && position <= to)
    .sort((a, b) => a - b);
  const cut: SegmentCut = {
    strategy: cuts.strategy,
    budget: cuts.budgetTokens,
    parts: [...parts].map(([reason, part]) => ({ reason, ...part })),
  };
  return {
    ...rest,
    from,
    to,
    ...(skip.length > 0 ? { skip } : {}),
    count: whole.count - cutPositions.length,
    tokens: whole.tokens - cutTokens,
    ...(native === undefined ? {} : { native }),
    cut,
  };
}
