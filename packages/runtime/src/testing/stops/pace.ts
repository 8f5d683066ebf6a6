import { setTimeout as delay } from 'node:timers/promises';
import type pg from 'pg';

const TICK_MS = 25;
/** The usual time of a tick and a question to the server on an idle machine. */
const USUAL_MS = 60;

/**
 * Measures how much time this machine lost because it was busy with other tests: limits of seconds are about the product, not the
 * machine. Late ticks and late answers to `select 1` count as lost time.
 */
export class Pace implements AsyncDisposable {
  /** Milliseconds by which all ticks so far were late. */
  lostMs = 0;
  readonly #pool: pg.Pool;
  readonly #running: Promise<void>;
  #isOn = true;
  #tickedAt = performance.now();

  constructor(pool: pg.Pool) {
    this.#pool = pool;
    this.#running = this.#run();
  }

  /** Milliseconds lost so far, including the current tick. */
  get lostByNowMs(): number {
    return this.lostMs + Math.max(0, performance.now() - this.#tickedAt - USUAL_MS);
  }

  async #run(): Promise<void> {
    while (this.#isOn) {
      await delay(TICK_MS);
      // A server that a fault has made unavailable says nothing about the machine.
      await this.#pool.query('select 1').catch(() => undefined);
      const now = performance.now();
      this.lostMs += Math.max(0, now - this.#tickedAt - USUAL_MS);
      this.#tickedAt = now;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOn = false;
    await this.#running;
  }
}
