/**
 * The loss report: the packed cards that are in the body that was really sent, and the cards that are not. The adapter's intention does
 * not count. Every card is either sent or lost (H3).
 */
import { canonicalJson, isJsonObject, type JsonValue } from '@boxcar/kernel';
import type { LossReport, LostCard, PackedCard } from './adapter.js';
import { kindOf, pieceOfCard } from './pieces.js';

const NOT_SENT = 'it is not in the body that was sent';

/** Counts each text and each JSON object in the bodies. A found piece is removed, so two equal cards need two occurrences. */
class SentPieces {
  readonly #left = new Map<string, number>();

  constructor(bodies: readonly string[]) {
    for (const body of bodies) this.#addBody(body);
  }

  #addBody(body: string): void {
    try {
      this.#add(JSON.parse(body) as JsonValue);
    } catch {
      // A body that is not JSON contains no cards.
    }
  }

  #add(value: JsonValue): void {
    if (typeof value === 'string') this.#count(`text ${value}`);
    else if (Array.isArray(value)) for (const item of value) this.#add(item);
    else if (isJsonObject(value)) {
      // The envelope of a card that is sent as a value.
      if (typeof value.card_id === 'string') this.#count(`json ${canonicalJson(value)}`);
      for (const member of Object.values(value)) this.#add(member);
    }
  }

  #count(key: string): void {
    this.#left.set(key, (this.#left.get(key) ?? 0) + 1);
  }

  /** True when the piece of the card was sent, in either form, and has not been counted for another card. */
  take(card: PackedCard): boolean {
    const piece = pieceOfCard(card);
    const keys =
      piece.kind === 'file'
        ? [`text ${piece.url}`]
        : [`text ${piece.text}`, ...(piece.kind === 'json' ? [`json ${canonicalJson(piece.data)}`] : [])];
    const found = keys.find((key) => (this.#left.get(key) ?? 0) > 0);
    if (found === undefined) return false;
    this.#left.set(found, (this.#left.get(found) ?? 0) - 1);
    return true;
  }
}

/**
 * @param cards - All packed cards, including the cards that were not carried.
 * @param bodies - The request bodies as they were sent.
 * @param known - The known reasons why cards were left out.
 */
export function lossOf(
  cards: readonly PackedCard[],
  bodies: readonly string[],
  known: readonly LostCard[],
): LossReport {
  const sent = new SentPieces(bodies);
  const sentCards: string[] = [];
  const lost: LostCard[] = [];
  for (const card of cards) {
    const leftOut = known.find(({ card_id }) => card_id === card.id);
    // The address of a file may also occur in the task. Unlike other pieces, it does not contain the card's id.
    const isLeftOutFile = leftOut !== undefined && card.content.kind === 'file';
    if (!isLeftOutFile && sent.take(card)) sentCards.push(card.id);
    else lost.push(leftOut ?? { card_id: card.id, what: kindOf(card.content), why: NOT_SENT });
  }
  return { sent_cards: sentCards, lost };
}
