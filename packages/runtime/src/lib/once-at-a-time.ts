/**
 * Work on a key that looks at what is there: it runs once at a time, and once more when it was asked for meanwhile, since what
 * asked may have come behind its look.
 */
export class OnceAtATime<K> {
  readonly #running = new Map<K, { again: boolean }>();
  readonly #work: (key: K) => Promise<void>;

  /** @param work - What fails ends what was asked for until then. */
  constructor(work: (key: K) => Promise<void>) {
    this.#work = work;
  }

  /** Resolves once the run that this began has ended; at once when one is under way, which goes on. */
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
