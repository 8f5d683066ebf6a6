/** The candidates that a strategy chooses from: the cards of a draft with the store's facts about them. */

import type { CardId } from '../base/index.js';
import type { NewCard } from '../card/index.js';
import { decideCuts, type PackingStrategies } from './budget.js';
import type { PackingDraft } from './draft.js';
import { type CardFacts, type PackCandidate, type PackingCuts, PREVIEW_CHARACTERS } from './strategy.js';

/** The facts of a card that a box lists but that has no row: the card counts, but has no content. */
const NO_FACTS: CardFacts = {
  type: 'unknown',
  role: null,
  authorId: 'unknown',
  sizeBytes: 0,
  toolCallId: null,
  summarizes: [],
  isHidden: false,
  preview: '',
};

const ownFacts = (card: NewCard): CardFacts => ({
  type: card.type,
  role: card.role,
  authorId: card.authorId,
  sizeBytes: card.sizeBytes,
  toolCallId: null,
  summarizes: [],
  isHidden: card.metadata.context === false,
  preview: [...card.contentText.slice(0, 2 * PREVIEW_CHARACTERS)]
    .slice(0, PREVIEW_CHARACTERS)
    .join('')
    .toWellFormed(),
});

/**
 * Copies member by member, so that all candidates have the same shape: object spreads made thousands of candidates
 * several times slower.
 */
const candidate = (facts: CardFacts, place: Omit<PackCandidate, keyof CardFacts>): PackCandidate =>
  Object.freeze({
    cardId: place.cardId,
    rule: place.rule,
    argument: place.argument,
    source: place.source,
    position: place.position,
    tokens: place.tokens,
    isProtected: place.isProtected,
    type: facts.type,
    role: facts.role,
    authorId: facts.authorId,
    sizeBytes: facts.sizeBytes,
    toolCallId: facts.toolCallId,
    summarizes: facts.summarizes,
    isHidden: facts.isHidden,
    preview: facts.preview,
  });

/** Every card of a draft in stored order. */
export function candidatesOf(
  draft: PackingDraft,
  facts: ReadonlyMap<CardId, CardFacts>,
): readonly PackCandidate[] {
  const candidates: PackCandidate[] = [];
  const addOwn = ({ card, segment }: PackingDraft['args'][number]): void => {
    candidates.push(
      candidate(ownFacts(card), {
        cardId: card.id,
        rule: segment.rule,
        argument: segment.argument,
        source: undefined,
        position: candidates.length + 1,
        tokens: card.tokenEstimate,
        isProtected: true,
      }),
    );
  };
  for (const own of draft.args) addOwn(own);
  const placed = new Set<CardId>();
  for (const { rule, argument, range } of draft.inherited) {
    for (const [index, cardId] of range.cardIds.entries()) {
      if (placed.has(cardId)) continue;
      placed.add(cardId);
      candidates.push(
        candidate(facts.get(cardId) ?? NO_FACTS, {
          cardId,
          rule,
          argument,
          source: range.source,
          position: range.positions[index] ?? 0,
          tokens: range.tokens[index] ?? 0,
          isProtected: false,
        }),
      );
    }
  }
  if (draft.parent !== undefined) addOwn(draft.parent);
  return candidates;
}

/**
 * The cards that the budget of a draft cuts; undefined when the draft is within its budget, or has no budget.
 *
 * @throws KernelError `bad_request` for an unknown strategy, even when the draft is within its budget;
 * `context_budget_exceeded`, `packing_strategy_failed` as `decideCuts`.
 */
export function cutDraft(
  draft: PackingDraft,
  facts: ReadonlyMap<CardId, CardFacts>,
  strategies: PackingStrategies,
): PackingCuts | undefined {
  const { budget, tokens } = draft;
  if (budget === undefined) return undefined;
  strategies.find(budget.strategy);
  if (tokens <= budget.tokens) return undefined;
  // Strategies are outside code: freezing prevents them from changing the offer.
  const candidates = Object.freeze(candidatesOf(draft, facts));
  const offer = Object.freeze({ candidates, budgetTokens: budget.tokens });
  return decideCuts(offer, strategies, budget.strategy);
}
