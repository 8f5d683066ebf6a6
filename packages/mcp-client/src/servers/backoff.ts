/** When a server that failed is tried again. */

const FIRST_MS = 500;
const LONGEST_MS = 60_000;

export class Backoff {
  readonly #now: () => number;
  #failures = 0;
  #failedAt = 0;

  /** @param now - Milliseconds of a clock that only moves on. */
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

  /** How long from now nobody tries; 0: the next one that needs the server does. */
  get remainingMs(): number {
    if (this.#failures === 0) return 0;
    const pause = Math.min(FIRST_MS * 2 ** (this.#failures - 1), LONGEST_MS);
    return Math.max(this.#failedAt + pause - this.#now(), 0);
  }
}
