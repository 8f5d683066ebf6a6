/** The remaining time of an attempt. It does not run while its handoff waits for replies. */
import { startTimer, type Timer } from '@boxcar/kernel';

export class AttemptTime {
  readonly #onEnd: () => void;
  #leftMs: number;
  #since = 0;
  #timer: Timer | undefined;
  #waits = 0;
  #isOver = false;

  constructor(leftMs: number, onEnd: () => void) {
    this.#leftMs = leftMs;
    this.#onEnd = onEnd;
    this.#run();
  }

  #run(): void {
    if (this.#isOver) return;
    this.#since = performance.now();
    this.#timer = startTimer(this.#leftMs, this.#onEnd);
  }

  get leftMs(): number {
    const ranMs = this.#timer === undefined ? 0 : performance.now() - this.#since;
    return Math.max(this.#leftMs - ranMs, 0);
  }

  #halt(): void {
    if (this.#timer === undefined) return;
    this.#leftMs = this.leftMs;
    this.#timer.clear();
    this.#timer = undefined;
  }

  /** With several waits at once, the time runs again after the last of them has ended. */
  async standStill<T>(work: () => Promise<T>): Promise<T> {
    this.#waits += 1;
    this.#halt();
    try {
      return await work();
    } finally {
      this.#waits -= 1;
      if (this.#waits === 0) this.#run();
    }
  }

  end(): void {
    this.#isOver = true;
    this.#halt();
  }
}
