import { KernelError, ModelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { AdapterError, adviseRetry } from './adapter-error.js';

const retryable = (error: unknown): boolean => adviseRetry(error).retryable;
const networkError = (code: string) =>
  Object.assign(new TypeError('fetch failed'), { cause: Object.assign(new Error('x'), { code }) });

test('network errors, four kinds of HTTP status, retryable errors and marked codes are tried again, and no other errors', () => {
  for (const status of [408, 425, 429, 500, 501, 503, 529, 599])
    expect([status, retryable({ status }), retryable({ statusCode: status })]).toEqual([status, true, true]);
  for (const status of [200, 301, 400, 401, 403, 404, 409, 422, 499, 600])
    expect([status, retryable({ status })]).toEqual([status, false]);
  for (const code of ['ECONNREFUSED', 'ECONNRESET', 'ENOTFOUND', 'EPIPE', 'UND_ERR_SOCKET'])
    expect([code, retryable(networkError(code))]).toEqual([code, true]);
  for (const code of ['ENOENT', 'ERR_INVALID_URL', 'EACCES'])
    expect([code, retryable(networkError(code))]).toEqual([code, false]);
  expect(retryable(Object.assign(new Error('x'), { retryable: true }))).toBe(true);
  expect(retryable(Object.assign(new Error('x'), { retryable: 'true' }))).toBe(false);
  expect(retryable(new KernelError('platform_unavailable'))).toBe(true);
  expect(retryable(new KernelError('platform_failed'))).toBe(false);
  expect(retryable(new ModelError('model_failed', 'x', { canRetry: true }))).toBe(true);
  for (const error of [new Error('x'), 'ECONNRESET', null, undefined, 503])
    expect(retryable(error)).toBe(false);
});

test('the pause that a platform asks for is passed on', () => {
  const error = new AdapterError('platform_rate_limited', {
    message: 'x',
    retryable: true,
    retryAfterMs: 3_000,
  });
  expect(adviseRetry(error)).toEqual({ retryable: true, retryAfterMs: 3_000 });
  expect(error.details).toEqual({ retryable: true, retry_after_ms: 3_000 });
  expect(adviseRetry({ status: 503, retryAfterMs: 5 })).toEqual({ retryable: true, retryAfterMs: 5 });
});

test('usage that becomes known later is added once, and everything else stays', () => {
  const usage = { input_tokens: 3, output_tokens: 0 };
  const error = new AdapterError('platform_unavailable', {
    message: 'It broke off.',
    retryable: true,
    details: { status: 200 },
  });
  const used = error.withUsage(usage);
  expect([used.usage, used.message, used.details, used.retryable]).toEqual([
    usage,
    error.message,
    error.details,
    true,
  ]);
  expect(used.withUsage({ input_tokens: 9, output_tokens: 9 })).toBe(used);
});
