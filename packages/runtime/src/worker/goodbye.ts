import { withinTime } from '../lib/index.js';

/** The minimum for each part once the shared time is over. */
const SHORTEST_GOODBYE_MS = 100;

/**
 * Runs the parts of a shutdown in sequence. A server that is away never answers, so each part is given up at its limit.
 */
export class Goodbye {
  readonly failures: unknown[] = [];
  #until = 0;

  /** All following parts share this time. */
  limit(ms: number): void {
    this.#until = performance.now() + ms;
  }

  get leftMs(): number {
    return Math.max(this.#until - performance.now(), SHORTEST_GOODBYE_MS);
  }

  async attempt(part: string, work: Promise<unknown> | undefined, limitMs = this.leftMs): Promise<void> {
    try {
      if (work !== undefined) await withinTime(work, limitMs, part);
    } catch (error) {
      this.failures.push(error);
    }
  }
}
