import { KernelError } from '@boxcar/kernel';
import { isTransient } from '@boxcar/store';
import { type Client, Refused } from './scenario.js';
import type { Stage } from './stage.js';

const MAX_ATTEMPTS = 20;

const DIED = new Error('the process has died');

/** Settles like `work`, or not at all when the process dies. @throws Error */
export function untilAborted<T>(work: Promise<T>, life: AbortSignal | undefined): Promise<T> {
  if (life === undefined) return work;
  return new Promise((settle, fail) => {
    const end = (): void => fail(DIED);
    life.addEventListener('abort', end, { once: true });
    if (life.aborted) end();
    void work.then(settle, fail).finally(() => life.removeEventListener('abort', end));
  });
}

/**
 * Submits under the same key until there is an answer. If the work was committed and only the answer was lost, the key finds the answer.
 * Work other than submissions is repeated too, and must itself find out what is already done.
 *
 * @param life - The life of the process that is called: the client does not wait for a dead process.
 * @param name - The prefix of the keys of its submissions: two clients with the same name make the same submissions.
 */
export function persistentClient(
  stage: () => Stage | Promise<Stage>,
  life: () => AbortSignal | undefined = () => undefined,
  name = 'submission',
): Client {
  let count = 0;
  const use: Client['use'] = async (work) => {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await untilAborted(work((await stage()).runtime), life());
      } catch (error) {
        if ((error === DIED || isTransient(error)) && attempt < MAX_ATTEMPTS) continue;
        throw error instanceof KernelError ? new Refused(error.code, error.message) : error;
      }
    }
  };
  return {
    submit: (primitive, args) => {
      count += 1;
      const idempotencyKey = `${name}-${count}`;
      return use(async (runtime) => (await runtime.accept(primitive, args, { idempotencyKey })).answer);
    },
    use,
  };
}
