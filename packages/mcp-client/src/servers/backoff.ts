/** Decides when a failed server is tried again. */

const FIRST_MS = 500;
const LONGEST_MS = 60_000;

export class Backoff {
  readonly #now: () => number;
  #failures = 0;
  #failedAt = 0;

  /** @param now - Milliseconds of a monotonic clock. */
  constructor(now: () => number) {
    this.#now = now;
  }

  failed(): void {
    this.#failures += 1;
    this.#failedAt = this.#now();
  }

  succeeded(): void {
    this.#failures = 0;
  }

  /** The time during which no attempt is made; 0: the next caller that needs the server tries it. */
  get remainingMs(): number {
    if (this.#failures === 0) return 0;
    const pause = Math.min(FIRST_MS * 2 ** (this.#failures - 1), LONGEST_MS);
    return Math.max(this.#failedAt + pause - this.#now(), 0);
  }
}
