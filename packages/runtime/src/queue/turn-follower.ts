/**
 * Follows one turn. It learns only that something has changed, and its user reads the change. No change is lost between
 * two waits.
 */
import { startTimer } from '@boxcar/kernel';

export class TurnFollower {
  #hasNews = true;
  #waiting: { readonly resolve: () => void; readonly reject: (error: unknown) => void } | undefined;
  readonly #forget: (follower: TurnFollower) => void;
  #closed: unknown;

  constructor(forget: (follower: TurnFollower) => void) {
    this.#forget = forget;
  }

  /**
   * Resolves when there has been news since the last call: at once if there already is news, and after `ms` in any
   * case.
   *
   * @returns Whether there was news.
   * @throws The signal's reason, or the reason why the runtime is closed.
   */
  async news(ms: number, signal: AbortSignal | undefined): Promise<boolean> {
    signal?.throwIfAborted();
    if (this.#closed !== undefined) throw this.#closed;
    if (!this.#hasNews) await this.#wait(ms, signal);
    const hadNews = this.#hasNews;
    this.#hasNews = false;
    return hadNews;
  }

  #wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise<void>((resolve, reject) => {
      const onAbort = (): void => reject(signal?.reason);
      const timer = startTimer(ms, resolve);
      signal?.addEventListener('abort', onAbort, { once: true });
      const done = (): void => {
        timer.clear();
        signal?.removeEventListener('abort', onAbort);
        this.#waiting = undefined;
      };
      this.#waiting = {
        resolve: () => {
          done();
          resolve();
        },
        reject: (error) => {
          done();
          reject(error);
        },
      };
    }).finally(() => {
      this.#waiting?.resolve();
    });
  }

  tell(): void {
    this.#hasNews = true;
    this.#waiting?.resolve();
  }

  fail(error: unknown): void {
    this.#closed = error;
    this.#waiting?.reject(error);
  }

  [Symbol.dispose](): void {
    this.#forget(this);
  }
}
