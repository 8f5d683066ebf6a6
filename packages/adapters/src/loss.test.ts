import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { PackedCard } from './adapter.js';
import { lossOf } from './loss.js';
import { pieceOfCard, textOf } from './pieces.js';
import { everyCard, textCard } from './testing/cards.js';

const bodyWith = (cards: readonly PackedCard[]): string =>
  JSON.stringify({ input: [{ content: cards.map((card) => ({ text: textOf(pieceOfCard(card)) })) }] });

const asValues = (cards: readonly PackedCard[]): string =>
  JSON.stringify({ parts: cards.map((card) => pieceOfCard(card)) });

test('a card is sent when its piece is in the body, as text or as a value', () => {
  const cards = everyCard();
  const ids = cards.map(({ id }) => id);
  for (const body of [bodyWith(cards), asValues(cards)])
    expect(lossOf(cards, [body], [])).toEqual({ sent_cards: ids, lost: [] });
});

test('the loss report depends only on the body, and not on the adapter’s own report', () => {
  const [first, second] = [textCard('a', 'one'), textCard('b', 'two')];
  const known = [{ card_id: 'a', what: 'text', why: 'it was left out' }];
  expect(lossOf([first, second], [bodyWith([first])], known)).toEqual({
    sent_cards: ['a'],
    lost: [{ card_id: 'b', what: 'text', why: 'it is not in the body that was sent' }],
  });
  expect(lossOf([first], ['not JSON'], known)).toEqual({ sent_cards: [], lost: known });
});

test('a piece that was cut or changed is not sent', () => {
  const card = textCard('a', 'The harbour has four cranes.');
  const cut = bodyWith([card]).replace('cranes.', 'cranes');
  expect(lossOf([card], [cut], []).sent_cards).toEqual([]);
});

test('two cards with the same file need two places in the body', () => {
  const [file] = everyCard().filter(({ id }) => id === 'file');
  if (file === undefined) throw new Error('no file');
  const twin = { ...file, id: 'twin' };
  expect(lossOf([file, twin], [bodyWith([file])], [])).toMatchObject({
    sent_cards: ['file'],
    lost: [{ card_id: 'twin' }],
  });
});

test('a file that was left out is lost, although its address is in the body as an ordinary word', () => {
  const [file] = everyCard().filter(({ id }) => id === 'file');
  if (file === undefined) throw new Error('no file');
  const body = JSON.stringify({
    parts: [{ data: { context: { url: 'https://files.example/harbour.pdf' } } }],
  });
  const known = [{ card_id: 'file', what: 'file', why: 'it was left out' }];
  expect(lossOf([file], [body], known)).toEqual({ sent_cards: [], lost: known });
});

test('every card is either sent or lost, whatever was packed and sent', () => {
  const content = fc.oneof(
    fc.string().map((text) => ({ kind: 'text' as const, text })),
    fc.jsonValue().map((data) => ({ kind: 'json' as const, data: data as never })),
  );
  const packed = fc.uniqueArray(
    fc.record({ id: fc.uuid(), content }).map(({ id, content: of }): PackedCard => {
      return { id, type: 'task.context', role: null, content: of };
    }),
    { selector: ({ id }) => id, maxLength: 8 },
  );
  fc.assert(
    fc.property(
      packed,
      fc.array(fc.boolean(), { minLength: 8, maxLength: 8 }),
      fc.boolean(),
      (cards, picks, asJson) => {
        const sent = cards.filter((_card, index) => picks[index]);
        const report = lossOf(cards, [asJson ? asValues(sent) : bodyWith(sent)], []);
        expect(report.sent_cards).toEqual(sent.map(({ id }) => id));
        const lost = report.lost.map(({ card_id }) => card_id);
        expect([...report.sent_cards, ...lost].toSorted()).toEqual(cards.map(({ id }) => id).toSorted());
      },
    ),
  );
});
