/** The requests of a BullMQ worker by which the server may give it a job. */
interface Fetching {
  moveToActive(...args: unknown[]): Promise<unknown>;
  handleCompleted(...args: unknown[]): Promise<unknown>;
  handleFailed(...args: unknown[]): Promise<unknown>;
}

/** The requests for a job that a worker has not been answered yet. BullMQ does not tell them. */
export class Fetches {
  readonly #open = new Set<Promise<unknown>>();

  watch(worker: object): void {
    const fetching = worker as Fetching;
    for (const name of ['moveToActive', 'handleCompleted', 'handleFailed'] as const) {
      const fetch = fetching[name].bind(worker);
      fetching[name] = (...args) => {
        const answer = fetch(...args);
        const forget = (): void => void this.#open.delete(answer);
        this.#open.add(answer);
        answer.then(forget, forget);
        return answer;
      };
    }
  }

  /** Settles when the requests of this moment have been answered. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#open);
  }
}
