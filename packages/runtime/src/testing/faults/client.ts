import { KernelError } from '@boxcar/kernel';
import { isTransient } from '@boxcar/store';
import { type Client, Refused } from './scenario.js';
import type { Stage } from './stage.js';

const MAX_ATTEMPTS = 20;

/** Submits until it has an answer, under the same key: what committed although the answer was lost is found there. */
export function persistentClient(stage: () => Stage): Client {
  let count = 0;
  const insist = async <T>(work: (key: string) => Promise<T>): Promise<T> => {
    count += 1;
    const key = `submission-${count}`;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await work(key);
      } catch (error) {
        if (isTransient(error) && attempt < MAX_ATTEMPTS) continue;
        throw error instanceof KernelError ? new Refused(error.code, error.message) : error;
      }
    }
  };
  return {
    submit: (primitive, args) =>
      insist(
        async (idempotencyKey) => (await stage().runtime.accept(primitive, args, { idempotencyKey })).answer,
      ),
    use: (work) => insist((key) => work(stage().runtime, key)),
  };
}
