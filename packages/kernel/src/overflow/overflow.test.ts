import { describe, expect, test } from 'vitest';
import { isContextOverflow } from './overflow.js';

describe('a provider’s error means that the prompt is too long', () => {
  test.each([
    // Wordings that match Bub's patterns.
    'context_length_exceeded: context length 200000',
    'The context window of this model is full',
    'maximum allowed context',
    'token limit reached',
    'prompt is way too long',
    'prompt is too long: 213462 tokens > 200000 maximum',
    'tokens > 200000 maximum',
    // Wordings that Bub's patterns miss.
    '413 Request Entity Too Large',
    'input length and `max_tokens` exceed context limit: 188240 + 20000 > 200000',
    'The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).',
    'input token count exceeds the maximum number of tokens',
    'Request too large',
    'the request exceeds the available context size, try increasing it',
    // From other providers and servers.
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    'Your input exceeds the context window of this model. Please adjust your input and try again.',
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    'Please reduce the length of the messages or completion.',
    'Input is too long for requested model.',
    'prompt token count of 140000 exceeds the limit of 128000',
    'Your request exceeded model token limit: 262144 (requested: 300000)',
    'Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length',
    'the decoder prompt (length 5000) is longer than the maximum model length of 4096',
    'Range of input length should be [1, 30720]',
    'Input validation error: `inputs` must have less than 1024 tokens. Given: 1500',
    'too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.',
    'invalid params, context window exceeds limit (2013)',
    'Input prompt (5000 tokens) is too long and exceeds limit of 4096',
    'input is too long',
    'context size limits: overflow by 12 tokens',
    'the input overflows the context limit',
    'exceeds the model context',
    'PROMPT TOO LONG',
    // From hosts of open models, clouds and gateways.
    'the input length exceeds the context length',
    "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 tokens and your request has 5000 input tokens (4096 > 8192 - 5000).",
    '`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 4000 `inputs` tokens and 1000 `max_new_tokens`',
    'Unable to submit request because the input token count is 1200000 but model only supports up to 1048576. Reduce the input token count and try again.',
    '400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 11531',
    'Prompt exceeds max length',
    'Request body too large for gpt-4o-mini model. Max size: 8000 tokens.',
    'prompt is too long: 210,000 tokens > 200,000 maximum',
    'This endpoint’s maximum context length is 32768 tokens. However, you requested about 40000 tokens',
  ])('when its message is: %s', (message) => {
    expect(isContextOverflow({ message })).toBe(true);
  });

  test('when its status is 413 or its code has no other meaning, with any message', () => {
    expect(isContextOverflow({ message: '', status: 413 })).toBe(true);
    expect(isContextOverflow({ message: 'Bad request', status: 400, code: 'context_length_exceeded' })).toBe(
      true,
    );
    expect(isContextOverflow({ message: 'x', code: 'Request_Too_Large' })).toBe(true);
  });
});

test.each([
  '429 Too Many Requests',
  'Rate limit reached for requests',
  'Token rate limit exceeded',
  'Request too large for gpt on tokens per min (TPM): Limit 30000, Requested 45000.',
  "This request would exceed your organization's rate limit of 40,000 input tokens per minute.",
  'You exceeded your current quota, please check your plan and billing details.',
  'Quota exceeded: daily token limit',
  'max_tokens is too large: 100000. This model supports at most 4096 completion tokens',
  'max_output_tokens exceeds the token limit of 8192',
  'Invalid value for token: limit must be positive per-minute',
  'The model is overloaded',
  'max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens for claude-3-5-sonnet',
  '`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less than the `context_window` for this model',
  'max_tokens must be ≤ 8192 for this context window',
  'max_completion_tokens must be at most 16384',
  'The maximum tokens you requested exceeds the model limit of 8192. Try again with a maximum tokens value that is lower than 8192.',
  'Too many tokens, please wait before trying again.',
  'Quota exceeded for input tokens: the context window of your plan is used up this month.',
  'Internal server error',
  'Invalid API token',
  'context deadline exceeded',
  'deadline exceeded: context canceled',
  'request body is not valid JSON',
  'unknown error',
  '',
])('a failure of another kind is not an overflow: %s', (message) => {
  expect(isContextOverflow({ message })).toBe(false);
});

test('a rate limit is not an overflow, even when a host reports it with the status 413', () => {
  const message =
    'Request too large for model `llama-3` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce your message size and try again.';
  expect(isContextOverflow({ message, status: 413 })).toBe(false);
  expect(isContextOverflow({ message: 'x', status: 413, code: 'rate_limit_exceeded' })).toBe(false);
});

test('a status of 429 is a rate limit, with any message', () => {
  expect(
    isContextOverflow({ message: 'Please reduce the prompt length or context window', status: 429 }),
  ).toBe(false);
});
