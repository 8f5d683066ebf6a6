import type { Model, ModelReply, ModelRequest } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { askModel } from './ask-model.js';

const REPLY: ModelReply = {
  text: 'well',
  toolCalls: [],
  usage: { inputTokens: 1, outputTokens: 1 },
  finishReason: 'stop',
};

test('a call whose signal has already fired is not made, and fails with the signal’s reason', async () => {
  let calls = 0;
  const model: Model = {
    generate: async () => {
      calls += 1;
      return REPLY;
    },
  };
  const request = {} as ModelRequest;
  const reason = new Error('canceled');
  await expect(
    askModel(model, request, { signal: AbortSignal.abort(reason), timeoutMs: 1_000 }),
  ).rejects.toBe(reason);
  expect(calls).toBe(0);
  const { signal } = new AbortController();
  await expect(askModel(model, request, { signal, timeoutMs: 1_000 })).resolves.toMatchObject({
    text: 'well',
  });
  expect(calls).toBe(1);
});
