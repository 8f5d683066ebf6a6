import type { ProviderPart } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { ask, userMessage } from '../fixtures/requests.js';
import { askFor, routerTo, TOOLS } from '../testing/ask-provider.js';
import { inOrder, openProviderServer } from '../testing/provider-server.js';
import { type ServerAnswer, sealOf, type Wire } from '../testing/wire.js';
import { WIRES } from '../testing/wires.js';

const kinds = WIRES.flatMap((wire) => [true, false].map((stream) => [wire.provider, stream, wire] as const));

async function replyTo(wire: Wire, answer: ServerAnswer, stream: boolean) {
  await using server = await openProviderServer(wire, inOrder({ answer }));
  const reply = await ask(routerTo(wire, server.baseUrl), askFor(wire, { settings: { stream } }));
  expect(server.refusals).toEqual([]);
  expect(server.requests.map(({ prompt }) => prompt?.isStreaming)).toEqual([stream]);
  return reply;
}

/** The data that each provider attached to the answer below. */
const SEAL = sealOf('First I think,\nthen I look.');
const ATTACHED: Readonly<Record<Wire['provider'], readonly (readonly [kind: string, options: unknown])[]>> = {
  openai: [
    ['reasoning', { openai: { itemId: `rs_${SEAL}`, reasoningEncryptedContent: SEAL } }],
    ['text', { openai: { itemId: 'msg_1_thought' } }],
    ...['b', 'a', 'c'].map((id) => ['call', { openai: { itemId: `fc_${id}` } }] as const),
  ],
  'openai-chat': [],
  anthropic: [['reasoning', { anthropic: { signature: SEAL } }]],
  google: [['call', { google: { thoughtSignature: SEAL } }]],
  mistral: [],
  deepseek: [],
  'openai-compatible': [],
};
const optionsIn = (parts: readonly ProviderPart[]) =>
  parts.flatMap(({ kind, options }) => (options === undefined ? [] : [[kind, options]]));

describe.each(kinds)('an answer of %s, streamed: %s,', (provider, stream, wire) => {
  it('has its text, its separate reasoning, its calls in order with our names, and its cost', async () => {
    // The others do not report it.
    const written = provider === 'anthropic' ? { cacheWrite: 200 } : {};
    const usage = { input: 1000, output: 70, cached: 600, ...written, reasoning: 30 };
    const reply = await replyTo(
      wire,
      {
        text: 'Zwei Ordner – 你好.',
        reasoning: 'First I think,\nthen I look.',
        calls: [
          { id: 'b', name: 'tape__handoff', arguments: '{"name":"next"}' },
          { id: 'a', name: 'list_files', arguments: '{"path":"src"}' },
          { id: 'c', name: 'made_up', arguments: '{}' },
        ],
        usage,
      },
      stream,
    );
    const { providerParts, warnings, ...rest } = reply;
    const reasoning = 'First I think,\nthen I look.';
    const hasReasoning = provider !== 'openai-chat';
    const kindsOfParts = (providerParts ?? []).map((part) => (part.kind === 'call' ? part.id : part.kind));
    // The pieces of Mistral and Gemini are pieces of one part.
    expect(kindsOfParts.filter((kind, index) => kind !== kindsOfParts[index - 1])).toEqual([
      ...(hasReasoning ? ['reasoning'] : []),
      'text',
      ...['b', 'a', 'c'],
    ]);
    expect(optionsIn(providerParts ?? [])).toEqual(ATTACHED[provider]);
    if (provider === 'anthropic') expect(warnings?.join()).toMatch(/^maxOutputTokens is compatibility/);
    else expect(warnings).toBe(undefined);
    expect(rest).toEqual({
      text: 'Zwei Ordner – 你好.',
      ...(hasReasoning ? { reasoning } : {}),
      toolCalls: [
        { id: 'b', name: 'tape.handoff', arguments: '{"name":"next"}' },
        { id: 'a', name: 'list_files', arguments: '{"path":"src"}' },
        { id: 'c', name: 'made_up', arguments: '{}' },
      ],
      usage: {
        inputTokens: 1000,
        outputTokens: 70,
        cachedInputTokens: 600,
        // Mistral's provider does not report it.
        ...(provider === 'mistral' ? {} : { reasoningTokens: 30 }),
        ...(provider === 'anthropic' ? { cacheWriteTokens: 200 } : {}),
      },
      finishReason: 'tool_calls',
    });
  });

  it.each(['stop', 'length'] as const)('gives the reason of its end: %s', async (finish) => {
    expect(await replyTo(wire, { text: 'Well.', finish }, stream)).toMatchObject({ finishReason: finish });
  });

  it('without usage gets estimated usage that says so', async () => {
    const { usage } = await replyTo(wire, { text: 'A text of some length.', usage: null }, stream);
    expect(usage).toMatchObject({ isEstimated: true });
    expect(usage.inputTokens).toBeGreaterThan(5);
  });

  it('may be empty', async () => {
    expect(await replyTo(wire, { text: '' }, stream)).toMatchObject({ text: '', toolCalls: [] });
  });
});

/**
 * Mistral's API has this finish reason, and gateways use it when a provider fails within an answer. https://docs.mistral.ai/api/#tag/chat
 */
const broken = (wire: Wire): Wire => {
  const breakOff = (text: string): string =>
    text.replace('"finish_reason":"stop"', '"finish_reason":"error"');
  return {
    ...wire,
    events: (answer) => wire.events(answer).map(breakOff),
    whole: (answer) => JSON.parse(breakOff(JSON.stringify(wire.whole(answer)))) as unknown,
  };
};
const chats = kinds.filter(([provider]) =>
  ['openai-chat', 'mistral', 'deepseek', 'openai-compatible'].includes(provider),
);

it.each(chats)(
  '%s, streamed: %s: an answer that ends with an error is not an answer, and can be tried again',
  async (_name, stream, wire) => {
    await expect(replyTo(broken(wire), { text: 'To begin with' }, stream)).rejects.toMatchObject({
      code: 'model_unavailable',
      canRetry: true,
      usage: { inputTokens: 1234, outputTokens: 56 },
    });
  },
);

// Whole answers of Anthropic and Gemini carry arguments as objects: there is no text to keep.
const asText = kinds.filter(
  ([provider, stream]) => provider !== 'google' && (provider !== 'anthropic' || stream),
);

it.each(asText)('%s, streamed: %s: arguments arrive as the model wrote them', async (_name, stream, wire) => {
  const written = [
    '{ "path" : "src" ,"path":"lib"}',
    '{"path": "sr',
    'not json',
    '"text"',
    '[1,2]',
    '{"a":1}{"b":2}',
  ];
  const calls = written.map((text, index) => ({ id: `c${index}`, name: 'list_files', arguments: text }));
  const { toolCalls } = await replyTo(wire, { calls }, stream);
  expect(toolCalls.map((call) => call.arguments)).toEqual(written);
  const none = await replyTo(wire, { calls: [{ id: 'x', name: 'list_files', arguments: '' }] }, stream);
  expect(none.toolCalls[0]?.arguments).toBe('{}');
});

it.each(WIRES.map((wire) => [wire.provider, wire] as const))(
  '%s: a step without tools declares the tools of its history and forbids them; without such a history it declares none',
  async (_name, wire) => {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    const router = routerTo(wire, server.baseUrl);
    const history = [
      userMessage('go'),
      {
        role: 'assistant' as const,
        content: '',
        toolCalls: [{ id: 'k', name: 'tape.info', arguments: {} }],
      },
      { role: 'tool' as const, toolCallId: 'k', name: 'tape.info', content: 'ok', isError: false },
    ];
    await ask(router, askFor(wire, { tools: [], messages: history }));
    await ask(router, askFor(wire, { tools: [] }));
    await ask(router, askFor(wire, { tools: TOOLS, messages: history }));
    expect(server.refusals).toEqual([]);
    const sent = server.requests.map(({ prompt }) => [
      prompt?.toolChoice,
      prompt?.tools.map((tool) => tool.name),
    ]);
    expect(sent).toEqual([
      ['none', ['tape__info']],
      [undefined, []],
      ['auto', ['list_files', 'tape__handoff']],
    ]);
  },
);
