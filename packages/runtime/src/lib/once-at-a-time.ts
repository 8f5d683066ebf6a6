/**
 * Runs work on keys. The work on a key processes everything that is due for that key. Only one run per key is active at a time. A request
 * during a run starts one more run, since its cause may have happened after the run's check.
 */
export class OnceAtATime<K> {
  readonly #running = new Map<K, { again: boolean }>();
  readonly #work: (key: K) => Promise<void>;

  /** @param work - An error ends the run and drops the requests made until then. */
  constructor(work: (key: K) => Promise<void>) {
    this.#work = work;
  }

  /**
   * Resolves when the run that this call began has ended. Resolves at once while another run is in progress; that run continues.
   */
  async ask(key: K): Promise<void> {
    const running = this.#running.get(key);
    if (running !== undefined) {
      running.again = true;
      return;
    }
    const state = { again: false };
    this.#running.set(key, state);
    try {
      do {
        state.again = false;
        await this.#work(key);
      } while (state.again);
    } finally {
      this.#running.delete(key);
    }
  }
}
