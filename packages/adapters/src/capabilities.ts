/** Decides which parts of a request a platform can carry, before anything is sent. A pure function. */
import { estimateTokens, KernelError } from '@boxcar/kernel';
import type {
  AdapterCapabilities,
  AdapterRequest,
  CarriedKind,
  HandoffAdapter,
  LostCard,
  PackedCard,
} from './adapter.js';
import { findFileFault, fixedPieces, kindOf, pieceOfCard, textOf } from './pieces.js';

export interface CarriedRequest {
  /** The cards to send, in the order of the package. */
  readonly cards: readonly PackedCard[];
  readonly lost: readonly LostCard[];
}

const tokensOf = (texts: readonly string[]): number =>
  estimateTokens(texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0));

/** The approximate number of tokens of a request with all its cards. */
export const estimateRequest = (request: AdapterRequest): number =>
  tokensOf([
    request.target.instructions ?? '',
    ...fixedPieces(request).map(textOf),
    ...request.cards.map((card) => textOf(pieceOfCard(card))),
  ]);

/** The smaller of the platform's limit and the limit of the target's entry; null: no limit is known. */
function limitOf(
  { max_context_tokens: own }: AdapterCapabilities,
  { target }: AdapterRequest,
): number | null {
  const { max_context_tokens: entry } = target;
  if (own === null) return entry ?? null;
  return Math.min(own, entry ?? own);
}

const overflow = (needed: number, limit: number, what: string): KernelError =>
  new KernelError('context_overflow', {
    message: `The ${what} about ${needed} tokens; the target takes ${limit}.`,
    details: { tokens: needed, limit_tokens: limit },
  });

/** The newest cards that fit, in their order; the other cards are lost. */
function fitCards(cards: readonly PackedCard[], room: number, limit: number): CarriedRequest {
  let left = room;
  const kept = new Set<string>();
  const lost: LostCard[] = [];
  for (const card of cards.toReversed()) {
    const needed = tokensOf([textOf(pieceOfCard(card))]);
    if (needed <= left) {
      left -= needed;
      kept.add(card.id);
    } else
      lost.unshift({
        card_id: card.id,
        what: kindOf(card.content),
        why: `its ${needed} tokens exceed the ${limit} tokens that the target accepts`,
      });
  }
  return { cards: cards.filter(({ id }) => kept.has(id)), lost };
}

const nothingCarried = (lost: readonly LostCard[], carries: readonly CarriedKind[]): KernelError =>
  new KernelError('cards_not_carried', {
    message: `None of the packed cards can be sent; the platform carries ${carries.join(', ')}.`,
    details: { lost, carries },
  });

/**
 * Compares a request with the adapter's capabilities for its target. When there are too many cards, the newest are kept.
 *
 * @throws KernelError `context_overflow` when task, context and payload alone are too large, or no card fits next to them;
 * `cards_not_carried` when there are cards and the platform can carry none of them.
 */
export function checkCapabilities(
  adapter: Pick<HandoffAdapter, 'capabilities' | 'capabilitiesOf'>,
  request: AdapterRequest,
): CarriedRequest {
  const capabilities = adapter.capabilitiesOf?.(request.target) ?? adapter.capabilities;
  const { carries, file_types } = capabilities;
  const faultOf = ({ content }: PackedCard): string | undefined => {
    const kind = kindOf(content);
    return carries.includes(kind)
      ? findFileFault(content, file_types)
      : `the platform does not carry ${kind}`;
  };
  const refused = request.cards.flatMap((card): LostCard[] => {
    const why = faultOf(card);
    return why === undefined ? [] : [{ card_id: card.id, what: kindOf(card.content), why }];
  });
  const carried = request.cards.filter((card) => faultOf(card) === undefined);
  if (request.cards.length > 0 && carried.length === 0) throw nothingCarried(refused, carries);
  const limit = limitOf(capabilities, request);
  if (limit === null) return { cards: carried, lost: refused };
  const { instructions = '' } = request.target;
  const fixed = tokensOf([instructions, ...fixedPieces(request).map(textOf)]);
  if (fixed > limit) throw overflow(fixed, limit, 'task, context and payload have');
  const fitted = fitCards(carried, limit - fixed, limit);
  if (carried.length > 0 && fitted.cards.length === 0) {
    const smallest = Math.min(...carried.map((card) => tokensOf([textOf(pieceOfCard(card))])));
    throw overflow(fixed + smallest, limit, 'task and the smallest card have');
  }
  return { cards: fitted.cards, lost: [...refused, ...fitted.lost] };
}
