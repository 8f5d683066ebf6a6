import { KernelError } from '@boxcar/kernel';

/**
 * The calls of tools that a handler has begun. A handler may answer before they end: what they add is a part of its draft all the same.
 */
export class PendingCalls {
  readonly #pending = new Set<Promise<unknown>>();
  #isOver = false;

  /** @throws KernelError `internal_error` once the draft is complete or discarded. */
  checkOpen(): void {
    if (this.#isOver) throw isOver();
  }

  run<T>(call: () => Promise<T>): Promise<T> {
    if (this.#isOver) return Promise.reject(isOver());
    const running = call();
    // A promise of its own: the watch below would hide a failure that the handler does not look at.
    const given = running.then((value) => value);
    this.#pending.add(given);
    const forget = (): void => void this.#pending.delete(given);
    running.then(forget, forget);
    return given;
  }

  /**
   * Waits for the calls that have not ended, and for those that follow from them. No call can begin afterwards.
   *
   * @throws the first failure of a call that was waited for: the handler has answered without knowing it.
   */
  async settle(): Promise<void> {
    let failed: PromiseRejectedResult | undefined;
    await microtasks();
    while (this.#pending.size > 0) {
      const results = await Promise.allSettled(this.#pending);
      failed ??= results.find((result) => result.status === 'rejected');
      await microtasks();
    }
    this.#isOver = true;
    if (failed !== undefined) throw failed.reason;
  }

  /** Refuses further calls: the handler has failed, and only its failure is reported. */
  close(): void {
    this.#isOver = true;
    for (const call of this.#pending) call.catch(() => undefined);
  }
}

/** The error of a call that begins too late: nothing is written for it. */
export const isOver = (): KernelError =>
  new KernelError('internal_error', { message: 'The transaction of this primitive is over.' });

/** Resolves after all reactions to settled promises have run. */
const microtasks = (): Promise<void> => new Promise((resolve) => process.nextTick(resolve));
