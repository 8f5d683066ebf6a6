import { KernelError } from '@boxcar/kernel';
import { describe, expect, test } from 'vitest';
import { withPatience } from './patience.js';

const away = (): KernelError => new KernelError('database_unavailable');

/** Fails the given number of times, and then answers. */
const failing = (times: number, error: () => unknown = away) => {
  const attempts: number[] = [];
  return {
    attempts,
    attempt: async (): Promise<string> => {
      attempts.push(attempts.length);
      if (attempts.length <= times) throw error();
      return 'done';
    },
  };
};

const options = (signal = new AbortController().signal) => ({ signal, onRetry: () => undefined });

test('a call during an outage of the database is tried three times in all', async () => {
  const twice = failing(2);
  await expect(withPatience(twice.attempt, options())).resolves.toBe('done');
  expect(twice.attempts).toHaveLength(3);
  const always = failing(9);
  await expect(withPatience(always.attempt, options())).rejects.toMatchObject({
    code: 'database_unavailable',
  });
  expect(always.attempts).toHaveLength(3);
});

describe('a call is tried only once when it', () => {
  test.each([
    ['is wrong', () => new KernelError('bad_request')],
    ['loses a race that the client has to see', () => new KernelError('conflict')],
    ['fails inside', () => new Error('a bug')],
  ])('%s', async (_what, error) => {
    const once = failing(1, error);
    await expect(withPatience(once.attempt, options())).rejects.toThrow();
    expect(once.attempts).toHaveLength(1);
  });

  test('has no client any more', async () => {
    const once = failing(1);
    await expect(withPatience(once.attempt, options(AbortSignal.abort()))).rejects.toMatchObject({
      code: 'database_unavailable',
    });
    expect(once.attempts).toHaveLength(1);
  });
});
