/**
 * The answer of a single call of `expand`: a part of the content that a compaction has left out, small enough not to
 * overflow the next prompt. Source: docs/reference/views.md, "Overflow".
 */

import type { CardId, JsonObject } from '../base/index.js';
import type { Card } from '../card/index.js';
import { renderBody } from '../render/render.js';

export interface PageOptions {
  /** The start: a character index in a card, or a card index in a summary. */
  readonly from: number;
  /** The limit for a card's content, or for the whole answer about a summary. */
  readonly maxBytes: number;
}

const headOf = (card: Card): JsonObject => ({ card_id: card.id, type: card.type, author_id: card.authorId });

const isLowHalf = (text: string, index: number): boolean => /[\udc00-\udfff]/.test(text.charAt(index));

/** A part of a text, cut between characters; at least one character. */
function takeText(body: string, { from, maxBytes }: PageOptions): { text: string; next: number | undefined } {
  const start = isLowHalf(body, from) ? from + 1 : from;
  let end = start;
  for (let room = maxBytes; end < body.length; ) {
    const character = String.fromCodePoint(body.codePointAt(end) ?? 0);
    room -= Buffer.byteLength(character);
    if (room < 0 && end > start) break;
    end += character.length;
  }
  return { text: body.slice(start, end).toWellFormed(), next: end < body.length ? end : undefined };
}

/** A part of a card's content. */
export function readCardPage(card: Card, options: PageOptions): JsonObject {
  const { text, next } = takeText(renderBody(card.content), options);
  return { ...headOf(card), text, ...(next === undefined ? {} : { next_from: next }) };
}

const sizeOf = (value: JsonObject): number => Buffer.byteLength(JSON.stringify(value)) + 1;

/**
 * The beginning of a card. The loop is needed because quotes and line ends take more bytes in JSON than in the text.
 */
function beginningOf(card: Card, room: number): JsonObject {
  let part = readCardPage(card, { from: 0, maxBytes: room });
  for (let words = room; sizeOf(part) > room && words > 1; ) {
    words = Math.max(Math.floor(Math.min(words - 1, (words * room) / sizeOf(part))), 1);
    part = readCardPage(card, { from: 0, maxBytes: words });
  }
  return part;
}

/** Bytes around the cards of an answer: its own fields, with room for `next_from`. */
const FRAME_BYTES = 32;

/**
 * As many cards as fit in the answer. If the first card does not fit, the answer has its beginning; the caller reads
 * the rest by the card's own id.
 */
export function readSummaryPage(
  summary: Card,
  of: PageOptions & {
    readonly ids: readonly CardId[];
    /** The cards from `from` on, as many as the answer may hold; a missing card no longer exists. */
    readonly cards: ReadonlyMap<CardId, Card>;
  },
): JsonObject {
  const { ids, cards, from } = of;
  const answer = { ...headOf(summary), card_count: ids.length };
  let room = of.maxBytes - sizeOf(answer) - FRAME_BYTES;
  const read: JsonObject[] = [];
  let at = from;
  for (; at < ids.length; at += 1) {
    const card = cards.get(ids[at] as CardId);
    if (card === undefined) continue;
    const whole = readCardPage(card, { from: 0, maxBytes: Math.max(room, 1) });
    const isWhole = whole.next_from === undefined && sizeOf(whole) <= room;
    if (!isWhole && read.length > 0) break;
    const part = isWhole ? whole : beginningOf(card, room);
    read.push(part);
    room -= sizeOf(part);
  }
  return { ...answer, cards: read, ...(at < ids.length ? { next_from: at } : {}) };
}
