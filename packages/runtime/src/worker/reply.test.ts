import type { Model, ModelReply } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { chatWire, inOrder, openProviderServer } from '@boxcar/llm/testing';
import { describe, expect, test } from 'vitest';
import { harness } from '../testing/harness.js';
import { parseReply, reasoningMetadata, usageRow } from './reply.js';

describe('what an adapter returned', () => {
  test('keeps the figures it gave, and none that are no numbers', () => {
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

  test('has used whole tokens, as many as the column of a turn can hold', () => {
    const usage = { inputTokens: 10.5, outputTokens: 1e300, reasoningTokens: 0.2 };
    const reply = parseReply({ text: '', toolCalls: [], usage });
    expect(reply.usage).toEqual({ inputTokens: 11, outputTokens: 1e12, reasoningTokens: 1 });
  });

  test('has reasoning that every column can hold, cut where it is endless', () => {
    expect(reasoningMetadata({})).toEqual({});
    expect(reasoningMetadata({ reasoning: ' \n' })).toEqual({});
    expect(reasoningMetadata({ reasoning: 'a\u0000b' })).toEqual({ reasoning: 'a\uFFFDb' });
    const { reasoning, reasoning_cut } = reasoningMetadata({ reasoning: `${'x'.repeat(65_535)}\u{1F600}` });
    expect([String(reasoning).length, reasoning_cut]).toEqual([65_536, true]);
    expect(String(reasoning).isWellFormed()).toBe(true);
  });
});

test('the reasoning of a step is kept with its cards, and no later prompt holds it', async () => {
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
    { type: 'agent.thought', reasoning: `${secret} 1` },
    { type: 'task.deliverable', reasoning: `${secret} 2` },
  ]);
  const steps = await h.rows('select usage from boxcar.steps order by step');
  const row = { input_tokens: 9, output_tokens: 7, cached_input_tokens: 3, reasoning_tokens: 2 };
  expect(steps).toEqual([{ usage: row }, { usage: row }]);
});

describe('a failed call of a provider ends the turn with its code:', () => {
  test.each([
    ['no key', { status: 401, error: { message: 'no' } }, 'failed', 'model_unauthorized'],
    ['too many calls', { status: 429, error: { message: 'slow' } }, 'failed', 'model_rate_limited'],
    ['a bad moment', { status: 503, error: { message: 'busy' } }, 'failed', 'model_unavailable'],
    ['silence', { answer: { text: 'x' }, frames: 2, after: 'hang' }, 'timeout', 'model_timeout'],
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
