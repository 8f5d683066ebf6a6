/** For every history that the kernel's view can build, each provider accepts the prompt and reads the same conversation in it. */
import { checkMessages, type JsonValue, type Message, type ToolSchema } from '@boxcar/kernel';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ask } from '../fixtures/requests.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { inOrder, openProviderServer, type ProviderServer } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';
import { mapToolNames } from './tool-names.js';

const NAMES = [
  'list_files',
  'tape.handoff',
  'tape__handoff',
  'a.b.c',
  '..',
  '_._',
  'x'.repeat(64),
  `a.${'y'.repeat(62)}`,
  'mcp-7__get',
];

const name = fc.constantFrom(...NAMES);
const text = fc
  .oneof(
    fc.string({ unit: 'grapheme', minLength: 1, maxLength: 40 }),
    fc.constantFrom('  padded  ', '\n', '{"json": [1]}', '<system>', 'Ünïcode 🚂', '\u2028'),
  )
  .map((value) => (/[\p{L}\p{N}\p{P}\p{S}]/u.test(value) ? value : `(${value})`))
  .filter((value) => value.isWellFormed() && !value.includes('\u0000'));
const json: fc.Arbitrary<JsonValue> = fc
  .dictionary(fc.stringMatching(/^[a-z_$ ]{1,8}$/), fc.jsonValue({ maxDepth: 2 }), { maxKeys: 3 })
  .map((value): JsonValue => JSON.parse(JSON.stringify(value)) as JsonValue)
  .filter((value) => JSON.stringify(value).isWellFormed() && !JSON.stringify(value).includes('\\u0000'));

interface Step {
  readonly content: string;
  readonly calls: readonly {
    readonly name: string;
    readonly arguments: JsonValue;
    readonly result: string;
    readonly isError: boolean;
  }[];
  readonly isReversed: boolean;
  /** The notes that follow it. */
  readonly notes: readonly string[];
}

const step: fc.Arbitrary<Step> = fc.record({
  content: fc.oneof(fc.constant(''), text),
  calls: fc.array(
    fc.record({ name, arguments: json, result: fc.oneof(text, fc.constant(' ')), isError: fc.boolean() }),
    { maxLength: 3 },
  ),
  isReversed: fc.boolean(),
  notes: fc.array(text, { maxLength: 3 }),
});

function toMessages(first: readonly string[], steps: readonly Step[]): readonly Message[] {
  const user = (content: string): Message => ({ role: 'user', content });
  const messages: Message[] = first.map(user);
  for (const [index, { content, calls, isReversed, notes }] of steps.entries()) {
    const made = calls.map((call, ordinal) => ({ ...call, id: `k${index}-${ordinal}` }));
    const results = made.map(
      (call): Message => ({
        role: 'tool',
        toolCallId: call.id,
        name: call.name,
        content: call.result,
        isError: call.isError,
      }),
    );
    if (made.length > 0) {
      const toolCalls = made.map((call) => ({ id: call.id, name: call.name, arguments: call.arguments }));
      messages.push({ role: 'assistant', content, toolCalls }, ...(isReversed ? results.reverse() : results));
    } else if (content !== '') messages.push({ role: 'assistant', content });
    messages.push(...notes.map(user));
  }
  if (messages.at(-1)?.role === 'assistant') messages.push(user('[continue]'));
  return messages;
}

/**
 * The speakers and texts in order, independent of joins that a provider's format needs: consecutive texts of one role joined, and each
 * call and result.
 */
function essence(messages: readonly Message[]): readonly string[] {
  const lines: string[] = [];
  const ids: string[] = [];
  let role = '';
  for (const message of messages) {
    // The filler that an adapter puts between results and the user, for providers that need one.
    if (message.role === 'assistant' && message.content === '[noted]') continue;
    if (message.role === 'tool') {
      // A provider may have no field for errors; then the text says it. Ids may have another form; only the call that they refer to
      // counts.
      lines.push(`result ${ids.indexOf(message.toolCallId)} ${message.name}: ${message.content}`);
      role = 'tool';
      continue;
    }
    if (message.content !== '') {
      if (message.role === role) lines.push(`${lines.pop()}\n\n${message.content}`);
      else lines.push(`${message.role}: ${message.content}`);
      role = message.role;
    }
    if (message.role !== 'assistant') continue;
    for (const call of message.toolCalls ?? []) {
      ids.push(call.id);
      lines.push(`call ${ids.length - 1} ${call.name} ${JSON.stringify(call.arguments)}`);
      role = 'call';
    }
  }
  return lines;
}

describe.each(WIRES.map((wire) => [wire.provider, wire] as const))('%s', (_name, wire) => {
  let server: ProviderServer;
  beforeAll(async () => {
    server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
  });
  afterAll(() => server[Symbol.asyncDispose]());

  it('accepts every history and reads the same in it', async () => {
    const router = routerTo(wire, server.baseUrl);
    await fc.assert(
      fc.asyncProperty(
        fc.array(text, { minLength: 1, maxLength: 3 }),
        fc.array(step, { maxLength: 5 }),
        fc.uniqueArray(name, { maxLength: 4 }),
        async (first, steps, offered) => {
          const messages = toMessages(first, steps);
          const tools = offered.map(
            (tool): ToolSchema => ({ name: tool, description: 'A tool.', parameters: { type: 'object' } }),
          );
          const request = askFor(wire, { messages, tools });
          expect(checkMessages(request.messages, tools)).toEqual([]);
          const known = server.requests.length;
          await ask(router, request);
          expect(server.refusals).toEqual([]);
          const called = messages.flatMap((message) =>
            message.role === 'assistant' ? (message.toolCalls ?? []).map((call) => call.name) : [],
          );
          const names = mapToolNames([...offered, ...called]);
          const read = (server.requests[known]?.prompt?.messages ?? []).map((message): Message => {
            if (message.role === 'tool') return { ...message, name: names.fromWire(message.name) };
            if (message.role !== 'assistant' || message.toolCalls === undefined) return message;
            const toolCalls = message.toolCalls.map((call) => ({ ...call, name: names.fromWire(call.name) }));
            return { ...message, toolCalls };
          });
          expect(essence(read)).toEqual(essence(request.messages));
        },
      ),
      { numRuns: 80 },
    );
  });
});

it('names on the wire are legal, distinct and reversible, and do not depend on their order', () => {
  const anyName = fc.oneof(
    name,
    fc.stringMatching(/^[a-zA-Z0-9_.-]{1,64}$/),
    fc.stringMatching(/^[a_.]{1,6}$/),
  );
  fc.assert(
    fc.property(fc.uniqueArray(anyName, { maxLength: 12 }), (all) => {
      const names = mapToolNames(all);
      const wireNames = all.map((one) => names.toWire(one));
      expect(new Set(wireNames).size).toBe(all.length);
      for (const wireName of wireNames) expect(wireName).toMatch(/^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$/);
      expect(wireNames.map((one) => names.fromWire(one))).toEqual(all);
      const reversed = mapToolNames([...all].reverse());
      expect(all.map((one) => reversed.toWire(one))).toEqual(wireNames);
    }),
    { numRuns: 1_000 },
  );
  expect(mapToolNames(['tape.handoff']).toWire('tape.handoff')).toBe('tape__handoff');
  expect(mapToolNames(['list_files']).toWire('list_files')).toBe('list_files');
});
