/** The findings about settings when a profile is applied agree with the requests that a call then sends. */
import { answerTokensOf, type ModelRequest } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { ask } from '../fixtures/requests.js';
import { createModelRouter } from '../router.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { inOrder, openProviderServer } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';

const SETTINGS: readonly ModelRequest['settings'][] = [
  { temperature: 0, max_output_tokens: 700 },
  { temperature: 1.7, max_output_tokens: 50_000 },
  { temperature: 0.5, max_output_tokens: 500_000, stream: false },
];

/** Models that accept different settings, and one unknown model. */
const MODELS: Readonly<Record<string, readonly string[]>> = {
  openai: ['gpt-4.1', 'gpt-5', 'o3'],
  'openai-chat': ['gpt-4.1', 'gpt-5', 'o3', 'gpt-4o-search-preview'],
  anthropic: ['claude-3-haiku-20240307', 'claude-sonnet-4-5', 'claude-opus-4-7'],
  google: ['gemini-3-pro'],
  mistral: ['magistral-medium'],
  deepseek: ['deepseek-chat', 'deepseek-reasoner'],
};

/** The two settings in a request body, wherever the API has them. */
function settingsIn(body: unknown) {
  const text = JSON.stringify(body);
  const numberOf = (name: RegExp): number | null => {
    const [, value] = name.exec(text) ?? [];
    return value === undefined ? null : Number(value);
  };
  return {
    temperature: numberOf(/"temperature":([\d.]+)/),
    max_output_tokens: numberOf(/"(?:max_(?:output_|completion_)?tokens|maxOutputTokens)":(\d+)/),
  };
}

describe.each(WIRES.map((wire) => [wire.provider, wire] as const))(
  'checkSettings for %s',
  (provider, wire) => {
    const models = [...(MODELS[provider] ?? []), 'model-1'];
    it.each(models)('reports what is sent to %s', async (name) => {
      await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
      const router = routerTo(wire, server.baseUrl);
      for (const settings of SETTINGS) {
        const request = askFor(wire, { model: name, settings });
        const findings = await router.checkSettings?.(request.model, settings);
        const asked = server.requests.length;
        const reply = await ask(router, request);
        // The check itself sent no request.
        expect(server.requests).toHaveLength(asked + 1);
        const sent = settingsIn(server.requests.at(-1)?.body);
        const told = Object.fromEntries((findings ?? []).map((finding) => [finding.setting, finding.sent]));
        const { temperature, max_output_tokens } = settings;
        expect({ temperature, max_output_tokens, ...told }).toEqual(sent);
        // The step reports the finding too.
        expect((reply.warnings ?? []).length > 0).toBe((findings ?? []).length > 0);
      }
    });
  },
);

describe('without a key and without an address', () => {
  const check = (model: string, settings: ModelRequest['settings']) =>
    createModelRouter().checkSettings?.(model, settings);

  it.each([
    ['openai:gpt-5', 'temperature 1.7 is not sent: temperature is not supported for reasoning models'],
    ['openai-chat:o3', 'temperature 1.7 is not sent: temperature is not supported for reasoning models'],
    ['mistral:m', 'temperature 1.7 is sent as 1.5: 1.7 exceeds mistral maximum of 1.5. clamped to 1.5'],
    [
      'anthropic:claude-sonnet-4-5',
      'temperature 1.7 is sent as 1: 1.7 exceeds anthropic maximum of 1.0. clamped to 1.0',
    ],
  ])('the finding says what is sent to %s', async (model, message) => {
    const findings = await check(model, { temperature: 1.7, max_output_tokens: 700 });
    expect(findings?.map((finding) => finding.message)).toEqual([message]);
  });

  it.each(['openai:gpt-4.1', 'google:gemini-3-pro', 'deepseek:m', 'openai-compatible:m'])(
    'nothing is reported for %s',
    async (model) => expect(await check(model, { temperature: 1.7, max_output_tokens: 700 })).toEqual([]),
  );

  it.each(['scripted', 'unknown:m', 'openai:'])(
    'nothing is reported for %s, which calls no provider',
    async (model) => expect(await check(model, { temperature: 1.7 })).toEqual([]),
  );
});

it.each(
  [
    ['claude-3-haiku-20240307', 'claude-3-5-haiku-latest', 'claude-3-7-sonnet-20250219'],
    ['claude-opus-4-0', 'claude-opus-4-20250514', 'claude-opus-4-1', 'claude-opus-4-5', 'claude-opus-4-7'],
    ['claude-sonnet-4-0', 'claude-sonnet-4-20250514', 'claude-sonnet-4-5-20250929', 'claude-sonnet-4-6'],
    ['claude-haiku-4-5', 'claude-sonnet-5', 'claude-opus-5', 'claude-fable-5'],
  ].flat(),
)('the output limit that is reserved for %s is the limit that is sent', async (name) => {
  const model = `anthropic:${name}`;
  const asked = {
    model,
    limits: { context_tokens: 2_000_000 },
    model_settings: { max_output_tokens: 900_000 },
  };
  const settings = { max_output_tokens: answerTokensOf(asked) };
  expect(settings.max_output_tokens).toBeLessThan(900_000);
  expect(await createModelRouter().checkSettings?.(model, settings)).toEqual([]);
});
