/** The built-in strategies, except `summary`, which has its own file. */

import { KernelError } from '../base/index.js';
import { CARD_TYPES } from '../card/index.js';
import {
  byAge,
  type PackCandidate,
  type PackingChoice,
  type PackingOffer,
  type PackingStrategy,
  type PackUnit,
  protectedIds,
  roomOf,
  unitsOf,
} from './strategy.js';

/**
 * Keeps the newest of `units`, without a gap, while they fit. A unit that is larger than the whole room is skipped, so
 * that a single giant does not empty the context.
 */
function keepNewest(
  offer: PackingOffer,
  units: readonly PackUnit[],
  others: Record<string, string>,
): PackingChoice {
  const room = roomOf(offer);
  const keep: string[] = protectedIds(offer.candidates);
  const reasons = { ...others };
  let left = room;
  let isFull = false;
  for (const unit of units.toSorted(byAge).reverse()) {
    const isGiant = unit.tokens > room;
    if (!isGiant && unit.tokens > left) isFull = true;
    if (isGiant || isFull) {
      for (const { cardId } of unit.cards) reasons[cardId] = isGiant ? 'too_large' : 'older';
      continue;
    }
    left -= unit.tokens;
    keep.push(...unit.cards.map(({ cardId }) => cardId));
  }
  return { keep, reasons };
}

/** The strategy `newest`. */
export const chooseNewest: PackingStrategy = (offer) => keepNewest(offer, unitsOf(offer.candidates), {});

/** The strategy `deliverables_only`: keeps the newest deliverables when not all of them fit. */
export const chooseDeliverables: PackingStrategy = (offer) => {
  const units = unitsOf(offer.candidates);
  const isDeliverable = ({ cards }: PackUnit): boolean =>
    cards.some(({ type }) => type === CARD_TYPES.deliverable);
  const others = units.filter((unit) => !isDeliverable(unit)).flatMap(({ cards }) => cards);
  return keepNewest(
    offer,
    units.filter(isDeliverable),
    Object.fromEntries(others.map(({ cardId }) => [cardId, 'no_deliverable'])),
  );
};

const SHOWN_LARGEST = 5;

export function budgetExceeded(offer: PackingOffer, message: (tokens: number) => string): KernelError {
  const tokens = offer.candidates.reduce((sum, card) => sum + card.tokens, 0);
  const largest = offer.candidates.toSorted((a, b) => b.tokens - a.tokens).slice(0, SHOWN_LARGEST);
  // The caller does not know the id of a packed card yet, so the argument's name identifies the card.
  const nameOf = (card: PackCandidate): string =>
    card.isProtected ? (card.argument ?? card.rule) : card.cardId;
  return new KernelError('context_budget_exceeded', {
    message: `${message(tokens)} Largest cards: ${largest.map((card) => `${card.type} ${nameOf(card)} (${card.tokens})`).join(', ')}.`,
    details: {
      tokens,
      budget_tokens: offer.budgetTokens,
      protected_tokens: offer.budgetTokens - roomOf(offer),
      largest: largest.map((card) => ({
        ...(card.isProtected ? {} : { card_id: card.cardId, source: card.source }),
        ...(card.argument === undefined ? {} : { argument: card.argument }),
        type: card.type,
        rule: card.rule,
        tokens: card.tokens,
      })),
    },
  });
}

/** The strategy `error`. */
export const refuse: PackingStrategy = (offer) => {
  throw budgetExceeded(
    offer,
    (tokens) => `The context has ${tokens} tokens, its budget_tokens is ${offer.budgetTokens}.`,
  );
};
