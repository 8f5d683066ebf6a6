/**
 * The strategy `summary`. Cards that a summary covers are cut in favor of the summary. If the rest is still too large,
 * a digest shows the beginnings of the oldest cards. No model is called. A summary is a card of type `task.summary`
 * whose `metadata.summarizes` lists the ids of the cards it replaces.
 */

import type { CardId } from '../base/index.js';
import { CARD_TYPES } from '../card/index.js';
import {
  byAge,
  type PackCandidate,
  type PackingChoice,
  type PackingOffer,
  type PackUnit,
  protectedIds,
  roomOf,
  unitsOf,
} from './strategy.js';

const isSummary = (card: PackCandidate): boolean =>
  card.type === CARD_TYPES.summary && card.summarizes.length > 0 && !card.isHidden;

/**
 * The cards that a summary among the candidates replaces. Later summaries take precedence. A summary that replaces
 * other cards is never replaced itself, so two summaries that name each other do not vanish together.
 */
function findSummarized(candidates: readonly PackCandidate[]): ReadonlySet<string> {
  const standing = new Set<string>();
  const summarized = new Set<string>();
  for (const card of candidates.toReversed()) {
    if (card.isProtected || !isSummary(card)) continue;
    if (!summarized.has(card.cardId)) standing.add(card.cardId);
    // If a summary is itself summarized, the later summary also covers its cards.
    for (const id of card.summarizes) if (!standing.has(id)) summarized.add(id);
  }
  return summarized;
}

const digestLine = (card: PackCandidate): string =>
  `\n- ${card.type} by ${card.authorId}: ${JSON.stringify(card.preview.replace(/\s+/g, ' ').trim())} (card ${card.cardId})`;

const digestHead = (shortened: number, dropped: number): string =>
  `[Digest: the beginnings of ${shortened} earlier cards${dropped === 0 ? '' : `; ${dropped} more are left out`}]`;

/**
 * The bytes of a text in JSON-escaped form, as a card's text is stored. The escapes of a text are those of its parts.
 */
const storedBytes = (text: string): number => Buffer.byteLength(JSON.stringify(text)) - 2;

/** A unit that may be cut in stages: whole, then shortened to a line per card, then left out. */
interface Fading {
  readonly unit: PackUnit;
  /**
   * Bytes of the unit's lines. Undefined when the lines would not be shorter, or when the unit has a hidden card, which
   * must not be shown.
   */
  readonly lineBytes: number | undefined;
  state: 'whole' | 'shortened' | 'dropped';
}

/** The sums over all units, updated while units are cut. */
interface Tally {
  wholeTokens: number;
  lineBytes: number;
  shortened: number;
  dropped: number;
}

const EMPTY_BYTES = Buffer.byteLength(JSON.stringify({ kind: 'text', text: '' }));

function tokensOf({ wholeTokens, lineBytes, shortened, dropped }: Tally): number {
  if (shortened === 0) return wholeTokens;
  return wholeTokens + Math.ceil((EMPTY_BYTES + storedBytes(digestHead(shortened, dropped)) + lineBytes) / 4);
}

function fadeOf(unit: PackUnit): Fading {
  const bytes = unit.cards.reduce((sum, card) => sum + storedBytes(digestLine(card)), 0);
  const canShorten = unit.cards.every((card) => !card.isHidden) && bytes / 4 < unit.tokens;
  return { unit, lineBytes: canShorten ? bytes : undefined, state: 'whole' };
}

function shorten(fading: Fading, lineBytes: number, tally: Tally): void {
  fading.state = 'shortened';
  tally.wholeTokens -= fading.unit.tokens;
  tally.lineBytes += lineBytes;
  tally.shortened += fading.unit.cards.length;
}

function drop(fading: Fading, tally: Tally): void {
  const { cards, tokens } = fading.unit;
  if (fading.state === 'whole') tally.wholeTokens -= tokens;
  else {
    tally.lineBytes -= fading.lineBytes ?? 0;
    tally.shortened -= cards.length;
  }
  tally.dropped += cards.length;
  fading.state = 'dropped';
}

export function chooseSummaries(offer: PackingOffer): PackingChoice {
  const summarized = findSummarized(offer.candidates);
  const keep: string[] = protectedIds(offer.candidates);
  const reasons: Record<string, string> = {};
  const rest: PackUnit[] = [];
  for (const unit of unitsOf(offer.candidates)) {
    if (!unit.cards.every(({ cardId }) => summarized.has(cardId))) rest.push(unit);
    else for (const { cardId } of unit.cards) reasons[cardId] = 'summarized';
  }

  const room = roomOf(offer);
  const hasSummary = ({ cards }: PackUnit): boolean => cards.some(isSummary);
  const oldestFirst = rest.toSorted(byAge);
  const fading = [...oldestFirst.filter((unit) => !hasSummary(unit)), ...oldestFirst.filter(hasSummary)].map(
    fadeOf,
  );
  const tally: Tally = {
    wholeTokens: rest.reduce((sum, unit) => sum + unit.tokens, 0),
    lineBytes: 0,
    shortened: 0,
    dropped: 0,
  };
  for (const one of fading) {
    if (tokensOf(tally) <= room) break;
    if (one.lineBytes !== undefined) shorten(one, one.lineBytes, tally);
  }
  for (const one of fading) {
    if (tokensOf(tally) <= room) break;
    drop(one, tally);
  }

  const shortened = new Set<CardId>();
  for (const { unit, state } of fading) {
    for (const { cardId } of unit.cards) {
      if (state === 'whole') keep.push(cardId);
      else reasons[cardId] = state === 'shortened' ? 'digested' : 'over_budget';
      if (state === 'shortened') shortened.add(cardId);
    }
  }
  if (shortened.size === 0) return { keep, reasons };
  const lines = offer.candidates.filter(({ cardId }) => shortened.has(cardId)).map(digestLine);
  const text = digestHead(tally.shortened, tally.dropped) + lines.join('');
  return { keep, reasons, digest: { text, cardIds: [...shortened] } };
}
