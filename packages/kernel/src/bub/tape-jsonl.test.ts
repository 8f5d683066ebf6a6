import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isJsonObject, type JsonObject } from '../base/json.js';
import { pythonJson } from '../base/python-json.js';
import { tapeMessages } from '../tape/messages.js';
import { toRecord, toRecords } from '../tape/record.js';
import { imported, stored } from '../testing/tape-rows.js';
import { CardMaker, TestTape, testId } from '../testing/view-rows.js';
import { formatTapeLines, parseTapeLines, tapeLineReader, tapeLineWriter } from './tape-jsonl.js';

const line = (id: number, kind: string, payload: JsonObject, more: JsonObject = { meta: {} }): string =>
  pythonJson({ id, kind, payload, ...more });

/** Lines as Bub shows them, as older and newer versions write them, and as only a plugin writes them. */
const LINES = [
  line(1, 'anchor', { name: 'session/start', state: { owner: 'human' } }),
  line(2, 'message', { role: 'user', content: 'Hello' }),
  line(
    3,
    'message',
    { role: 'assistant', content: 'Hi! ü \u2028' },
    { meta: { run_id: 'run-1' }, date: '2026-02-21T12:00:00.123456+00:00' },
  ),
  line(7, 'tool_call', {
    calls: [
      { id: 'c1', type: 'function', function: { name: 'fs.read', arguments: '{"path": "a"}' } },
      'odd',
      { id: 'c2' },
    ],
  }),
  '{"id":8,"kind":"tool_result","payload":{"results":["text",{"x":1.0}]},"meta":{},"timestamp":1771675200.25}',
  line(9, 'tool_call', { calls: [] }),
  line(10, 'tool_result', { results: 'none' }),
  line(11, 'system', { content: 'Be brief.' }),
  line(12, 'error', { kind: 'temporary', message: 'Later.', details: { n: 1 } }),
  line(13, 'event', { name: 'handoff', data: { name: 'phase/1', state: {} } }),
  line(14, 'event', { name: 'loop.start' }),
  line(15, 'note', { text: 'of a plugin' }, { meta: { context: false }, extra: [1, 2] }),
  line(16, 'message', { role: 'developer', content: [{ type: 'text', text: 'parts' }] }),
  '{"id": 17, "kind": "message", "payload": {"role": "user", "content": "\\u0000 and \\ud800"}, "meta": {}}',
  '  {"id": 18, "kind": "anchor", "payload": {"name": "phase/2"}}\r',
];
const FILE = `${LINES.join('\n')}\n`;

describe('a tape file', () => {
  test('is exported again byte for byte', () => {
    expect(formatTapeLines(imported(FILE))).toBe(FILE);
  });

  test('becomes an entry for each card, with a separate entry for each call and each result', () => {
    expect(
      imported(FILE).map(({ kind, card, anchorName, payload }) => [
        kind,
        card?.type ?? (isJsonObject(payload) ? payload.name : null),
        anchorName,
      ]),
    ).toEqual([
      ['anchor', 'tape.anchor', 'session/start'],
      ['message', 'task.instruction', null],
      ['message', 'agent.thought', null],
      ['tool_call', 'tool.call', null],
      ['tool_call', 'tool.call', null],
      ['tool_result', 'tool.result', null],
      ['tool_result', 'tool.result', null],
      ['event', 'imported.tool_call', null],
      ['event', 'imported.tool_result', null],
      ['system', 'sys.notice', null],
      ['error', 'agent.error', null],
      ['event', 'handoff', null],
      ['event', 'loop.start', null],
      ['event', 'imported.note', null],
      ['message', 'task.instruction', null],
      ['message', 'task.instruction', null],
      ['anchor', 'tape.anchor', 'phase/2'],
    ]);
  });

  test('gives each call an id of its own, and each result the id of the call that it answers', () => {
    const contents = imported(FILE).flatMap(({ card }) => (card === null ? [] : [card.content]));
    expect(contents.filter(({ kind }) => kind === 'tool_call')).toEqual([
      {
        kind: 'tool_call',
        tool_call_id: 'k1',
        provider_call_id: 'c1',
        name: 'fs.read',
        arguments: { path: 'a' },
      },
      { kind: 'tool_call', tool_call_id: 'k2', provider_call_id: 'c2', name: '', arguments: {} },
    ]);
    expect(contents.filter(({ kind }) => kind === 'tool_result')).toEqual([
      { kind: 'tool_result', tool_call_id: 'k1', name: 'fs.read', status: 'success', result: 'text' },
      { kind: 'tool_result', tool_call_id: 'k2', name: '', status: 'success', result: { x: 1 } },
    ]);
  });

  test('may contain characters that cannot be stored: cards get replacements, and the line is kept unchanged', () => {
    const [first] = imported(`${LINES[13]}\n`);
    expect(first?.card).toMatchObject({
      content: { text: '\ufffd and \ufffd' },
      metadata: { sanitized: true },
    });
    expect(first && toRecord(first).payload.content).toBe('\u0000 and \ud800');
  });

  test('hides from views the lines that the original program never shows', () => {
    const hidden = imported(FILE).filter(({ card }) => card?.metadata.context === false);
    expect(hidden.map(({ kind }) => kind)).toEqual(['system', 'error']);
  });

  test('reads as records line by line, and gives the messages of the original program', () => {
    const records = toRecords(imported(FILE));
    expect(records.map(({ kind }) => kind)).toEqual(LINES.map((text) => JSON.parse(text).kind));
    expect(records[4]?.date).toBe('2026-02-21T12:00:00.250000+00:00');
    expect(records[0]?.date).toBeNull();
    expect(tapeMessages(records.slice(3, 5), { strictBub: true }).at(-1)).toEqual({
      role: 'tool',
      content: '{"x": 1.0}',
      tool_call_id: 'c2',
    });
  });

  test('of any entries is exported again byte for byte', () => {
    const text = fc.string({ unit: fc.constantFrom('a', 'é', '"', '\\', '\n', '\u0000', ' ', '😀') });
    const payload = fc.oneof(
      fc.record({
        kind: fc.constant('message'),
        payload: fc.record({ role: text, content: fc.oneof(text, fc.jsonValue()) }),
      }),
      fc.record({
        kind: fc.constant('anchor'),
        payload: fc.record({ name: text, state: fc.dictionary(text, fc.jsonValue()) }),
      }),
      fc.record({
        kind: fc.constant('tool_call'),
        payload: fc.record({ calls: fc.array(fc.jsonValue(), { maxLength: 3 }) }),
      }),
      fc.record({
        kind: fc.constant('tool_result'),
        payload: fc.record({ results: fc.array(fc.jsonValue(), { maxLength: 3 }) }),
      }),
      fc.record({
        kind: text,
        payload: fc.dictionary(text, fc.jsonValue()),
      }),
    );
    fc.assert(
      fc.property(fc.array(payload, { maxLength: 8 }), (entries) => {
        const file = entries
          .filter(({ kind, payload: given }) => kind !== 'anchor' || 'name' in given)
          .map((entry, index) => `${JSON.stringify({ id: index + 1, ...entry, meta: {} })}\n`)
          .join('');
        expect(formatTapeLines(imported(file))).toBe(file);
      }),
      { numRuns: 300 },
    );
  });

  test('that is made piece by piece is equal to the file that is made at once, wherever it is divided', () => {
    const tape = new TestTape();
    const cards = new CardMaker();
    const steps = [1, 1, 1, 2, 2].map((step) => ({ turnId: testId('turn', 1), step }));
    for (const [index, step] of steps.entries()) tape.add(cards.call(`a${index}`, 'read', {}), step);
    const lines = [LINES[3], line(8, 'tool_result', { results: ['a', 'b', 'c'] }), LINES[1]].join('\n');
    const entries = [...imported(lines), ...tape.entries.map((each) => stored(each)), ...imported(lines)];
    const whole = formatTapeLines(entries);
    for (let size = 1; size <= entries.length; size += 1) {
      const writer = tapeLineWriter();
      const made: string[] = [];
      for (let at = 0; at < entries.length; at += size)
        made.push(...writer.add(entries.slice(at, at + size)));
      made.push(...writer.end());
      expect(made.map((text) => `${text}\n`).join('')).toBe(whole);
    }
  });

  test('gives no reader access to a context, even when its events name a context', () => {
    const file = `${line(1, 'event', { name: 'turn.started', data: { turn_id: 't', context_box_id: 'b' } })}\n`;
    expect(imported(file).map(({ payload }) => payload)).toEqual([
      {
        name: 'imported.event',
        data: { name: 'turn.started', data: { turn_id: 't', context_box_id: 'b' } },
      },
    ]);
    expect(formatTapeLines(imported(file))).toBe(file);
  });

  test('keeps the state of a handoff only in the card of its anchor when both have the same state', () => {
    const anchor = (state: JsonObject) => line(1, 'anchor', { name: 'a', state });
    const event = (data: JsonObject) => line(2, 'event', { name: 'handoff', data });
    const eventOf = (...lines: string[]) => imported(lines.join('\n')).at(-1)?.payload;
    expect(eventOf(anchor({ x: 1, y: 2 }), event({ name: 'a', state: { y: 2, x: 1 } }))).toEqual({
      name: 'handoff',
      data: { name: 'a' },
    });
    const other = { name: 'a', state: { x: 2 } };
    expect(eventOf(anchor({ x: 1 }), event(other))).toEqual({ name: 'handoff', data: other });
    expect(eventOf(anchor({ x: 2 }), line(2, 'event', { name: 'note' }), event(other))).toEqual({
      name: 'handoff',
      data: other,
    });
  });

  test('that is cut within a line has the content of the entries that it holds', () => {
    const entries = imported(FILE);
    const text = formatTapeLines(entries.slice(0, 4));
    expect(JSON.parse(text.trimEnd().split('\n').at(-1) ?? '')).toMatchObject({
      id: 4,
      kind: 'tool_call',
      payload: { calls: [{ id: 'k1' }] },
    });
  });

  test('that lacks one entry of a line has the other entries of the line', () => {
    const results = `${line(1, 'tool_result', { results: ['a', 'b', 'c'] })}\n`;
    const some = imported(`${results}${results}`).filter((_entry, index) => [0, 2, 4].includes(index));
    const left = formatTapeLines(some).trimEnd().split('\n');
    expect(left.map((text) => JSON.parse(text).payload.results)).toEqual([['a'], ['c'], ['b']]);
  });

  test('pairs results with the calls that they name', () => {
    const file = [
      line(1, 'tool_call', { calls: [{ id: 'c1' }] }),
      line(2, 'tool_call', { calls: [{ id: 'c2' }] }),
      line(3, 'tool_result', { results: ['one'] }, { meta: { tool_call_ids: ['c1'] } }),
      line(4, 'tool_result', { results: ['two'] }, { meta: { tool_call_ids: ['c2'] } }),
    ].join('\n');
    const answers = imported(file).flatMap(({ card }) =>
      card?.content.kind === 'tool_result' ? [[card.content.tool_call_id, card.content.result]] : [],
    );
    expect(answers).toEqual([
      ['k1', 'one'],
      ['k2', 'two'],
    ]);
  });

  test('continues with the next id after imported lines; the steps of a turn are grouped, and can be read back', () => {
    const tape = new TestTape();
    const cards = new CardMaker();
    const step = { turnId: testId('turn', 1), step: 1 };
    tape.add(cards.call('a1', 'read', {}), step);
    tape.add(cards.call('a2', 'read', {}), step);
    tape.add(cards.result('a1', 'read', 'A'), step);
    tape.add(cards.result('a2', 'read', 'B'), step);
    const file = formatTapeLines([...imported(`${LINES[3]}\n`), ...tape.entries.map((each) => stored(each))]);
    const lines = file.trimEnd().split('\n');
    expect(lines.map((text) => JSON.parse(text).id)).toEqual([7, 8, 9]);
    expect(lines[2]).toBe(
      `{"id": 9, "kind": "tool_result", "payload": {"results": ["A", "B"]}, "meta": {"run_id": "${testId('turn', 1)}", ` +
        '"step": 1, "tool_call_ids": ["a1", "a2"]}, "date": "2026-02-21T12:00:00.500000+00:00"}',
    );
    expect(formatTapeLines(imported(file))).toBe(file);
    const answers = imported(file).flatMap(({ card }) =>
      card?.content.kind === 'tool_result' ? [card.content] : [],
    );
    expect(answers.map(({ tool_call_id: id, name }) => [id, name])).toEqual([
      ['k3', 'read'],
      ['k4', 'read'],
    ]);
  });
});

test.each([
  ['{"id": 1', 'Line 3 is not valid JSON.'],
  ['[]', 'Line 3 is not a JSON object.'],
  ['{"id": "1", "kind": "event", "payload": {}}', 'Line 3 has no integer `id`.'],
  ['{"id": 1, "payload": {}}', 'Line 3 has no `kind`.'],
  ['{"id": 1, "kind": "event", "payload": "x"}', 'Line 3 has no object `payload`.'],
  ['{"id": 1, "kind": "anchor", "payload": {}}', 'Line 3 is an anchor without a `name`.'],
  ['{"id": 1, "kind": "event", "payload": {}, "date": "soon"}', 'Line 3 has no ISO `date`.'],
  ['{"id": 1, "kind": "event", "payload": {}, "timestamp": 1e300}', 'Line 3 has no ISO `date`.'],
])('a broken line is reported with its number, and nothing of the file is read: %s', (broken, message) => {
  const parse = () => parseTapeLines(`${LINES[0]}\n\n${broken}\n${LINES[1]}\n`, { newCallId: () => 'k' });
  expect(parse).toThrow(message);
  expect(parse).toThrow(expect.objectContaining({ code: 'bad_request', details: { line: 3 } }));
});

test('a line that ends within a character is broken', () => {
  const read = tapeLineReader({ newCallId: () => 'k' });
  expect(() => read('{"id": 1, "kind": "event", "payload": {"name": "\ud800"}}', 4)).toThrow(
    'Line 4 has half a character.',
  );
});
