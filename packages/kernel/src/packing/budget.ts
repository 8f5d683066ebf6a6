/** The registry of packing strategies, and the check of their choices: rules B1 to B4 of strategy.ts. */
import { z } from 'zod';
import type { CardId } from '../base/index.js';
import {
  errorText,
  findingsOf,
  findingWords,
  KernelError,
  safeParse,
  sanitizeText,
  toText,
} from '../base/index.js';
import { budgetExceeded, chooseDeliverables, chooseNewest, refuse } from './choices.js';
import {
  digestTokens,
  type PackCandidate,
  type PackingChoice,
  type PackingCuts,
  type PackingOffer,
  type PackingStrategy,
  roomOf,
  unitsOf,
} from './strategy.js';
import { chooseSummaries } from './summary.js';

/** The strategy for a context that exceeds its budget when the caller names none. */
export const DEFAULT_STRATEGY = 'error';

const BUILT_IN: Readonly<Record<string, PackingStrategy>> = {
  [DEFAULT_STRATEGY]: refuse,
  newest: chooseNewest,
  deliverables_only: chooseDeliverables,
  summary: chooseSummaries,
};

const NAME = /^[a-z][a-z0-9_-]{0,63}$/;

/** The strategies that a packer knows: the built-in strategies and the added ones. */
export class PackingStrategies {
  readonly #known = new Map<string, PackingStrategy>(Object.entries(BUILT_IN));

  constructor(own: Readonly<Record<string, PackingStrategy>> = {}) {
    for (const [name, strategy] of Object.entries(own)) this.add(name, strategy);
  }

  /**
   * @throws KernelError `bad_request` for a name or function that is not valid, `conflict` for a name that is taken.
   */
  add(name: string, strategy: PackingStrategy): void {
    if (typeof name !== 'string' || !NAME.test(name))
      throw new KernelError('bad_request', {
        message: `'${toText(name).slice(0, 80)}' is not a valid name for a packing strategy: use a lower-case letter, then lower-case letters, digits, _ and -, at most 64.`,
        details: { name },
      });
    if (typeof strategy !== 'function')
      throw new KernelError('bad_request', {
        message: `The packing strategy '${name}' must be a function.`,
        details: { name },
      });
    if (this.#known.has(name))
      throw new KernelError('conflict', {
        message: `A packing strategy '${name}' is there already${Object.hasOwn(BUILT_IN, name) ? ' and built in' : ''}.`,
        details: { name },
      });
    this.#known.set(name, strategy);
  }

  /** @throws KernelError `bad_request` listing the known names. */
  find(name: string): PackingStrategy {
    const strategy = this.#known.get(name);
    if (strategy !== undefined) return strategy;
    throw new KernelError('bad_request', {
      message: `budget_strategy: no packing strategy '${name.slice(0, 80)}'; known are ${[...this.#known.keys()].sort().join(', ')}.`,
      details: { field: 'budget_strategy', budget_strategy: name },
    });
  }
}

const choiceSchema = z.strictObject({
  keep: z.array(z.string()),
  reasons: z.record(z.string(), z.string().trim().min(1).max(200)).optional(),
  digest: z
    .strictObject({
      text: z.string().refine((text) => text.trim() !== '', 'must not be blank'),
      cardIds: z.array(z.string()).min(1),
    })
    .optional(),
});

/**
 * Asks a strategy which cards stay, and checks its choice.
 *
 * @throws KernelError `context_budget_exceeded` when the protected cards alone exceed the budget, or the strategy
 * refuses; `packing_strategy_failed` for a choice that breaks a rule.
 */
export function decideCuts(offer: PackingOffer, strategies: PackingStrategies, name: string): PackingCuts {
  const strategy = strategies.find(name);
  if (roomOf(offer) < 0) {
    throw budgetExceeded(
      offer,
      () =>
        `The packed arguments and the parent pointer alone, which are never cut, have ${offer.budgetTokens - roomOf(offer)} tokens; budget_tokens is ${offer.budgetTokens}.`,
    );
  }
  const choice = ask(strategy, offer, name);
  return check(choice, offer, name);
}

const failed = (
  strategy: string,
  problem: string,
  rest: { cause?: unknown; cardId?: string } = {},
): KernelError =>
  new KernelError('packing_strategy_failed', {
    message: `The packing strategy '${strategy}' ${problem}.`,
    details: {
      budget_strategy: strategy,
      problem,
      ...(rest.cardId === undefined ? {} : { card_id: rest.cardId }),
    },
    ...('cause' in rest ? { cause: rest.cause } : {}),
  });

function ask(strategy: PackingStrategy, offer: PackingOffer, name: string): PackingChoice {
  let answer: unknown;
  try {
    answer = strategy(offer);
  } catch (error) {
    if (error instanceof KernelError) throw error;
    throw failed(name, `threw: ${errorText(error).slice(0, 200)}`, {
      cause: error,
    });
  }
  if (answer instanceof Promise) {
    answer.catch(() => undefined);
    throw failed(name, 'returned a promise; it must be synchronous');
  }
  const parsed = safeParse(choiceSchema, answer);
  if (parsed.success) return parsed.data;
  const words = findingWords(findingsOf(parsed.error), 'it').replace(/\.$/, '');
  throw failed(name, `returned no choice: ${words}`);
}

function check(choice: PackingChoice, offer: PackingOffer, name: string): PackingCuts {
  const known = new Map(offer.candidates.map((card) => [card.cardId as string, card]));
  const keep = new Set<string>();
  let tokens = 0;
  for (const id of choice.keep) {
    const card = known.get(id);
    if (card === undefined)
      throw failed(name, `keeps ${id.slice(0, 80)}, which is not a candidate`, { cardId: id });
    if (keep.has(id)) throw failed(name, `keeps ${id} twice`, { cardId: id });
    keep.add(id);
    tokens += card.tokens;
  }
  const lost = offer.candidates.find((card) => card.isProtected && !keep.has(card.cardId));
  if (lost !== undefined)
    throw failed(name, `leaves out ${lost.argument ?? lost.rule}, which must stay`, { cardId: lost.cardId });
  const torn = unitsOf(offer.candidates).find(
    ({ cards }) => cards.length > 1 && new Set(cards.map((card) => keep.has(card.cardId))).size > 1,
  );
  if (torn !== undefined)
    throw failed(name, `parts a tool call from its result (call ${torn.cards[0]?.toolCallId})`, {
      cardId: torn.newest,
    });
  const given = choice.reasons ?? {};
  const misplaced = Object.keys(given).find((id) => !known.has(id) || keep.has(id));
  if (misplaced !== undefined)
    throw failed(name, `gives a reason for ${misplaced.slice(0, 80)}, which it does not cut`, {
      cardId: misplaced,
    });
  const digest = checkDigest(choice, known, keep, name);
  const total = tokens + (digest === undefined ? 0 : digestTokens(digest.text));
  if (total > offer.budgetTokens)
    throw failed(name, `keeps ${total} tokens of a budget of ${offer.budgetTokens}`);
  const reasons = new Map<CardId, string>();
  for (const { cardId } of offer.candidates) {
    if (keep.has(cardId)) continue;
    reasons.set(
      cardId,
      Object.hasOwn(given, cardId) ? sanitizeText(given[cardId] ?? '').value : 'not_chosen',
    );
  }
  return { strategy: name, budgetTokens: offer.budgetTokens, reasons, digest };
}

function checkDigest(
  { digest }: PackingChoice,
  known: ReadonlyMap<string, PackCandidate>,
  keep: ReadonlySet<string>,
  name: string,
): PackingCuts['digest'] {
  if (digest === undefined) return undefined;
  const cardIds = digest.cardIds.map((id) => {
    const card = known.get(id);
    if (card === undefined || keep.has(id))
      throw failed(name, `gives a digest of ${id.slice(0, 80)}, which it does not cut`, { cardId: id });
    return card.cardId;
  });
  return { text: sanitizeText(digest.text).value, cardIds };
}
