import {
  type BatchTry,
  isOutOfResources,
  isOverRowLimit,
  isServerTrouble,
  isTransient,
  type LockLimit,
  outsideHandlers,
  sqlStateOf,
  toDatabaseError,
} from '@boxcar/store';

interface Item<I, O> {
  readonly input: I;
  readonly isRepeated: boolean;
  readonly lockedMs: number;
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
  /**
   * Given: the work waits for locks no longer than it is told, and an item whose row is locked leaves its batch. Absent: the work
   * of an item that is alone waits for locks by itself.
   */
  readonly locks?: {
    /** How long a batch waits for one lock. Absent: as long as the connection allows. */
    readonly batchMs?: number;
  };
}

/** What the work of a batch returns for an item that it has left out because a row was locked. */
export const LOCKED: unique symbol = Symbol('locked');

type Run<I, O> = (
  inputs: readonly I[],
  attempt: Required<BatchTry> & LockLimit,
) => Promise<readonly (O | typeof LOCKED)[]>;

/** How long an item that is tried again alone waits for one lock. */
const ALONE_LOCK_MS = 200;
/** The try of an item that has left its batch. */
const ALONE = { isRepeated: true, isPatient: false, leavesLocked: false, lockMs: ALONE_LOCK_MS } as const;
/** Tries of items that have left their batches, at once: the connections that they hold. */
const TRIES_BESIDE = 2;
/** How long such an item is tried again: longer than the server keeps the locks of a stopped process. */
const LOCK_PATIENCE_MS = 15_000;

/** A limit of the connection has ended the work: it may be tried again. */
const isPassingLimit = (error: unknown): boolean =>
  isOverRowLimit(error) && isTransient(toDatabaseError(error));

/** What is known of a batch that is tried, or of a part of a failed one. */
interface Part {
  readonly isPart: boolean;
  readonly isRepeated: boolean;
  /** When the batch was tried first. */
  readonly startedAt: number;
}

/**
 * Gathers calls into batches, in a window that adapts by itself: an item that finds nothing under way starts at once; what
 * arrives meanwhile is the next batch, which starts when the one before is done. The slower the database, the larger the
 * batches, and the fewer its commits. A full batch, or one whose predecessor takes too long (it waits for a lock, say),
 * starts beside it.
 *
 * A failed batch is split in halves, which run at the same time, until the poison item fails alone. A failure that takes
 * long (a locked row, a statement that exceeds its time limit) is not repeated for halves: each item is tried alone at
 * once. So one row delays the others of its batch once, by one limit of the connection. An item that meets such a limit alone
 * leaves the batches (`locks`): it is tried again beside them, with pauses in which it holds neither a place nor a connection. So does an
 * item that the work has left out because a row was locked (`LOCKED`): it delays nothing.
 * A server that is away is not the fault of an item: then all items fail together.
 */
export class Batcher<I, O> {
  readonly #run: Run<I, O>;
  readonly #maxItems: number;
  readonly #maxInFlight: number;
  readonly #patienceMs: number;
  readonly #locks: BatcherOptions['locks'];
  /** For items that have left their batches. */
  readonly #beside: Batcher<I, O> | undefined;
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
    this.#locks = options.locks;
    this.#beside =
      options.locks &&
      new Batcher((inputs) => run(inputs, ALONE), {
        maxItems: 1,
        maxInFlight: TRIES_BESIDE,
      });
  }

  /**
   * @param options.isRepeated - An earlier try of the item may have been committed. Default false.
   * @param options.lockedMs - How long an item whose row is locked is tried again. Default 15,000.
   */
  add(input: I, options: Pick<BatchTry, 'isRepeated'> & { readonly lockedMs?: number } = {}): Promise<O> {
    const { isRepeated = false, lockedMs = LOCK_PATIENCE_MS } = options;
    return new Promise<O>((resolve, reject) => {
      this.#waiting.push({ input, isRepeated, lockedMs, resolve, reject });
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
    const isRepeated = batch.some((item) => item.isRepeated);
    void this.#settle(batch, { isPart: false, isRepeated, startedAt: performance.now() }).finally(() => {
      this.#inFlight--;
      // A busy one waits a turn of the event loop: who was just answered may have something to add.
      this.#schedule(setImmediate);
    });
  }

  async #settle(batch: readonly Item<I, O>[], part: Part): Promise<void> {
    const [item] = batch;
    const isAlone = batch.length === 1;
    try {
      const attempt = {
        isRepeated: part.isRepeated,
        isPatient: isAlone && this.#locks === undefined,
        leavesLocked: this.#locks !== undefined && !part.isRepeated,
        lockMs: this.#locks && (this.#locks.batchMs ?? (isAlone && part.isPart ? ALONE_LOCK_MS : undefined)),
      };
      const outputs = await this.#run(
        batch.map((item) => item.input),
        attempt,
      );
      batch.forEach((item, index) => {
        const output = outputs[index];
        if (output === LOCKED) this.#leave(item, part.startedAt);
        else if (output === undefined) item.reject(new Error('a batch returned fewer results than items'));
        else item.resolve(output);
      });
    } catch (error) {
      if (isAlone && item !== undefined && this.#beside !== undefined && isPassingLimit(error)) {
        void this.#tryBeside(item, this.#beside, { startedAt: part.startedAt, pauses: 1 });
        return;
      }
      if (isAlone || (isServerTrouble(error) && !isOutOfResources(error))) {
        for (const item of batch) item.reject(error);
        return;
      }
      const size = isOverRowLimit(error) ? 1 : Math.ceil(batch.length / 2);
      await this.#settleParts(batch, size, part.startedAt);
    }
  }

  /** The lock may be a short one, so the first try beside the batches follows at once. */
  #leave(item: Item<I, O>, startedAt: number): void {
    if (this.#beside === undefined)
      item.reject(new Error('a batch has left out an item that cannot leave it'));
    else void this.#tryBeside(item, this.#beside, { startedAt, pauses: 0 });
  }

  /** Tries an item again that has left its batch: for a while if its row is locked, else once. Never throws. */
  async #tryBeside(
    item: Item<I, O>,
    beside: Batcher<I, O>,
    { startedAt, pauses }: { readonly startedAt: number; readonly pauses: number },
  ): Promise<void> {
    for (let n = pauses; ; n += 1) {
      if (n > 0) await new Promise((resolve) => setTimeout(resolve, Math.min(50 * 2 ** n, 500)));
      try {
        item.resolve(await beside.add(item.input));
        return;
      } catch (error) {
        const isLocked = sqlStateOf(error) === '55P03';
        if (isLocked && performance.now() - startedAt < item.lockedMs) continue;
        item.reject(toDatabaseError(error));
        return;
      }
    }
  }

  /** Runs the parts of a failed batch, a few at the same time. */
  async #settleParts(batch: readonly Item<I, O>[], size: number, startedAt: number): Promise<void> {
    const starts = Array.from({ length: Math.ceil(batch.length / size) }, (_none, n) => n * size).values();
    const settleNext = async (): Promise<void> => {
      for (const start of starts)
        await this.#settle(batch.slice(start, start + size), { isPart: true, isRepeated: true, startedAt });
    };
    await Promise.all(Array.from({ length: this.#maxInFlight }, settleNext));
  }
}
