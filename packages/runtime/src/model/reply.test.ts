import type { Model, ModelReply } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import {
  anthropicWire,
  chatWire,
  geminiWire,
  inOrder,
  openaiChatWire,
  openProviderServer,
  responsesWire,
} from '@boxcar/llm/testing';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { harness } from '../testing/harness.js';
import { providerStage, THINKING_MODELS } from '../testing/provider-stage.js';
import { attachmentOf, parseReply, reasoningMetadata, usageRow } from './reply.js';

describe('the reply of an adapter', () => {
  test('keeps valid numbers of its usage, and drops others', () => {
    const usage = {
      inputTokens: 10,
      outputTokens: 5,
      cachedInputTokens: 4,
      cacheWriteTokens: -1,
      reasoningTokens: '3',
      isEstimated: true,
    };
    const reply = parseReply({ text: '', toolCalls: [], finishReason: 'x', usage, reasoning: 7 });
    expect(reply).toMatchObject({ finishReason: 'other', reasoning: undefined });
    expect(usageRow(reply.usage)).toEqual({
      input_tokens: 10,
      output_tokens: 5,
      cached_input_tokens: 4,
      estimated: true,
    });
    expect(usageRow(parseReply({ text: '', toolCalls: [] }).usage)).toEqual({
      input_tokens: 0,
      output_tokens: 0,
    });
  });

  test('has whole token counts within the range of the database column', () => {
    const usage = { inputTokens: 10.5, outputTokens: 1e300, reasoningTokens: 0.2 };
    const reply = parseReply({ text: '', toolCalls: [], usage });
    expect(reply.usage).toEqual({ inputTokens: 11, outputTokens: 1e12, reasoningTokens: 1 });
  });

  test('has reasoning that every column can store, cut when it is endless', () => {
    expect(reasoningMetadata({})).toEqual({});
    expect(reasoningMetadata({ reasoning: ' \n' })).toEqual({});
    expect(reasoningMetadata({ reasoning: 'a\u0000b' })).toEqual({ reasoning: 'a\uFFFDb' });
    const { reasoning, reasoning_cut } = reasoningMetadata({ reasoning: `${'x'.repeat(65_535)}\u{1F600}` });
    expect([String(reasoning).length, reasoning_cut]).toEqual([65_536, true]);
    expect(String(reasoning).isWellFormed()).toBe(true);
  });
});

test('keeps the attached data of a provider unchanged, unless the data has another form or is too large', () => {
  const parts = [
    { kind: 'reasoning', text: 'a\u0000b', options: { x: { signature: 's' } } },
    { kind: 'call', id: 'c' },
  ];
  const parse = (providerParts: unknown) => parseReply({ text: '', toolCalls: [], providerParts });
  expect(attachmentOf(parse(parts), 'm:1')).toEqual({
    providerData: {
      v: 1,
      model: 'm:1',
      parts: [{ ...parts[0], text: 'a\uFFFDb' }, parts[1]],
    },
  });
  for (const other of [undefined, [], 'x', [{ kind: 'else' }], [{ kind: 'call', id: 7 }]])
    expect(attachmentOf(parse(other), 'm:1')).toEqual({});
  const { metadata, providerData } = attachmentOf(
    parse([{ kind: 'reasoning', text: 'x'.repeat(1024 * 1024) }]),
    'm:1',
  );
  expect(providerData).toBe(undefined);
  expect(metadata?.provider_data_dropped).toBeGreaterThan(1024 * 1024);
});

test('the reasoning of a step is stored with its cards, and is in no later prompt', async () => {
  const secret = 'I reason in secret';
  const usage = { inputTokens: 9, outputTokens: 7, cachedInputTokens: 3, reasoningTokens: 2 };
  const prompts: string[] = [];
  const model: Model = {
    generate: async ({ messages, turn }): Promise<ModelReply> => {
      prompts.push(JSON.stringify(messages));
      const calls = [{ id: 'a', name: 'look', arguments: '{}' }];
      return {
        text: turn.step === 1 ? '' : 'done',
        reasoning: `${secret} ${turn.step}`,
        toolCalls: turn.step === 1 ? calls : [],
        usage,
        finishReason: turn.step === 1 ? 'tool_calls' : 'stop',
      };
    },
  };
  await using h = await harness({ model });
  await h.worker();
  await h.profile('thinker', []);
  const start = async () => {
    const receipt = await h.runtime.submit('launch_principal', {
      profile_name: 'thinker',
      instruction: 'go',
      wait: true,
    });
    expect(receipt).toMatchObject({ status: 'success', result: 'done' });
  };
  await start();
  expect(prompts).toHaveLength(2);
  expect(prompts.join()).not.toContain(secret);
  const cards = await h.rows<{ type: string; reasoning: string }>(
    `select type, metadata->>'reasoning' as reasoning from boxcar.cards where metadata ? 'reasoning' order by id`,
  );
  expect(cards).toEqual([
    { type: 'tool.call', reasoning: `${secret} 1` },
    { type: 'task.deliverable', reasoning: `${secret} 2` },
  ]);
  const steps = await h.rows('select usage from boxcar.steps order by step');
  const row = { input_tokens: 9, output_tokens: 7, cached_input_tokens: 3, reasoning_tokens: 2 };
  expect(steps).toEqual([{ usage: row }, { usage: row }]);
});

describe('an answer without text ends the turn at once with its cause:', () => {
  test.each([
    [
      'its limit went into reasoning',
      { finish: 'length', reasoning: 'and on and on', usage: { input: 9, output: 4096, reasoning: 4096 } },
      'answer_cut',
      /whole limit of 4096 tokens for reasoning/,
    ],
    ['its limit was too small', { text: ' ', finish: 'length' }, 'answer_cut', /whole limit of 56 tokens/],
    [
      'its limit was too small without any reasoning',
      { finish: 'length', usage: { input: 9, output: 56, reasoning: 0 } },
      'answer_cut',
      /whole limit of 56 tokens before its first word/,
    ],
    ['the filter stopped it', { finish: 'content_filter' }, 'model_refused', /by its filter/],
    [
      'the model refused',
      { refusal: 'I must not.', finish: 'stop' },
      'model_refused',
      /refused to answer: I must not\./,
    ],
  ] as const)('%s', async (_name, answer, code, message) => {
    await using stage = await providerStage(chatWire, { behave: inOrder({ answer }) });
    await stage.profile('thinker', 'openai-compatible:local');
    const turnId = await stage.play('thinker');
    const end = await stage.h.runtime.getTurn(turnId);
    expect(end).toMatchObject({ status: 'failed', error: { code } });
    expect(end.error?.message).toMatch(message);
    expect(stage.server.requests).toHaveLength(1);
  });
});

test.each([chatWire, anthropicWire, responsesWire].map((wire) => [wire.provider, wire] as const))(
  '%s: a call that was cut off before its arguments is not made; the calls before it are made',
  async (provider, wire) => {
    const calls = ['first', 'second'].map((id) => ({ id, name: 'remove', arguments: '' }));
    await using stage = await providerStage(wire, {
      behave: inOrder(
        { answer: { text: 'I remove it.', calls, finish: 'length' } },
        { answer: { text: 'done' } },
      ),
    });
    const made: unknown[] = [];
    stage.h.runtime.registerTool({
      name: 'remove',
      description: 'Removes what is named, or all.',
      input: z.object({ only: z.string().optional() }),
      run: (given) => {
        made.push(given);
        return 'removed';
      },
    });
    await stage.profile('thinker', THINKING_MODELS[provider], { tools: ['remove'] });
    const turnId = await stage.play('thinker');
    expect(made).toEqual([{}]);
    expect(await stage.h.runtime.getTurn(turnId)).toMatchObject({ status: 'success', result: 'done' });
    expect(stage.sent(1)).toContain('The arguments are not a JSON object');
    expect(stage.server.refusals).toEqual([]);
  },
);

test('an output limit that exceeds the model’s limit is reported in the step', async () => {
  await using stage = await providerStage(openaiChatWire, { behave: inOrder({ answer: { text: 'done' } }) });
  const steps = () =>
    stage.h.rows<{ warnings: string[] | null }>(
      "select usage->'warnings' as warnings from boxcar.steps order by opened_at",
    );
  await stage.profile('thinker', 'openai-chat:gpt-4.1', { model_settings: { max_output_tokens: 100_000 } });
  await stage.play('thinker');
  expect(stage.sent(0)).toContain('"max_tokens":32768');
  expect(await steps()).toEqual([
    { warnings: ['max_output_tokens 100000 is sent as 32768: the model writes no more'] },
  ]);
  await stage.profile('thinker', 'openai-chat:gpt-4.1', { model_settings: { max_output_tokens: 32_768 } });
  await stage.play('thinker');
  expect((await steps())[1]).toEqual({ warnings: null });
});

test('a setting that is not sent as it is written is reported in the step', async () => {
  await using stage = await providerStage(responsesWire, { behave: inOrder({ answer: { text: 'done' } }) });
  await stage.profile('thinker', 'openai:gpt-5', { model_settings: { temperature: 0.5 } });
  await stage.play('thinker');
  expect(stage.sent(0)).not.toContain('temperature');
  const steps = await stage.h.rows<{ warnings: string[] }>(
    "select usage->'warnings' as warnings from boxcar.steps",
  );
  expect(steps[0]?.warnings).toEqual([expect.stringMatching(/^temperature is unsupported/)]);
});

test('a setting that will not be sent as it is written is reported when the profile is applied', async () => {
  await using h = await harness();
  const apply = async (model: string, model_settings: object, limits: object = {}) =>
    (await h.runtime.applyProfile({ name: 'x', instructions: 'x', model, model_settings, limits })).findings;
  expect(await apply('openai:gpt-5', { temperature: 0.5, max_output_tokens: 500_000 })).toEqual([
    {
      setting: 'max_output_tokens',
      sent: 128_000,
      message: 'max_output_tokens 500000 is sent as 128000: the model writes no more',
    },
    {
      setting: 'temperature',
      sent: null,
      message: 'temperature 0.5 is not sent: temperature is not supported for reasoning models',
    },
  ]);
  expect(
    await apply('openai-compatible:x', { max_output_tokens: 20_000 }, { context_tokens: 32_000 }),
  ).toMatchObject([
    { sent: 16_000, message: expect.stringMatching(/is sent as 16000: that is half of its window of 32000/) },
  ]);
  expect(await apply('openai:gpt-4.1', { temperature: 0.5, max_output_tokens: 500 })).toBeUndefined();
  expect(await apply('openai:gpt-5', {})).toBeUndefined();
});

test('a part of a tool’s schema that the model is not shown is reported when the profile is applied; the turn continues', async () => {
  const call = { id: 'abcdefgh1', name: 'odd', arguments: '{"at":"x"}' };
  await using stage = await providerStage(geminiWire, {
    behave: inOrder({ answer: { calls: [call] } }, { answer: { text: 'done' } }),
  });
  const odd = {
    name: 'odd',
    description: 'Odd.',
    target: 'odd',
    parameters: { type: 'object', properties: { at: {}, list: { type: 'array' } } },
  };
  const profile = {
    name: 'thinker',
    instructions: 'You think.',
    model: 'google:gemini-3-pro',
    tools: [odd, 'look'],
  };
  const { findings } = await stage.h.runtime.applyProfile(profile);
  expect(findings).toEqual([
    { tool: 'odd', message: '#/at has no type: it is offered as text' },
    { tool: 'odd', message: '#/list/items has no type: it is offered as text' },
  ]);
  const turnId = await stage.play('thinker');
  expect(stage.server.refusals).toEqual([]);
  expect(await stage.h.runtime.getTurn(turnId)).toMatchObject({ status: 'success' });
});

describe('a failed call of a provider ends the turn with its code:', () => {
  test.each([
    ['the key is missing', { status: 401, error: { message: 'no' } }, 'failed', 'model_unauthorized'],
    [
      'there were too many calls',
      { status: 429, error: { message: 'slow' } },
      'failed',
      'model_rate_limited',
    ],
    [
      'the provider is overloaded',
      { status: 503, error: { message: 'busy' } },
      'failed',
      'model_unavailable',
    ],
    [
      'the provider is silent',
      { answer: { text: 'x' }, frames: 2, after: 'hang' },
      'timeout',
      'model_timeout',
    ],
  ] as const)('%s', async (_name, behaviour, status, code) => {
    await using server = await openProviderServer(chatWire, inOrder(behaviour), { key: null });
    const providers = { openaiCompatible: { baseUrl: server.baseUrl }, idleTimeoutMs: 200 };
    await using h = await harness({ model: createModelRouter({ providers }) });
    await h.worker();
    await h.profile('expert', [], {
      model: 'openai-compatible:local',
      script: undefined,
      limits: { model_retries: 0 },
    });
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'expert',
      instruction: 'go',
    })) as { turn_id: string };
    const end = await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    expect(end).toMatchObject({ status, error: { code, details: { model: 'openai-compatible:local' } } });
    const events = await h.rows(`select status from boxcar.turns`);
    expect(events).toEqual([{ status }]);
  });
});
