interface Item<I, O> {
  readonly input: I;
  readonly resolve: (output: O) => void;
  readonly reject: (error: unknown) => void;
}

export interface BatcherOptions {
  /** Items of one batch at most. */
  readonly maxItems: number;
  /** Batches under way at once; what arrives meanwhile forms the next one. */
  readonly maxInFlight: number;
}

/**
 * Gathers calls into batches without a timer: an item that finds nothing under way starts at once, items that arrive
 * while batches are under way wait for the next. A batch that fails is split by halves until the poison item fails alone,
 * so `run` must leave nothing behind when it throws.
 */
export class Batcher<I, O> {
  readonly #run: (inputs: readonly I[]) => Promise<readonly O[]>;
  readonly #options: BatcherOptions;
  #waiting: Item<I, O>[] = [];
  #inFlight = 0;
  #isScheduled = false;

  constructor(run: (inputs: readonly I[]) => Promise<readonly O[]>, options: BatcherOptions) {
    this.#run = run;
    this.#options = options;
  }

  add(input: I): Promise<O> {
    return new Promise<O>((resolve, reject) => {
      this.#waiting.push({ input, resolve, reject });
      this.#schedule();
    });
  }

  #schedule(): void {
    if (this.#isScheduled || this.#inFlight >= this.#options.maxInFlight) return;
    this.#isScheduled = true;
    // One turn of the event loop: what the same burst of I/O brought joins the same batch.
    setImmediate(() => {
      this.#isScheduled = false;
      while (this.#waiting.length > 0 && this.#inFlight < this.#options.maxInFlight) {
        const batch = this.#waiting.splice(0, this.#options.maxItems);
        this.#inFlight++;
        void this.#settle(batch).finally(() => {
          this.#inFlight--;
          if (this.#waiting.length > 0) this.#schedule();
        });
      }
    });
  }

  async #settle(batch: readonly Item<I, O>[]): Promise<void> {
    try {
      const outputs = await this.#run(batch.map((item) => item.input));
      batch.forEach((item, index) => {
        const output = outputs[index];
        if (output === undefined) item.reject(new Error('a batch returned fewer results than items'));
        else item.resolve(output);
      });
    } catch (error) {
      if (batch.length === 1) {
        batch[0]?.reject(error);
        return;
      }
      const middle = Math.ceil(batch.length / 2);
      await this.#settle(batch.slice(0, middle));
      await this.#settle(batch.slice(middle));
    }
  }
}
