import { describe, expect, test } from 'vitest';
import { isJsonObject, type JsonObject, type JsonValue } from '../base/json.js';
import type { Card } from '../card/card.js';
import { CardMaker } from '../testing/view-rows.js';
import { readCardPage, readSummaryPage } from './expand-page.js';

const cards = new CardMaker();
const note = (text: string): Card => cards.text('user', text);

/** Follows `next_from` to the end, as a model would. */
function readAll(read: (from: number) => JsonObject): readonly JsonObject[] {
  const pages: JsonObject[] = [];
  for (let from = 0; pages.length < 10_000; ) {
    const page = read(from);
    pages.push(page);
    if (typeof page.next_from !== 'number') return pages;
    expect(page.next_from).toBeGreaterThan(from);
    from = page.next_from;
  }
  throw new Error('no end');
}

const listOf = (value: JsonValue | undefined): readonly JsonObject[] =>
  Array.isArray(value) ? value.filter(isJsonObject) : [];
const bytes = (value: JsonValue): number => Buffer.byteLength(JSON.stringify(value));

describe('a card in parts', () => {
  test.each([
    ['ASCII', 'word '.repeat(3_000)],
    ['three bytes per character', '東京'.repeat(3_000)],
    ['surrogate pairs', 'a😀'.repeat(3_000)],
    ['a single part', 'short'],
  ])('has the same text as the whole card, and no part is larger than requested: %s', (_name, text) => {
    const card = note(text);
    const pages = readAll((from) => readCardPage(card, { from, maxBytes: 1_000 }));
    expect(pages.map((page) => page.text).join('')).toBe(text);
    for (const page of pages) expect(Buffer.byteLength(String(page.text))).toBeLessThanOrEqual(1_000);
  });

  test('is empty after its end, and begins after a surrogate pair when it is asked for from the middle of the pair', () => {
    expect(readCardPage(note('abc'), { from: 99, maxBytes: 100 })).toMatchObject({ text: '' });
    expect(readCardPage(note('😀b'), { from: 1, maxBytes: 100 })).toMatchObject({ text: 'b' });
    expect(readCardPage(note('😀b'), { from: 0, maxBytes: 1 })).toMatchObject({ text: '😀', next_from: 2 });
  });
});

describe('a summary in parts', () => {
  const summary = note('[Summary]');
  const many = Array.from({ length: 1_000 }, (_, index) => note(`n${index}`));
  const all = new Map(many.map((card) => [card.id, card]));
  const ids = many.map(({ id }) => id);

  test('lists every card that it replaces, even when there are many small cards', () => {
    const pages = readAll((from) => readSummaryPage(summary, { ids, cards: all, from, maxBytes: 16_384 }));
    const texts = pages.flatMap(({ cards: list }) => listOf(list).map(({ text }) => text));
    expect(texts).toEqual(many.map((_, index) => `n${index}`));
    expect(pages.every(({ card_count }) => card_count === 1_000)).toBe(true);
  });

  test('is no larger than requested, including everything around the text', () => {
    for (const page of readAll((from) =>
      readSummaryPage(summary, { ids, cards: all, from, maxBytes: 1_500 }),
    ))
      expect(bytes(page)).toBeLessThanOrEqual(1_500);
  });

  test('gives the beginning of a card that is too large for one part, and says where the rest is', () => {
    const large = note('x'.repeat(5_000));
    const small = note('s');
    const page = readSummaryPage(summary, {
      ids: [large.id, small.id],
      cards: new Map([large, small].map((card) => [card.id, card])),
      from: 0,
      maxBytes: 1_500,
    });
    expect(listOf(page.cards)).toMatchObject([{ card_id: large.id, next_from: expect.any(Number) }]);
    expect(page.next_from).toBe(1);
    expect(bytes(page)).toBeLessThanOrEqual(1_500);
  });

  test('counts the escapes of quotes and line ends in its size', () => {
    const quotes = note('"\n'.repeat(5_000));
    const of = { ids: [quotes.id], cards: new Map([[quotes.id, quotes]]), from: 0, maxBytes: 1_500 };
    const page = readSummaryPage(summary, of);
    expect(bytes(page)).toBeLessThanOrEqual(1_500);
    expect(String(listOf(page.cards)[0]?.text).length).toBeGreaterThan(300);
  });

  test('leaves out erased cards', () => {
    const [first, second, third] = many as [Card, Card, Card];
    const page = readSummaryPage(summary, {
      ids: [first.id, second.id, third.id],
      cards: new Map([first, third].map((card) => [card.id, card])),
      from: 0,
      maxBytes: 10_000,
    });
    expect(listOf(page.cards).map(({ card_id }) => card_id)).toEqual([first.id, third.id]);
    expect(page.next_from).toBeUndefined();
  });
});
