import { KernelError } from '@boxcar/kernel';

/**
 * Calls of the handler's tools that a handler has begun. It may answer before they end: their results are still part of its draft.
 */
export class PendingCalls {
  readonly #pending = new Set<Promise<unknown>>();
  #isOver = false;

  /** @throws KernelError `internal_error` after the draft is complete or discarded. */
  checkOpen(): void {
    if (this.#isOver) throw isOver();
  }

  run<T>(call: () => Promise<T>): Promise<T> {
    if (this.#isOver) return Promise.reject(isOver());
    const running = call();
    // A separate promise: the handlers that are attached below would hide a failure that the handler ignores.
    const given = running.then((value) => value);
    this.#pending.add(given);
    const forget = (): void => void this.#pending.delete(given);
    running.then(forget, forget);
    return given;
  }

  /**
   * Waits for the calls that have not ended, and for calls that follow from them. After that, no call can begin.
   *
   * @throws the first failure of an awaited call: the handler has answered without knowing of it.
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
