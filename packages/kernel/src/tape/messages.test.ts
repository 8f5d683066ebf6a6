import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import type { JsonObject, JsonValue } from '../base/json.js';
import { pythonJson } from '../base/python-json.js';
import { stored } from '../testing/tape-rows.js';
import { CardMaker, TestTape, testId } from '../testing/view-rows.js';
import { tapeMessages } from './messages.js';
import { readRecord, type TapeRecord, toRecords } from './record.js';

let position = 0;
const record = (kind: string, payload: JsonObject, meta: JsonObject = {}): TapeRecord => {
  position += 1;
  return { position, kind, payload, meta, date: null };
};
const anchor = (name: string, state?: JsonValue): TapeRecord =>
  record('anchor', state === undefined ? { name } : { name, state });
const user = (content: string): TapeRecord => record('message', { role: 'user', content });
const call = (id: string, name = 'read'): JsonObject => ({
  id,
  type: 'function',
  function: { name, arguments: '{}' },
});
const calls = (...items: JsonValue[]): TapeRecord => record('tool_call', { calls: items });
const results = (...items: JsonValue[]): TapeRecord => record('tool_result', { results: items });
const strict = (...records: TapeRecord[]): string => pythonJson(tapeMessages(records, { strictBub: true }));
const NOT_AVAILABLE =
  '{"error":{"code":"not_available","message":"The result of this call is not available."}}';

/** Tool messages as `id=content`, calls as their ids, others as their text. */
const short = (records: readonly TapeRecord[]): readonly string[] =>
  tapeMessages(records).map((message) => {
    const made = Array.isArray(message.tool_calls) ? message.tool_calls : undefined;
    if (made !== undefined) return `calls ${made.map(({ id }: JsonObject) => id).join(' ')}`;
    return message.role === 'tool' ? `${message.tool_call_id}=${message.content}` : String(message.content);
  });

describe('strictBub gives the bytes of the original program', () => {
  test('for an anchor: Python’s JSON with the fewest escapes, and null when there is no state', () => {
    expect(strict(anchor('phase/é', { y: 2, z: ['ü', 0.00001] }), anchor('bare'))).toBe(
      '[{"role": "assistant", "content": "[Anchor created: phase/é]: {\\"y\\": 2, \\"z\\": [\\"ü\\", 1e-05]}"}, ' +
        '{"role": "assistant", "content": "[Anchor created: bare]: null"}]',
    );
  });

  test('for a line: numbers as the line wrote them', () => {
    const lines = [
      '{"id": 1, "kind": "anchor", "payload": {"name": "a", "state": {"x": 1.0, "n": 12345678901234567890}}, "meta": {}}',
      '{"id":2,"kind":"tool_call","payload":{"calls":[{"id":"c1"}]},"meta":{}}',
      '{"id":3,"kind":"tool_result","payload":{"results":[{"x":2.50}]},"meta":{}}',
    ].map(readRecord) as readonly TapeRecord[];
    expect(strict(...lines)).toBe(
      '[{"role": "assistant", "content": "[Anchor created: a]: {\\"x\\": 1.0, \\"n\\": 12345678901234567890}"}, ' +
        '{"role": "assistant", "content": "", "tool_calls": [{"id": "c1"}]}, ' +
        '{"role": "tool", "content": "{\\"x\\": 2.5}", "tool_call_id": "c1"}]',
    );
  });

  test('for messages: their payload, whatever it holds', () => {
    expect(
      strict(record('message', { content: [{ type: 'text', text: 'a' }], role: 'developer', x: null })),
    ).toBe('[{"content": [{"type": "text", "text": "a"}], "role": "developer", "x": null}]');
  });

  test('for calls and results: paired by position, with id and name when the call has them', () => {
    expect(strict(calls(call('c1'), call('c2', 'list')), results('text', { a: 1 }))).toBe(
      '[{"role": "assistant", "content": "", "tool_calls": [' +
        '{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}, ' +
        '{"id": "c2", "type": "function", "function": {"name": "list", "arguments": "{}"}}]}, ' +
        '{"role": "tool", "content": "text", "tool_call_id": "c1", "name": "read"}, ' +
        '{"role": "tool", "content": "{\\"a\\": 1}", "tool_call_id": "c2", "name": "list"}]',
    );
    expect(strict(calls({ function: { name: 'read' } }), results(null))).toContain(
      '{"role": "tool", "content": "null", "name": "read"}',
    );
  });

  test('for a record with more results than a function takes arguments', () => {
    const many = Array.from({ length: 200_000 }, () => 'a');
    const messages = tapeMessages(
      [calls(call('c1')), results(...many.slice(0, 1)), record('tool_result', { results: many })],
      {
        strictBub: true,
      },
    );
    expect(messages).toHaveLength(200_002);
  });

  test('for its defects', () => {
    const tool = (text: string): string => `{"role": "tool", "content": "${text}"`;
    // A call without a result stays unanswered; a surplus result has neither id nor name.
    expect(strict(calls(call('c1'), call('c2')), results('a'))).not.toContain('"tool_call_id": "c2"');
    expect(strict(calls(call('c1')), results('a', 'b'))).toContain(`${tool('b')}}`);
    // A message in between keeps the pair; of two call records in a row the first is lost; a second result record has
    // no ids.
    expect(strict(calls(call('c1')), user('wait'), results('a'))).toContain(
      `${tool('a')}, "tool_call_id": "c1"`,
    );
    expect(strict(calls(call('c1')), calls(call('c2')), results('a'))).toContain('"tool_call_id": "c2"');
    expect(strict(calls(call('c1')), results('a'), results('b'))).toContain(`${tool('b')}}`);
    // A call that is not an object is dropped, so positions shift; an empty list leaves no message.
    expect(strict(calls('x', call('c2')), results('a'))).toContain(`${tool('a')}, "tool_call_id": "c2"`);
    expect(strict(calls('x'), record('tool_call', {}), record('tool_result', { results: 'a' }))).toBe('[]');
  });

  test('for lines that are never shown', () => {
    expect(
      strict(
        record('system', { content: 's' }),
        record('error', { kind: 'temporary', message: 'm' }),
        record('event', { name: 'handoff' }),
        record('custom', { role: 'user', content: 'c' }),
        record('message', { role: 'user', content: 'hidden' }, { context: false }),
      ),
    ).toBe('[]');
  });

  test('without the anchor before the slice', () => {
    expect(tapeMessages([], { strictBub: true, anchor: anchor('a', { s: 1 }) })).toEqual([]);
  });
});

describe('without strictBub', () => {
  test('a step’s message without words is left out, and no other message is', () => {
    const blank = { role: 'assistant', content: ' ' };
    const line = readRecord(
      '{"id": 1, "kind": "message", "payload": {"role": "assistant", "content": ""}, "meta": {"step": 1}}',
    );
    if ('fault' in line) throw new Error(line.fault);
    const records = [record('message', blank, { step: 1 }), calls(call('a')), record('message', blank), line];
    expect(tapeMessages(records).map(({ role, content }) => [role, content])).toEqual([
      ['assistant', ''],
      ['tool', NOT_AVAILABLE],
      ['assistant', ' '],
      ['assistant', ''],
    ]);
    expect(tapeMessages(records, { strictBub: true })).toHaveLength(4);
  });

  test('the state of the anchor before the slice comes first, unless it is hidden or a bootstrap anchor', () => {
    const state = { role: 'assistant', content: '[Anchor created: phase/1]: {"summary": "done"}' };
    expect(tapeMessages([user('go')], { anchor: anchor('phase/1', { summary: 'done' }) })).toEqual([
      state,
      { role: 'user', content: 'go' },
    ]);
    expect(tapeMessages([], { anchor: anchor('session/start', { owner: 'human' }) })).toEqual([]);
    expect(tapeMessages([], { anchor: null })).toEqual([]);
    const hidden = record('anchor', { name: 'phase/1', state: { s: 1 } }, { context: false });
    expect(tapeMessages([], { anchor: hidden })).toEqual([]);
  });

  test.each<[string, readonly TapeRecord[], readonly string[]]>([
    [
      'a missing result becomes a fixed text',
      [calls(call('c1'), call('c2')), results('a')],
      ['calls c1 c2', 'c1=a', `c2=${NOT_AVAILABLE}`],
    ],
    ['a result without its call is left out', [results('a'), user('go')], ['go']],
    ['a result too many is left out', [calls(call('c1')), results('a', 'b')], ['calls c1', 'c1=a']],
    [
      'results that arrive separately are taken in order',
      [calls(call('c1'), call('c2')), results('a'), results('b')],
      ['calls c1 c2', 'c1=a', 'c2=b'],
    ],
    [
      'a message between a call and its result follows the result',
      [calls(call('c1')), user('wait'), results('a')],
      ['calls c1', 'c1=a', 'wait'],
    ],
    [
      'after two calls in a row, results go to the latest call first',
      [calls(call('c1')), calls(call('c2')), results('a')],
      ['calls c1', `c1=${NOT_AVAILABLE}`, 'calls c2', 'c2=a'],
    ],
    [
      'results that name their calls belong to those calls, in any order',
      [
        calls(call('c1')),
        calls(call('c2')),
        record('tool_result', { results: ['a'] }, { tool_call_ids: ['c1'] }),
        record('tool_result', { results: ['x', 'b'] }, { tool_call_ids: ['c9', 'c2'] }),
      ],
      ['calls c1', 'c1=a', 'calls c2', 'c2=b'],
    ],
    [
      'a call without an id gets an id from its place',
      [record('tool_call', { calls: [{ function: { name: 'read' } }] }), results('a')].map((each, index) => ({
        ...each,
        position: 40 + index,
      })),
      ['calls call_40_0', 'call_40_0=a'],
    ],
  ])('a conversation is repaired: %s', (_what, records, expected) => {
    expect(short(records)).toEqual(expected);
  });

  test('every call is answered exactly once and directly after it, for any records', () => {
    const entry = fc.oneof(
      fc.constant(() => user('u')),
      fc.constant(() => anchor('a')),
      fc
        .nat(3)
        .map(
          (count) => () =>
            calls(...Array.from({ length: count }, (_, index) => call(`c${position}_${index}`))),
        ),
      fc.nat(3).map((count) => () => results(...Array.from({ length: count }, () => 'r'))),
    );
    fc.assert(
      fc.property(fc.array(entry, { maxLength: 12 }), (makers) => {
        const messages = tapeMessages(makers.map((make) => make()));
        const seen = new Set<JsonValue>();
        for (const [index, message] of messages.entries()) {
          const made = Array.isArray(message.tool_calls) ? message.tool_calls : [];
          const ids = made.map(({ id }: JsonObject) => id);
          expect(messages.slice(index + 1, index + 1 + ids.length).map(({ tool_call_id: id }) => id)).toEqual(
            ids,
          );
          for (const id of ids) seen.add(id ?? null);
        }
        const answers = messages.filter(({ role }) => role === 'tool').map(({ tool_call_id: id }) => id);
        expect(answers).toEqual([...seen]);
      }),
      { numRuns: 300 },
    );
  });

  test('the steps of a turn pair calls and results by their ids', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const step = { turnId: testId('turn', 1), step: 1 };
    tape.add(cards.thought('Both.'), step);
    tape.add(cards.call('k1', 'read', { path: 'a' }), step);
    tape.add(cards.call('k2', 'list', {}), step);
    tape.add(cards.result('k1', 'read', 'A'), step);
    tape.add(cards.result('k2', 'list', ['x']), step);
    expect(short(toRecords(tape.entries.map((each) => stored(each))))).toEqual([
      'Both.',
      'calls k1 k2',
      'k1=A',
      'k2=["x"]',
    ]);
  });
});

describe('the work for messages is proportional to the tape', () => {
  /** Counts the characters and list elements that are read while `work` runs. */
  function countLooks(work: () => unknown): number {
    let looks = 0;
    const lists = ['find', 'findLast', 'findIndex', 'findLastIndex', 'some'] as const;
    const spies = [
      vi.spyOn(String.prototype, 'charAt'),
      vi.spyOn(String.prototype, 'slice'),
      ...lists.map((name) => {
        const native = Array.prototype[name] as (...args: never[]) => unknown;
        return vi.spyOn(Array.prototype, name).mockImplementation(function (
          this: unknown[],
          look: (...args: unknown[]) => unknown,
        ) {
          const counted = (...args: unknown[]) => {
            looks += 1;
            return look(...args);
          };
          return native.call(this, counted as never);
        } as never);
      }),
    ];
    try {
      work();
    } finally {
      for (const spy of spies) spy.mockRestore();
    }
    return looks + (spies[0]?.mock.calls.length ?? 0) + (spies[1]?.mock.calls.length ?? 0);
  }

  const line = (value: JsonValue): TapeRecord => {
    const read = readRecord(JSON.stringify(value));
    if ('fault' in read) throw new Error(read.fault);
    return read;
  };
  const idsOf = (n: number): string[] => Array.from({ length: n }, (_, index) => `c${index}`);
  const TAPES: readonly [string, (n: number) => readonly TapeRecord[]][] = [
    [
      'one imported line with all results, by their ids',
      (n) => [
        line({ id: 1, kind: 'tool_call', payload: { calls: idsOf(n).map((id) => call(id)) }, meta: {} }),
        line({
          id: 2,
          kind: 'tool_result',
          payload: { results: idsOf(n).map((id) => ({ id, is: 1.5 })) },
          meta: { tool_call_ids: idsOf(n).toReversed() },
        }),
      ],
    ],
    [
      'one line with all results, by their order',
      (n) => [
        line({ id: 1, kind: 'tool_call', payload: { calls: idsOf(n).map((id) => call(id)) }, meta: {} }),
        line({ id: 2, kind: 'tool_result', payload: { results: idsOf(n).map((id) => ({ id })) }, meta: {} }),
      ],
    ],
    [
      'many steps whose results come at the end',
      (n) => [
        ...idsOf(n).map((id) => calls(call(id))),
        ...idsOf(n).map((id) => record('tool_result', { results: [id] }, { tool_call_ids: [id] })),
      ],
    ],
    [
      'many steps that share an id, and results that name another id',
      (n) => [
        ...idsOf(n).map(() => calls(call('same'))),
        ...idsOf(n).map(() => record('tool_result', { results: ['x'] }, { tool_call_ids: ['other'] })),
        ...idsOf(n).map(() => record('tool_result', { results: ['x'] }, { tool_call_ids: ['same'] })),
        ...idsOf(n).map(() => results('x')),
      ],
    ],
  ];

  test.each(TAPES)('%s', (_what, make) => {
    for (const strictBub of [false, true]) {
      const looksFor = (n: number): number => {
        const records = make(n);
        return countLooks(() => tapeMessages(records, { strictBub }));
      };
      const little = looksFor(100);
      expect(looksFor(400)).toBeLessThanOrEqual(4 * little + 100);
    }
  });
});
