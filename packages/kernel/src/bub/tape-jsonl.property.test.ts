import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Card } from '../card/card.js';
import { isBlank } from '../render/render.js';
import { tapeMessages } from '../tape/messages.js';
import { type StoredEntry, toRecords } from '../tape/record.js';
import type { TapeEntry } from '../tape/tape.js';
import { imported, stored } from '../testing/tape-rows.js';
import { play } from '../testing/view-history.js';
import { historyPlan } from '../testing/view-plan.js';
import { OTHER, READER, TestTape } from '../testing/view-rows.js';
import { checkMessages } from '../view/check-messages.js';
import { buildView } from '../view/view.js';
import { formatTapeLines } from './tape-jsonl.js';

const numRuns = 60;

const text = fc.string({ unit: fc.constantFrom('a', 'é', '"', '\\', '\n', '\u0000', '\ud800', ' ', '😀') });
const id = fc.option(fc.constantFrom('c1', 'c2', 'c3', ''), { nil: undefined });
const call = fc.oneof(
  fc.record({
    id,
    function: fc.record({ name: fc.constantFrom('read', '', 'no such tool', 'é'), arguments: text }),
  }),
  fc.jsonValue(),
);
const name = fc.constantFrom('session/start', 'phase/1', '', 'ü');
const state = fc.option(fc.dictionary(text, fc.jsonValue()), { nil: undefined });
const body = fc.oneof(
  fc.record({
    kind: fc.constant('message'),
    payload: fc.record({
      role: fc.constantFrom('user', 'assistant', 'system', 'tool', 'odd'),
      content: fc.oneof(text, fc.jsonValue()),
    }),
  }),
  fc.record({ kind: fc.constant('anchor'), payload: fc.record({ name, state }) }),
  fc.record({
    kind: fc.constant('event'),
    payload: fc.record({
      name: fc.constantFrom('handoff', 'turn.started', 'loop.step'),
      data: fc.option(fc.record({ name, state }), { nil: undefined }),
    }),
  }),
  fc.record({
    kind: fc.constant('tool_call'),
    payload: fc.record({ calls: fc.array(call, { maxLength: 3 }) }),
  }),
  fc.record({
    kind: fc.constant('tool_result'),
    payload: fc.record({ results: fc.array(fc.oneof(text, fc.jsonValue()), { maxLength: 3 }) }),
    meta: fc.record({ tool_call_ids: fc.array(id) }),
  }),
  fc.record({
    kind: fc.constantFrom('system', 'error', 'note', 'tool_call'),
    payload: fc.dictionary(text, fc.jsonValue()),
  }),
);
const date = fc.constantFrom(
  {},
  { timestamp: 1771675200.25 },
  { date: '2026-02-21T12:00:00' },
  { date: '2026-02-21' },
);
const lines = fc
  .array(fc.tuple(fc.integer({ min: -1, max: 9 }), body, date), { maxLength: 12 })
  .map((all) =>
    all.map(([at, entry, when]) => `${JSON.stringify({ id: at, meta: {}, ...entry, ...when })}\n`).join(''),
  );

/** The entries of an agent at the time of its last prompt. */
const written = historyPlan.map((plan) => play(plan).prompts.at(-1)?.entries ?? []);

const renumber = (entries: readonly StoredEntry[]): readonly StoredEntry[] =>
  entries.map((entry, index) => ({ ...entry, position: index + 1 }));

test('a tape that is exported, imported and exported again gives the same text and the same messages', () => {
  fc.assert(
    fc.property(lines, written, lines, (before, own, behind) => {
      const tape = renumber([...imported(before), ...own.map((entry) => stored(entry)), ...imported(behind)]);
      const file = formatTapeLines(tape);
      const copy = imported(file);
      expect(formatTapeLines(copy)).toBe(file);
      const messagesOf = (of: readonly StoredEntry[], strictBub: boolean) =>
        tapeMessages(toRecords(of), { strictBub });
      expect(messagesOf(copy, true)).toEqual(messagesOf(tape, true));
      // A step's message without words is not shown, but an imported line stays unchanged.
      const withWords = (of: readonly StoredEntry[]) =>
        messagesOf(of, false).filter(
          ({ role, content, tool_calls: calls }) =>
            role !== 'assistant' || calls !== undefined || typeof content !== 'string' || !isBlank(content),
        );
      expect(withWords(copy)).toEqual(withWords(tape));
    }),
    { numRuns },
  );
});

const by = (card: Card | null, authorId: string): Card | null =>
  card === null ? null : { ...card, authorId };

test('imported lines of any kind and any author leave the prompt of a turn valid', () => {
  fc.assert(
    fc.property(lines, lines, fc.constantFrom(READER, OTHER), (before, behind, author) => {
      const tape = new TestTape();
      const append = (file: string): void => {
        for (const { kind, card, payload, anchorName } of imported(file)) {
          const at = tape.entries.length;
          const entry: Omit<TapeEntry, 'position'> = {
            kind,
            card: by(card, author),
            payload,
            anchorName,
            turnId: null,
            step: null,
          };
          tape.entries.push({ ...entry, position: (tape.entries[at - 1]?.position ?? 2) + 1 });
        }
      };
      append(before);
      const rest = new TestTape();
      rest.begin(1, []);
      const [begun] = rest.entries;
      if (begun !== undefined)
        tape.entries.push({ ...begun, position: (tape.entries.at(-1)?.position ?? 2) + 1 });
      append(behind);
      const lastAnchorPosition = tape.entries.findLast(({ kind }) => kind === 'anchor')?.position ?? 1;
      const rows = {
        ...rest.rows(),
        entries: tape.entries.filter(({ position }) => position >= lastAnchorPosition),
        lastAnchorPosition,
      };
      expect(checkMessages(buildView(rows).messages, [])).toEqual([]);
    }),
    { numRuns },
  );
});

describe('a line that the original program wrote or would read is exported again byte for byte', () => {
  const message = '"kind": "message", "payload": {"role": "user", "content": "x"}, "meta": {}';
  test.each<[string, string]>([
    [
      'with a value that is not a number',
      '{"id": 1, "kind": "anchor", "payload": {"name": "a", "state": {"loss": NaN, "max": [Infinity, -Infinity]}}, "meta": {"run": NaN}}',
    ],
    ['after a byte order mark', `\uFEFF{"id": 1, ${message}}`],
    ['with line ends of Windows', `{"id": 1, ${message}}\r`],
    ['with equal keys', `{"id": 1, "id": 2, ${message}, "kind": "message"}`],
    ['with digits beyond a double', `{"id": 1, ${message}, "n": 12345678901234567890.10, "e": 1E400}`],
    ['with a date without an offset', `{"id": 1, ${message}, "date": "2026-02-21 12:00:00.5"}`],
    ['of the first year', `{"id": 1, ${message}, "date": "0001-01-01T00:00:00+00:00"}`],
    ['without a date', `{"id": 1, ${message}, "date": null, "timestamp": NaN}`],
    ['without meta', '{"id":1,"kind":"message","payload":{"role":"user"}}'],
    ['with an id of null', `{"id": 0, ${message}}`],
  ])('%s', (_what, line) => {
    const file = `${line}\n`;
    expect(formatTapeLines(imported(file))).toBe(file);
  });

  test('a line is shown as the original program shows it', () => {
    const line =
      '{"id": 1, "kind": "anchor", "payload": {"name": "a", "state": {"n": NaN, "m": 1, "n": -Infinity}}, "meta": {}}';
    expect(tapeMessages(toRecords(imported(line)), { strictBub: true })).toEqual([
      { role: 'assistant', content: '[Anchor created: a]: {"n": -Infinity, "m": 1}' },
    ]);
  });
});

test('reading a file of any length does not keep the ids of answered calls in memory', () => {
  const pair = [
    '{"id": 1, "kind": "tool_call", "payload": {"calls": [{"id": "c1"}]}, "meta": {}}',
    '{"id": 2, "kind": "tool_result", "payload": {"results": ["one"]}, "meta": {}}',
    '{"id": 3, "kind": "tool_result", "payload": {"results": ["two"]}, "meta": {"tool_call_ids": ["c1"]}}',
  ].join('\n');
  const ids = imported(pair).flatMap(({ card }) =>
    card?.content.kind === 'tool_result' ? [card.content.tool_call_id] : [],
  );
  expect(ids).toEqual(['k1', 'k2']);
});
