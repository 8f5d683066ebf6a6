import { describe, expect, it } from 'vitest';
import { findErrorInBody, findStatus, judgeFailure } from './failure.js';
import { readRetryAfter } from './retry-after.js';

/** Error bodies that providers and gateways are known to send. */
const bodies: readonly (readonly [status: number, body: unknown, code: string])[] = [
  [
    400,
    {
      error: {
        message:
          "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        type: 'invalid_request_error',
        param: 'messages',
        code: 'context_length_exceeded',
      },
    },
    'context_overflow',
  ],
  [
    400,
    {
      error: {
        message:
          'Your input exceeds the context window of this model. Please adjust your input and try again.',
        type: 'invalid_request_error',
        code: null,
      },
    },
    'context_overflow',
  ],
  [
    400,
    {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'prompt is too long: 208310 tokens > 200000 maximum' },
    },
    'context_overflow',
  ],
  [
    400,
    {
      type: 'error',
      error: {
        type: 'invalid_request_error',
        message: 'input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000',
      },
    },
    'context_overflow',
  ],
  [
    413,
    { type: 'error', error: { type: 'request_too_large', message: 'Request exceeds the maximum size' } },
    'context_overflow',
  ],
  [
    400,
    {
      error: {
        code: 400,
        message: 'the request exceeds the available context size. try increasing the context size',
        type: 'exceed_context_size_error',
        n_prompt_tokens: 9000,
        n_ctx: 4096,
      },
    },
    'context_overflow',
  ],
  [
    400,
    {
      object: 'error',
      message: "This model's maximum context length is 4096 tokens.",
      type: 'BadRequestError',
      code: 400,
    },
    'context_overflow',
  ],
  [
    400,
    {
      error: {
        code: 400,
        message: 'The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).',
        status: 'INVALID_ARGUMENT',
      },
    },
    'context_overflow',
  ],
  [
    400,
    [
      {
        error: {
          code: 400,
          message: 'The input token count (9) exceeds the maximum number of tokens allowed (8).',
        },
      },
    ],
    'context_overflow',
  ],
  [
    400,
    {
      error: {
        message: 'Please reduce the length of the messages or completion.',
        type: 'invalid_request_error',
      },
    },
    'context_overflow',
  ],
  [
    422,
    { detail: 'Prompt contains 40000 tokens, too large for model with 32768 maximum context length' },
    'context_overflow',
  ],
  [
    400,
    {
      error: {
        message: 'max_tokens is too large: 100000. This model supports at most 16384 completion tokens.',
      },
    },
    'model_failed',
  ],
  [400, { error: { message: "Invalid value for 'context': expected a string." } }, 'model_failed'],
  [
    400,
    {
      error: {
        message: 'The response was filtered',
        code: 'content_filter',
        innererror: { code: 'ResponsibleAIPolicyViolation' },
      },
    },
    'model_refused',
  ],
  [401, { error: { message: 'Incorrect API key provided', code: 'invalid_api_key' } }, 'model_unauthorized'],
  [
    400,
    {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'Your credit balance is too low to access the API.' },
    },
    'model_unauthorized',
  ],
  [
    429,
    {
      error: {
        message: 'You exceeded your current quota',
        type: 'insufficient_quota',
        code: 'insufficient_quota',
      },
    },
    'model_unauthorized',
  ],
  [
    429,
    { error: { message: 'Rate limit reached for context window', code: 'rate_limit_exceeded' } },
    'model_rate_limited',
  ],
  [404, { error: { message: "model 'x' not found", type: 'not_found_error' } }, 'model_unknown'],
  [404, { error: 'model "x" not found, try pulling it first' }, 'model_unknown'],
  [
    400,
    { error: { message: 'The model `x` does not exist or you do not have access to it.' } },
    'model_unknown',
  ],
  [529, { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }, 'model_unavailable'],
  [200, { error: { message: 'Provider returned error', code: 429 } }, 'model_rate_limited'],
  [200, { error: { message: 'Provider returned error', code: 502 } }, 'model_unavailable'],
  [501, { error: { message: 'not implemented' } }, 'model_failed'],
];

describe('the verdict on a body', () => {
  it.each(bodies)('of status %i and body %j is read', (status, body, code) => {
    const error = findErrorInBody(JSON.stringify(body));
    expect(error).toBeDefined();
    const verdict = judgeFailure({ status, error });
    expect(verdict.code).toBe(code);
    expect(verdict.canRetry).toBe(code === 'model_unavailable' || code === 'model_rate_limited');
  });

  it.each(['', 'null', '"x"', '[]', '{}', '{"error":{}}', '{"error":', '[[1]]', '12'])(
    '%j is not an error body',
    (body) => {
      expect(findErrorInBody(body)).toBeUndefined();
    },
  );
});

it.each([
  ['ENOTFOUND', 'model_unavailable', true],
  ['ECONNRESET', 'model_unavailable', true],
  ['UND_ERR_HEADERS_TIMEOUT', 'model_timeout', true],
  ['ERR_INVALID_URL', 'model_failed', false],
  ['DEPTH_ZERO_SELF_SIGNED_CERT', 'model_failed', false],
])('a network failure %s is %s', (network, code, canRetry) => {
  expect(judgeFailure({ network })).toEqual({ code, canRetry });
});

it.each([
  [{ 'retry-after': '2' }, 2000],
  [{ 'retry-after': '0.25' }, 250],
  [{ 'retry-after-ms': '1500.4', 'retry-after': '9' }, 1501],
  [{ 'retry-after': 'Thu, 01 Jan 1970 00:00:05 GMT' }, 4000],
  [{ 'retry-after': 'Thu, 01 Jan 1970 00:00:00 GMT' }, 0],
  [{ 'retry-after': '99999999' }, 86_400_000],
  [{ 'retry-after': '-1' }, undefined],
  [{ 'retry-after': '' }, undefined],
  [{ 'retry-after': 'soon' }, undefined],
  [{ 'retry-after': '1e3' }, undefined],
  [{}, undefined],
])('the headers %j ask to wait %s ms', (headers, expected) => {
  expect(readRetryAfter(new Headers(headers), 1_000)).toBe(expected);
});

it('one request above a minute’s allowance is a rate limit that waiting cannot help, also with status 413', () => {
  const message =
    'Request too large for model `llama-3` on tokens per minute (TPM): Limit 6000, Requested 7000';
  for (const status of [413, 429])
    expect(judgeFailure({ status, error: { message, code: 'rate_limit_exceeded' } })).toEqual({
      code: 'model_rate_limited',
      canRetry: false,
    });
});

it('a type with the name of an inherited member is unknown like any other', () => {
  for (const type of ['constructor', 'toString', '__proto__'])
    expect(findStatus({ status: 200, error: { message: 'x', type } })).toBe(500);
});
