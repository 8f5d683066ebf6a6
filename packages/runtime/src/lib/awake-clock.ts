/** Measures for how much of the time since a restart this process was awake: not stopped, and its event loop not blocked. */
export class AwakeClock {
  readonly #mostMs: number;
  readonly #timer: NodeJS.Timeout;
  #startedAt = performance.now();
  #tickedAt = this.#startedAt;
  #awakeMs = 0;

  /** @param mostMs - A longer gap between two ticks counts as this much awake time. */
  constructor(mostMs: number) {
    this.#mostMs = mostMs;
    this.#timer = setInterval(() => {
      const now = performance.now();
      this.#awakeMs += Math.min(now - this.#tickedAt, mostMs);
      this.#tickedAt = now;
    }, mostMs / 2);
    this.#timer.unref();
  }

  restart(): void {
    this.#startedAt = performance.now();
    this.#tickedAt = this.#startedAt;
    this.#awakeMs = 0;
  }

  /** True when the process was awake for at least half of the time since the last restart, and this time is longer than `mostMs`. */
  get wasAwake(): boolean {
    const elapsedMs = performance.now() - this.#startedAt;
    return elapsedMs > this.#mostMs && this.#awakeMs * 2 >= elapsedMs;
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
