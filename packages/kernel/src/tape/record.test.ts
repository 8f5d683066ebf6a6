import { describe, expect, test } from 'vitest';
import type { JsonObject } from '../base/json.js';
import type { CardContent } from '../card/card.js';
import { CREATED_AT, stored } from '../testing/tape-rows.js';
import { CardMaker, TestTape, testId } from '../testing/view-rows.js';
import { anchorNameOf, anchorState, toRecord, toRecords } from './record.js';
import type { EntryKind } from './tape.js';

const cards = new CardMaker();
const entry = (
  kind: EntryKind,
  content: CardContent,
  options: { anchorName?: string; metadata?: JsonObject } = {},
) =>
  stored({
    position: 7,
    kind,
    card: cards.card('note', 'assistant', content, options.metadata ? { metadata: options.metadata } : {}),
    payload: null,
    anchorName: options.anchorName ?? null,
    turnId: null,
    step: null,
  });
const json = (data: JsonObject | null): CardContent => ({ kind: 'json', data });

test.each<[EntryKind, CardContent, JsonObject]>([
  ['message', { kind: 'text', text: 'hi' }, { role: 'assistant', content: 'hi' }],
  ['message', { kind: 'text', text: '' }, { role: 'assistant', content: '' }],
  ['message', json({ a: [1] }), { role: 'assistant', content: '{"a":[1]}' }],
  ['system', { kind: 'text', text: 'be brief' }, { content: 'be brief' }],
  ['anchor', json({ summary: 's' }), { name: 'phase/1', state: { summary: 's' } }],
  ['anchor', json(null), { name: 'phase/1' }],
  [
    'tool_call',
    { kind: 'tool_call', tool_call_id: 'k1', provider_call_id: 'p', name: 'read', arguments: { path: 'a' } },
    { calls: [{ id: 'k1', type: 'function', function: { name: 'read', arguments: '{"path":"a"}' } }] },
  ],
  [
    'tool_result',
    { kind: 'tool_result', tool_call_id: 'k1', name: 'read', status: 'success', result: { n: 1 } },
    { results: [{ n: 1 }] },
  ],
  [
    'tool_result',
    {
      kind: 'tool_result',
      tool_call_id: 'k1',
      name: 'read',
      status: 'timeout',
      error: { code: 'tool_timeout', message: 'Late.' },
    },
    { results: [{ status: 'timeout', error: { code: 'tool_timeout', message: 'Late.' } }] },
  ],
  [
    'error',
    json({ code: 'model_failed', message: 'No.', details: { status: 500 } }),
    { kind: 'model_failed', message: 'No.', details: { status: 500 } },
  ],
  ['error', { kind: 'text', text: 'No.' }, { kind: 'unknown', message: 'No.' }],
])('the payload of a %s equals the original’s: %j', (kind, content, payload) => {
  expect(toRecord(entry(kind, content, { anchorName: 'phase/1' })).payload).toEqual(payload);
});

test('an event is its payload, and the date of an entry is in ISO 8601', () => {
  const tape = new TestTape();
  tape.event('loop.step', { status: 'ok' });
  expect(tape.entries.map((each) => toRecord(stored(each)))).toEqual([
    {
      position: 3,
      kind: 'event',
      payload: { name: 'loop.step', data: { status: 'ok' } },
      meta: {},
      date: '2026-02-21T12:00:00.500000+00:00',
    },
  ]);
  expect(CREATED_AT).toBe('2026-02-21T12:00:00.5Z');
});

describe('the meta of a record', () => {
  test('names turn, step and answered call in addition to the given meta, and leaves out the mark of an import', () => {
    const tape = new TestTape();
    tape.add(cards.result('k9', 'read', 'x'), { turnId: testId('turn', 4), step: 2 });
    const [first] = tape.entries;
    expect(first && toRecord(stored(first, { note: 'n', imported: { part: 3 } })).meta).toEqual({
      run_id: testId('turn', 4),
      step: 2,
      tool_call_ids: ['k9'],
      note: 'n',
    });
  });

  test('marks a hidden card as hidden', () => {
    const hidden = entry('message', { kind: 'text', text: 'hi' }, { metadata: { context: false } });
    expect(toRecord(hidden).meta).toEqual({ context: false });
  });
});

test('the calls of a step make one record, and so do its results; another step makes its own records', () => {
  const tape = new TestTape();
  const step = (turn: number, number: number) => ({ turnId: testId('turn', turn), step: number });
  tape.add(cards.thought('I read both.'), step(1, 1));
  tape.add(cards.call('k1', 'read', { path: 'a' }), step(1, 1));
  tape.add(cards.call('k2', 'read', { path: 'b' }), step(1, 1));
  tape.add(cards.result('k1', 'read', 'A'), step(1, 1));
  tape.add(cards.result('k2', 'read', 'B'), step(1, 1));
  tape.add(cards.call('k3', 'read', { path: 'c' }), step(1, 2));
  tape.add(cards.call('k4', 'read', { path: 'd' }), step(1, 3));
  tape.add(cards.call('k7', 'read', { path: 'g' }), step(2, 3));
  tape.add(cards.call('k5', 'read', { path: 'e' }));
  tape.add(cards.call('k6', 'read', { path: 'f' }));
  const records = toRecords(tape.entries.map((each) => stored(each)));
  expect(records.map(({ position, kind }) => [position, kind])).toEqual([
    [3, 'message'],
    [4, 'tool_call'],
    [6, 'tool_result'],
    [8, 'tool_call'],
    [9, 'tool_call'],
    [10, 'tool_call'],
    [11, 'tool_call'],
    [12, 'tool_call'],
  ]);
  expect(records[1]?.payload.calls).toHaveLength(2);
  expect(records[2]).toMatchObject({
    payload: { results: ['A', 'B'] },
    meta: { tool_call_ids: ['k1', 'k2'] },
    tools: ['read', 'read'],
  });
});

test('only an anchor with a name has a record', () => {
  const [anchor, message] = [
    toRecord(entry('anchor', json({ owner: 'human' }), { anchorName: 'session/start' })),
    toRecord(entry('message', json({ name: 'x' }))),
  ];
  expect([anchorNameOf(anchor), anchorNameOf(message)]).toEqual(['session/start', undefined]);
  expect([anchorState(anchor), anchorState(toRecord(entry('anchor', json(null))))]).toEqual([
    { owner: 'human' },
    null,
  ]);
  expect(anchorNameOf({ ...anchor, payload: { name: 5 } })).toBeUndefined();
});
