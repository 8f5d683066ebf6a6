import {
  type BatchTry,
  isOutOfResources,
  isOverRowLimit,
  isServerTrouble,
  outsideHandlers,
} from '@boxcar/store';

interface Item<I, O> {
  readonly input: I;
  readonly resolve: (output: O) => void;
  readonly reject: (error: unknown) => void;
}

export interface BatcherOptions {
  /** Items of one batch at most. Default 64. */
  readonly maxItems?: number;
  /** Batches under way at once, at most. Default 4. */
  readonly maxInFlight?: number;
  /** After how long a batch under way no longer holds up the next one. Default 20. */
  readonly patienceMs?: number;
}

type Run<I, O> = (inputs: readonly I[], attempt: Required<BatchTry>) => Promise<readonly O[]>;

/**
 * Gathers calls into batches, in a window that adapts by itself: an item that finds nothing under way starts at once; what
 * arrives meanwhile is the next batch, which starts when the one before is done. The slower the database, the larger the
 * batches, and the fewer its commits. A full batch, or one whose predecessor takes too long (it waits for a lock, say),
 * starts beside it.
 *
 * A failed batch is split in halves, which run at the same time, until the poison item fails alone. A failure that takes
 * long (a locked row, a statement that exceeds its time limit) is not repeated for halves: each item is tried alone at
 * once. Only an item that is alone waits for a lock with patience. So one row delays the others of its batch once, by one
 * limit of the connection. A server that is away is not the fault of an item: then all items fail together.
 */
export class Batcher<I, O> {
  readonly #run: Run<I, O>;
  readonly #maxItems: number;
  readonly #maxInFlight: number;
  readonly #patienceMs: number;
  #waiting: Item<I, O>[] = [];
  #inFlight = 0;
  #isScheduled = false;
  #patience: NodeJS.Timeout | undefined;

  /**
   * @param run - When it is told that the items are repeated, it looks for rows that an earlier try of a larger batch may
   *   have left.
   */
  constructor(run: Run<I, O>, options: BatcherOptions = {}) {
    this.#run = run;
    this.#maxItems = options.maxItems ?? 64;
    this.#maxInFlight = options.maxInFlight ?? 4;
    this.#patienceMs = options.patienceMs ?? 20;
  }

  add(input: I): Promise<O> {
    return new Promise<O>((resolve, reject) => {
      this.#waiting.push({ input, resolve, reject });
      // What this very moment brings joins the batch; an idle system waits for no more.
      // A batch is not the work of the caller that happens to start it, and neither are the batches that follow.
      outsideHandlers(() => this.#schedule(queueMicrotask));
    });
  }

  #schedule(later: (start: () => void) => void): void {
    if (this.#isScheduled || this.#waiting.length === 0 || this.#inFlight >= this.#maxInFlight) return;
    if (this.#inFlight > 0 && this.#waiting.length < this.#maxItems) {
      this.#patience ??= setTimeout(() => {
        this.#patience = undefined;
        if (this.#waiting.length > 0 && this.#inFlight < this.#maxInFlight) this.#start();
      }, this.#patienceMs);
      return;
    }
    this.#isScheduled = true;
    later(() => {
      this.#isScheduled = false;
      this.#start();
      this.#schedule(later);
    });
  }

  #start(): void {
    clearTimeout(this.#patience);
    this.#patience = undefined;
    const batch = this.#waiting.splice(0, this.#maxItems);
    if (batch.length === 0) return;
    this.#inFlight++;
    void this.#settle(batch, false).finally(() => {
      this.#inFlight--;
      // A busy one waits a turn of the event loop: who was just answered may have something to add.
      this.#schedule(setImmediate);
    });
  }

  async #settle(batch: readonly Item<I, O>[], isRepeated: boolean): Promise<void> {
    try {
      const attempt = { isRepeated, isPatient: batch.length === 1 };
      const outputs = await this.#run(
        batch.map((item) => item.input),
        attempt,
      );
      batch.forEach((item, index) => {
        const output = outputs[index];
        if (output === undefined) item.reject(new Error('a batch returned fewer results than items'));
        else item.resolve(output);
      });
    } catch (error) {
      if (batch.length === 1 || (isServerTrouble(error) && !isOutOfResources(error))) {
        for (const item of batch) item.reject(error);
        return;
      }
      await this.#settleParts(batch, isOverRowLimit(error) ? 1 : Math.ceil(batch.length / 2));
    }
  }

  /** Runs the parts of a failed batch, a few at the same time. */
  async #settleParts(batch: readonly Item<I, O>[], size: number): Promise<void> {
    const starts = Array.from({ length: Math.ceil(batch.length / size) }, (_none, n) => n * size).values();
    const settleNext = async (): Promise<void> => {
      for (const start of starts) await this.#settle(batch.slice(start, start + size), true);
    };
    await Promise.all(Array.from({ length: this.#maxInFlight }, settleNext));
  }
}
