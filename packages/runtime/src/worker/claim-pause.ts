/**
 * The pause of a worker after a claim that could not reach the server. Meanwhile it leaves rings to the other workers.
 *
 * P1  The pause ends after an answer of the worker's pool. Any answer counts, and the pause asks for one.
 * P2  Claims can fail although the pool answers, on a server that only reads for example. Then each pause lasts at least twice as
 *     long as the one before it, up to four seconds, until a claim is answered.
 */
import { askServer, silentFor } from '@boxcar/store';
import type pg from 'pg';

const FIRST_MS = 100;
const LONGEST_MS = 4_000;
/** The time between two looks at the pool. */
const LOOK_MS = 100;

export class ClaimPause {
  readonly #pool: pg.Pool;
  readonly #onEnd: () => void;
  #timer: NodeJS.Timeout | undefined;
  #leastMs = FIRST_MS;
  #isAsking = false;

  constructor(pool: pg.Pool, onEnd: () => void) {
    this.#pool = pool;
    this.#onEnd = onEnd;
  }

  get isOn(): boolean {
    return this.#timer !== undefined;
  }

  /** A claim could not reach the server. */
  start(): void {
    if (this.isOn) return;
    const startedAt = performance.now();
    const leastMs = this.#leastMs;
    this.#leastMs = Math.min(2 * leastMs, LONGEST_MS);
    this.#timer = setInterval(() => {
      const waitedMs = performance.now() - startedAt;
      if (waitedMs < leastMs) return;
      if (silentFor(this.#pool) < waitedMs) {
        this.stop();
        this.#onEnd();
      } else this.#ask();
    }, LOOK_MS).unref();
  }

  /** A claim was answered. */
  claimed(): void {
    this.#leastMs = FIRST_MS;
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #ask(): void {
    if (this.#isAsking) return;
    this.#isAsking = true;
    // The pool records the time of the answer.
    askServer(this.#pool)
      .catch(() => undefined)
      .finally(() => {
        this.#isAsking = false;
      });
  }
}
