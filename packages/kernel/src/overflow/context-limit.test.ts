import { describe, expect, test } from 'vitest';
import { parseProfile } from '../profile/profile.js';
import { answerTokensOf, contextLimitsOf, toldLimitOf } from './context-limit.js';

const profile = (model: string, rest: Record<string, unknown> = {}) =>
  parseProfile({ name: 'p', instructions: '', model, ...rest });

describe('the limit of a model’s prompt', () => {
  test.each([
    ['anthropic:claude-sonnet-4-5', 200_000],
    ['openai:gpt-4o-mini', 128_000],
    ['openai:gpt-4.1', 1_047_576],
    ['openai:ft:gpt-4o:mine', 128_000],
    ['openai:gpt-4', 8_192],
    ['openai:gpt-4-0613', 8_192],
    ['openai:gpt-4-1106-preview', 128_000],
    ['openai:gpt-4.5-preview', 128_000],
    ['openai:gpt-5-chat-latest', 128_000],
    ['openai:gpt-5.2', 272_000],
    ['openai:gpt-5-mini', 272_000],
    ['openai:o3', 200_000],
    ['openai-chat:gpt-4o-mini', 128_000],
    ['openai-chat:gpt-5.2', 272_000],
    ['deepseek:deepseek-chat', 128_000],
    ['google:gemini-2.5-flash', 200_000],
    ['openai-compatible:llama-3', 200_000],
    ['scripted', 200_000],
  ])('is known for %s: %i', (model, limit) => {
    expect(contextLimitsOf(profile(model)).limitTokens).toBe(limit);
  });

  test('is the limit of the profile when the profile sets it', () => {
    const limits = contextLimitsOf(profile('openai:gpt-4o', { limits: { context_tokens: 32_000 } }));
    expect(limits).toEqual({
      limitTokens: 32_000,
      promptTokens: 28_000,
      answerTokens: 4_000,
      reminderTokens: undefined,
    });
  });

  test('leaves room for the answer: as much as the profile asks for, at most half of the window', () => {
    const of = (max_output_tokens: number) => {
      const { promptTokens, answerTokens } = contextLimitsOf(
        profile('scripted', { model_settings: { max_output_tokens } }),
      );
      return [promptTokens, answerTokens];
    };
    expect([of(1_000), of(64_000), of(150_000)]).toEqual([
      [199_000, 1_000],
      [136_000, 64_000],
      [100_000, 100_000],
    ]);
  });

  test.each([
    ['scripted', {}, 16_384],
    ['scripted', { context_tokens: 8_000 }, 1_000],
    ['openai:gpt-4-turbo', {}, 4_096],
    ['openai:gpt-4', {}, 1_024],
    ['anthropic:claude-3-haiku-20240307', {}, 4_096],
    ['anthropic:claude-3-5-sonnet-latest', {}, 8_192],
    ['anthropic:claude-sonnet-4-5', {}, 16_384],
    ['openai-chat:gpt-4-turbo', {}, 4_096],
    ['deepseek:deepseek-chat', {}, 8_192],
    ['deepseek:deepseek-reasoner', {}, 16_000],
    ['google:gemini-2.0-flash', {}, 8_192],
    ['google:gemini-2.5-pro', {}, 16_384],
    ['mistral:mistral-large-latest', {}, 16_384],
    ['mine:constructor', {}, 16_384],
    ['constructor:x', {}, 16_384],
  ])(
    'leaves the default room for the answer when the profile sets none: %s %j: %i',
    (model, limits, tokens) => {
      expect(answerTokensOf(profile(model, { limits }))).toBe(tokens);
      const { limitTokens, promptTokens } = contextLimitsOf(profile(model, { limits }));
      expect(limitTokens - promptTokens).toBe(tokens);
    },
  );

  test('leaves no more room than the model can write, and none when the window is only for the prompt', () => {
    const settings = (max_output_tokens: number) => ({ model_settings: { max_output_tokens } });
    expect(answerTokensOf(profile('openai:gpt-4o', settings(64_000)))).toBe(16_384);
    expect(contextLimitsOf(profile('openai:gpt-5', settings(200_000)))).toMatchObject({
      limitTokens: 272_000,
      promptTokens: 272_000,
      answerTokens: 128_000,
    });
    const own = { limits: { context_tokens: 100_000 } };
    expect(contextLimitsOf(profile('openai:gpt-5', own)).promptTokens).toBe(100_000 - 12_500);
  });
});

describe('an agent that can hand off', () => {
  test('is told the limit, and is reminded at four fifths of it or where its profile says', () => {
    const tools = ['tape.handoff'];
    expect(toldLimitOf(profile('scripted', { tools }))).toBe(200_000);
    expect(contextLimitsOf(profile('scripted', { tools })).reminderTokens).toBe(160_000);
    const limits = { context_reminder: 0.5 };
    expect(contextLimitsOf(profile('scripted', { tools, limits })).reminderTokens).toBe(100_000);
    expect(toldLimitOf(profile('scripted'))).toBeUndefined();
  });
});
