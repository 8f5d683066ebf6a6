import type { JsonValue, TurnId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;

beforeEach(async () => {
  h = await harness();
  return () => h[Symbol.asyncDispose]();
});

const task = (target_ref: string, instruction: string) => ({
  target_strategy: 'new',
  target_ref,
  instruction,
});

describe('a thousand children', () => {
  test.each([1, 10, 100])(
    'are joined by a worker with concurrency %i',
    async (concurrency) => {
      await h.profile('child', [{ say: '{{instruction}}' }]);
      await h.worker({ concurrency });
      const answer = (await h.runtime.submit('fork_join', {
        tasks: Array.from({ length: 1_000 }, (_item, index) => task('child', `task ${index}`)),
      })) as { status: string; results: { summary: JsonValue; turn_id: TurnId }[] };
      expect(answer.status).toBe('success');
      expect(answer.results.map((result) => result.summary)).toEqual(
        Array.from({ length: 1_000 }, (_item, index) => `task ${index}`),
      );
      if (concurrency === 100) await checkInvariants(h.database.pool);
    },
    120_000,
  );
});
