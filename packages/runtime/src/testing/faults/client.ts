import { KernelError } from '@boxcar/kernel';
import { isTransient } from '@boxcar/store';
import { type Client, Refused } from './scenario.js';
import type { Stage } from './stage.js';

const MAX_ATTEMPTS = 20;

/**
 * Submits until it has an answer, under the same key: what committed although the answer was lost is found there. So it does with other work,
 * which finds out by itself what was done of it.
 */
export function persistentClient(stage: () => Stage): Client {
  let count = 0;
  const use: Client['use'] = async (work) => {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await work(stage().runtime);
      } catch (error) {
        if (isTransient(error) && attempt < MAX_ATTEMPTS) continue;
        throw error instanceof KernelError ? new Refused(error.code, error.message) : error;
      }
    }
  };
  return {
    submit: (primitive, args) => {
      count += 1;
      const idempotencyKey = `submission-${count}`;
      return use(async (runtime) => (await runtime.accept(primitive, args, { idempotencyKey })).answer);
    },
    use,
  };
}
