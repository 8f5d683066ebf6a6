import { describe, expect, test } from 'vitest';
import { contextLimitsOf, toldLimitOf } from './context-limit.js';
import { parseProfile } from './profile.js';

const profile = (model: string, rest: Record<string, unknown> = {}) =>
  parseProfile({ name: 'p', instructions: '', model, ...rest });

describe('what a model takes', () => {
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
    ['openai-compatible:llama-3', 200_000],
    ['scripted', 200_000],
  ])('%s: %i', (model, limit) => {
    expect(contextLimitsOf(profile(model)).limitTokens).toBe(limit);
  });

  test('is what the profile says, where it says it', () => {
    const limits = contextLimitsOf(profile('openai:gpt-4o', { limits: { context_tokens: 32_000 } }));
    expect(limits).toEqual({ limitTokens: 32_000, promptTokens: 28_000, reminderTokens: undefined });
  });

  test('leaves room for the answer: as much as the profile asks for, and no more than an eighth', () => {
    const of = (max_output_tokens: number) =>
      contextLimitsOf(profile('scripted', { model_settings: { max_output_tokens } })).promptTokens;
    expect([of(1_000), of(100_000)]).toEqual([199_000, 175_000]);
    expect(contextLimitsOf(profile('scripted')).promptTokens).toBe(183_616);
  });
});

describe('an agent that can hand off', () => {
  test('is told the limit, and reminded at four fifths of it or where its profile says', () => {
    const tools = ['tape.handoff'];
    expect(toldLimitOf(profile('scripted', { tools }))).toBe(200_000);
    expect(contextLimitsOf(profile('scripted', { tools })).reminderTokens).toBe(160_000);
    const limits = { context_reminder: 0.5 };
    expect(contextLimitsOf(profile('scripted', { tools, limits })).reminderTokens).toBe(100_000);
    expect(toldLimitOf(profile('scripted'))).toBeUndefined();
  });
});
