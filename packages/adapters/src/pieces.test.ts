import { expect, test } from 'vitest';
import { fixedPieces, kindOf, pieceOfCard, textOf } from './pieces.js';
import { everyCard, requestFor } from './testing/cards.js';

const target = { platform: 'openai', model: 'm' } as const;

test('each card is one piece, which names the card and contains all of its content', () => {
  expect(Object.fromEntries(everyCard().map((card) => [card.id, textOf(pieceOfCard(card))]))).toEqual({
    text: '[card text: task.text]\nThe harbour has four cranes.',
    json: '[card json: task.json]\n{"cranes":4,"names":["a","b"]}',
    fields: '[card fields: task.fields]\n- total (number, required)',
    tool_call:
      '[card tool_call: task.tool_call]\n{"tool_call_id":"call-1","name":"count","arguments":{"what":"cranes"}}',
    tool_result:
      '[card tool_result: task.tool_result]\n{"tool_call_id":"call-1","name":"count","status":"success","result":{"cranes":4}}',
    file: 'https://files.example/harbour.pdf',
    image: 'https://files.example/harbour.png',
    local_file: expect.stringContaining('blob:sha256:02'),
  });
});

test('the result of a failed call gives the reason', () => {
  const piece = pieceOfCard({
    id: 'a',
    type: 'tool.result',
    role: 'tool',
    content: {
      kind: 'tool_result',
      tool_call_id: 'c',
      name: 'count',
      status: 'failed',
      error: { code: 'tool_failed', message: 'no cranes', details: { path: '/srv' } },
    },
  });
  expect(piece).toMatchObject({
    data: {
      card_id: 'a',
      role: 'tool',
      data: { name: 'count', status: 'failed', error: { code: 'tool_failed', message: 'no cranes' } },
    },
  });
  expect(textOf(piece)).not.toContain('/srv');
});

test('an image is a file whose type says so', () => {
  expect(everyCard().map(({ content }) => kindOf(content))).toEqual([
    'text',
    'json',
    'text',
    'tool_call',
    'tool_result',
    'file',
    'image',
    'file',
  ]);
});

test('context and payload are pieces when they are not empty, and the task is the last piece', () => {
  expect(fixedPieces(requestFor(target)).map(textOf)).toEqual(['Describe the harbour.']);
  const request = requestFor(target, { context: { a: 1 }, payload: [false] });
  expect(fixedPieces(request).map(textOf)).toEqual([
    '[context]\n{"a":1}',
    '[payload]\n[false]',
    'Describe the harbour.',
  ]);
});
