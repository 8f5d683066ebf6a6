import { ModelError, type ModelUsage } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { ask } from '../fixtures/requests.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { type Behaviour, inOrder, openProviderServer } from '../testing/provider-server.js';
import type { Wire } from '../testing/wire.js';
import { WIRES } from '../testing/wires.js';

interface Failed {
  readonly usage: ModelUsage | undefined;
  readonly code: string;
  /** One token for every four bytes that were sent. */
  readonly sentTokens: number;
}

/** A parameter schema that is longer than all messages together. */
const LONG_TOOL = {
  name: 'survey',
  description: 'Surveys.'.repeat(200),
  parameters: {
    type: 'object',
    properties: { path: { type: 'string', description: 'Where. '.repeat(900) } },
  },
} as const;

async function failOf(
  wire: Wire,
  behaviour: Behaviour,
  settings: { stream?: boolean } = {},
): Promise<Failed> {
  await using server = await openProviderServer(wire, inOrder(behaviour));
  const request = askFor(wire, { tools: [LONG_TOOL], settings });
  const error = await ask(routerTo(wire, server.baseUrl), request).then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!(error instanceof ModelError)) throw new Error(`it has not failed: ${String(error)}`);
  const [sent] = server.requests;
  const sentTokens = sent === undefined ? 0 : Buffer.byteLength(JSON.stringify(sent.body)) / 4;
  return { usage: error.usage, code: error.code, sentTokens };
}

const LONG = 'All of it. '.repeat(10_000);

describe.each(WIRES.map((wire) => [wire.provider, wire] as const))('a failed call of %s', (_, wire) => {
  it('whose stream is cut is charged with the received bytes and everything that was sent, including tool schemas', async () => {
    const failed = await failOf(wire, { answer: { text: LONG, usage: null }, frames: 6, after: 'destroy' });
    expect(failed.code).toBe('model_unavailable');
    expect(failed.sentTokens).toBeGreaterThan(1_500);
    expect(failed.usage?.isEstimated).toBe(true);
    // Anthropic reports the size of the prompt at the start of a stream.
    if (wire.provider !== 'anthropic')
      expect(Math.abs((failed.usage?.inputTokens ?? 0) - failed.sentTokens)).toBeLessThan(10);
    // At least one of three pieces, at most all three.
    expect(failed.usage?.outputTokens).toBeGreaterThanOrEqual(LONG.length / 12);
    expect(failed.usage?.outputTokens).toBeLessThanOrEqual(LONG.length / 4 + 10);
  });

  it('that breaks off with an error is charged in the same way', async () => {
    const error = { message: 'overloaded', type: 'server_error' };
    const failed = await failOf(wire, { answer: { text: LONG, usage: null }, frames: 6, after: { error } });
    expect(failed.usage?.outputTokens).toBeGreaterThanOrEqual(LONG.length / 12);
    expect(failed.usage?.isEstimated).toBe(true);
  });

  it('whose connection breaks before any answer is charged with what was sent', async () => {
    const failed = await failOf(wire, { drop: true });
    expect(failed.usage).toMatchObject({ outputTokens: 0, isEstimated: true });
    expect(Math.abs((failed.usage?.inputTokens ?? 0) - failed.sentTokens)).toBeLessThan(10);
  });

  it('whose complete answer is broken is charged with its bytes', async () => {
    const body = `{"half": "${'x'.repeat(4_000)}`;
    const headers = { 'content-type': 'application/json' };
    const failed = await failOf(wire, { status: 200, body, headers }, { stream: false });
    expect(failed.usage).toMatchObject({ isEstimated: true });
    expect(failed.usage?.outputTokens).toBeGreaterThanOrEqual(1_000);
  });

  it('that the provider refused costs nothing', async () => {
    for (const status of [400, 429, 503])
      expect((await failOf(wire, { status, error: { message: 'no' } })).usage).toBeUndefined();
  });

  it('that reached no provider costs nothing', async () => {
    const gone = await openProviderServer(wire, inOrder({ hang: true }));
    await gone[Symbol.asyncDispose]();
    const error = await ask(routerTo(wire, gone.baseUrl), askFor(wire)).catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'model_unavailable', usage: undefined });
  });

  it('is charged with the usage that the provider gives with its error', async () => {
    const usage = { input_tokens: 70_000, prompt_tokens: 70_000, output_tokens: 11, completion_tokens: 11 };
    const failed = await failOf(wire, {
      status: 500,
      body: JSON.stringify({ error: { message: 'it broke' }, usage }),
      headers: { 'content-type': 'application/json' },
    });
    expect(failed.usage).toEqual({ inputTokens: 70_000, outputTokens: 11 });
  });
});

it.each(
  WIRES.filter(({ provider }) => ['anthropic', 'google'].includes(provider)).map(
    (wire) => [wire.provider, wire] as const,
  ),
)(
  'a stream of %s that is cut is charged with the usage that the provider reported at its beginning',
  async (_, wire) => {
    for (const after of ['destroy', { error: { message: 'overloaded', type: 'server_error' } }] as const) {
      const usage = { input: 90_000, output: 20_000, cached: 80_000 };
      const failed = await failOf(wire, { answer: { text: LONG, usage }, frames: 6, after });
      expect(failed.usage).toMatchObject({ inputTokens: 90_000, isEstimated: true });
      expect(failed.usage?.outputTokens).toBeGreaterThanOrEqual(LONG.length / 12);
      expect(failed.usage?.outputTokens).toBeLessThan(LONG.length / 4 + 10);
      if (wire.provider === 'anthropic') expect(failed.usage?.cachedInputTokens).toBe(80_000);
    }
  },
);

// Mistral has no error code for it.
it.each(WIRES.filter(({ provider }) => provider !== 'mistral').map((wire) => [wire.provider, wire] as const))(
  'a call of %s that the filter stopped is charged with the usage that the provider reported',
  async (_, wire) => {
    const failed = await failOf(wire, {
      answer: { text: '', finish: 'content_filter', usage: { input: 90_000, output: 3 } },
    });
    expect(failed).toMatchObject({
      code: 'model_refused',
      usage: { inputTokens: 90_000, outputTokens: 3 },
    });
    expect(failed.usage?.isEstimated).toBeUndefined();
  },
);

/** The providers whose API has a separate place for the text of a refusal. */
const refusing = WIRES.filter(({ provider }) =>
  ['openai', 'openai-chat', 'deepseek', 'openai-compatible'].includes(provider),
).flatMap((wire) => [true, false].map((stream) => [wire.provider, stream, wire] as const));

it.each(refusing)(
  'a call of %s, streamed: %s, that the model refused is charged with the reported usage, else with its text',
  async (_, stream, wire) => {
    const refusal = 'I cannot help with that. '.repeat(40);
    const answer = { refusal, finish: 'stop' } as const;
    const told = await failOf(
      wire,
      { answer: { ...answer, usage: { input: 90_000, output: 3 } } },
      { stream },
    );
    expect(told).toMatchObject({ code: 'model_refused', usage: { inputTokens: 90_000, outputTokens: 3 } });
    const untold = await failOf(wire, { answer: { ...answer, usage: null } }, { stream });
    expect(untold.usage).toMatchObject({ outputTokens: refusal.length / 4, isEstimated: true });
    expect(Math.abs((untold.usage?.inputTokens ?? 0) - untold.sentTokens)).toBeLessThan(10);
  },
);

/** Every way for a stream to end within the refusal: the text that arrived is charged. */
it.each(refusing.filter(([, stream]) => stream))(
  'a call of %s, streamed: %s, whose refusal breaks off is charged with the received text',
  async (_, stream, wire) => {
    const refusal = 'I cannot help with that. '.repeat(4_000);
    const error = { message: 'overloaded', type: 'server_error' };
    for (const after of ['destroy', 'end', { error }] as const) {
      const failed = await failOf(
        wire,
        // After the first piece of the refusal, before its end.
        {
          answer: { refusal, finish: 'stop', usage: null },
          frames: wire.provider === 'openai' ? 6 : 3,
          after,
        },
        { stream },
      );
      expect(failed.code).toBe('model_unavailable');
      expect(failed.usage?.isEstimated).toBe(true);
      expect(failed.usage?.outputTokens).toBeGreaterThanOrEqual(Math.floor(refusal.length / 12));
      expect(failed.usage?.outputTokens).toBeLessThanOrEqual(refusal.length / 4 + 10);
    }
  },
);

it('usage in the form of Gemini is also read with an error', async () => {
  const wire = WIRES.find(({ provider }) => provider === 'google');
  if (wire === undefined) throw new Error('no such wire');
  const usageMetadata = { promptTokenCount: 70_000, candidatesTokenCount: 11, thoughtsTokenCount: 5 };
  const failed = await failOf(wire, {
    status: 500,
    body: JSON.stringify({ error: { message: 'it broke' }, usageMetadata }),
    headers: { 'content-type': 'application/json' },
  });
  expect(failed.usage).toEqual({ inputTokens: 70_000, outputTokens: 16 });
});

it('an answer without usage is estimated from everything that was sent', async () => {
  for (const wire of WIRES) {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.', usage: null } }));
    const { usage } = await ask(routerTo(wire, server.baseUrl), askFor(wire, { tools: [LONG_TOOL] }));
    expect(usage.isEstimated).toBe(true);
    expect(usage.inputTokens, wire.provider).toBeGreaterThan(1_500);
  }
});
