import {
  isOutOfResources,
  isOverRowLimit,
  isServerTrouble,
  isTransient,
  type LimitedTry,
  outsideHandlers,
  sqlStateOf,
  toDatabaseError,
} from '@boxcar/store';

interface Item<I, O> {
  readonly input: I;
  readonly isRepeated: boolean;
  readonly lockedMs: () => number;
  readonly resolve: (output: O) => void;
  readonly reject: (error: unknown) => void;
}

export interface BatcherOptions {
  /** Maximum items of one batch. Default 64. */
  readonly maxItems?: number;
  /** Maximum batches in progress at the same time. Default 4. */
  readonly maxInFlight?: number;
  /** After this time a batch in progress no longer delays the next one. In milliseconds, default 20. */
  readonly patienceMs?: number;
  /**
   * True: an item whose row is locked leaves its batch, and the work must not wait for locks longer than its attempt allows.
   * Default false: the work of a single item waits for locks by itself.
   */
  readonly leavesLocked?: boolean;
}

/** The result of a batch's work for an item that it has left out because a row was locked. */
export const LOCKED: unique symbol = Symbol('locked');

type Attempt = Required<Omit<LimitedTry, 'lockMs'>> & Pick<LimitedTry, 'lockMs'>;

type Run<I, O> = (inputs: readonly I[], attempt: Attempt) => Promise<readonly (O | typeof LOCKED)[]>;

/** The first try of a batch that leaves out items whose rows are locked. */
const FIRST: Attempt = { isRepeated: false, isPatient: false, leavesLocked: true };
/** A further try of several items. It skips locked rows, and waits briefly for the few locks that it cannot skip. */
const PROBE: Attempt = { isRepeated: true, isPatient: false, leavesLocked: true, lockMs: 50 };
/** The try of one item that waits for its lock in line with other sessions. */
const IN_LINE = { isRepeated: true, isPatient: false, leavesLocked: false } as const;
const IN_LINE_MS = 200;
/** How long such an item is retried: longer than the server keeps the locks of a stopped process. */
export const LOCK_PATIENCE_MS = 15_000;

/** Whether a limit of the connection has ended the work, so that it may be retried. */
const isPassingLimit = (error: unknown): boolean =>
  isOverRowLimit(error) && isTransient(toDatabaseError(error));

/** Whether a lock was not free in time. */
export const isLockTimeout = (error: unknown): boolean => sqlStateOf(error) === '55P03';

const stillLocked = (): unknown =>
  toDatabaseError(
    Object.assign(new Error('another session has locked a row that this work needs'), { code: '55P03' }),
  );

/** The outcome of an item that was tried outside the batches. */
interface Tried<O> {
  readonly output: O | typeof LOCKED;
}

/** The state of a batch that is tried, or of a part of a failed batch. */
interface Part {
  readonly isRepeated: boolean;
  /** When the batch was first tried. */
  readonly startedAt: number;
}

/**
 * Gathers calls into batches, in a window that adapts by itself. An item that arrives while no batch is in progress starts at
 * once. Items that arrive meanwhile form the next batch, which starts when the previous batch is done. The slower the database,
 * the larger the batches and the fewer the commits. A full batch starts without waiting, as does a batch whose predecessor takes
 * too long (for example because it waits for a lock).
 *
 * A failed batch is split in halves, which run at the same time, until the poison item fails alone. After a slow failure (a
 * locked row, a statement that exceeds its time limit) halves would repeat the delay, so each item is tried alone at once. One
 * row therefore delays the others of its batch once, by one limit of the connection.
 *
 * With `leavesLocked` the work leaves out items whose rows are locked (`LOCKED`), and a batch that a lock has stopped is tried
 * once more in this way. Left-out items are retried outside the batches, with pauses: all of them together, in one try that skips
 * locked rows. One of them at a time also waits for its lock in line, since a row that is locked again and again is hardly ever
 * found free. An item therefore waits only for its own lock, and locks hold at most two connections.
 *
 * When the server is away, no item is at fault, and all items fail together.
 */
export class Batcher<I, O> {
  readonly #run: Run<I, O>;
  readonly #maxItems: number;
  readonly #maxInFlight: number;
  readonly #patienceMs: number;
  /** Retries the items that have left their batches. */
  readonly #beside: Batcher<I, Tried<O>> | undefined;
  /** True while one of these items waits for its lock in line. */
  #hasWaiter = false;
  #waiting: Item<I, O>[] = [];
  #inFlight = 0;
  #isScheduled = false;
  #patience: NodeJS.Timeout | undefined;

  /** @param run - For repeated items it must look for rows that an earlier try of a larger batch may have left. */
  constructor(run: Run<I, O>, options: BatcherOptions = {}) {
    this.#run = run;
    this.#maxItems = options.maxItems ?? 64;
    this.#maxInFlight = options.maxInFlight ?? 4;
    this.#patienceMs = options.patienceMs ?? 20;
    if (options.leavesLocked !== true) return;
    const probe = async (inputs: readonly I[]) =>
      (await run(inputs, PROBE)).map((output): Tried<O> => ({ output }));
    this.#beside = new Batcher(probe, { maxItems: this.#maxItems, maxInFlight: 1 });
  }

  /**
   * @param options.isRepeated - An earlier try of the item may have been committed. Default false.
   * @param options.lockedMs - About how long an item whose row is locked is retried, at least once. Called at each try. Default
   * 15,000.
   */
  add(
    input: I,
    options: Pick<LimitedTry, 'isRepeated'> & { readonly lockedMs?: () => number } = {},
  ): Promise<O> {
    const { isRepeated = false, lockedMs = () => LOCK_PATIENCE_MS } = options;
    return new Promise<O>((resolve, reject) => {
      this.#waiting.push({ input, isRepeated, lockedMs, resolve, reject });
      // Items of the same moment join the batch; an idle system waits no longer than that.
      // A batch does not belong to the caller that happens to start it, and neither do the batches that follow.
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
    void this.#settle(batch, { isRepeated, startedAt: performance.now() }).finally(() => {
      this.#inFlight--;
      // A busy batcher waits one turn of the event loop: callers that were just answered may add further items.
      this.#schedule(setImmediate);
    });
  }

  async #settle(batch: readonly Item<I, O>[], part: Part): Promise<void> {
    const [item] = batch;
    const isAlone = batch.length === 1;
    try {
      const outputs = await this.#run(
        batch.map((item) => item.input),
        this.#attemptOf(part, isAlone),
      );
      batch.forEach((item, index) => {
        const output = outputs[index];
        if (output === LOCKED) this.#leave(item, part.startedAt);
        else if (output === undefined) item.reject(new Error('a batch returned fewer results than items'));
        else item.resolve(output);
      });
    } catch (error) {
      if (this.#beside !== undefined && !part.isRepeated && isLockTimeout(error)) {
        await this.#settle(batch, { ...part, isRepeated: true });
        return;
      }
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

  #attemptOf({ isRepeated }: Part, isAlone: boolean): Attempt {
    if (this.#beside !== undefined) return isRepeated ? PROBE : FIRST;
    return { isRepeated, isPatient: isAlone, leavesLocked: false };
  }

  /** The lock may be short, so the first try outside the batches follows at once. */
  #leave(item: Item<I, O>, startedAt: number): void {
    if (this.#beside === undefined) item.reject(new Error('a batch has left out an item that it must keep'));
    else void this.#tryBeside(item, this.#beside, { startedAt, pauses: 0 });
  }

  /** Retries an item that has left its batch: for a while if its row is locked, else once. Never throws. */
  async #tryBeside(
    item: Item<I, O>,
    beside: Batcher<I, Tried<O>>,
    { startedAt, pauses }: { readonly startedAt: number; readonly pauses: number },
  ): Promise<void> {
    const leftMs = (): number => item.lockedMs() - (performance.now() - startedAt);
    for (let n = pauses; ; n += 1) {
      if (n > 0) await new Promise((resolve) => setTimeout(resolve, Math.min(50 * 2 ** n, 500)));
      let failure: unknown;
      try {
        const { output } = await beside.add(item.input);
        const waited =
          output === LOCKED && leftMs() > 0 ? await this.#waitInLine(item.input, leftMs()) : output;
        if (waited !== LOCKED) {
          item.resolve(waited);
          return;
        }
        failure = stillLocked();
      } catch (error) {
        failure = error;
      }
      if (isLockTimeout(failure) && leftMs() > 0) continue;
      item.reject(toDatabaseError(failure));
      return;
    }
  }

  /** Waits for the lock of an item, unless another item waits for its own. */
  async #waitInLine(input: I, leftMs: number): Promise<O | typeof LOCKED> {
    if (this.#hasWaiter) return LOCKED;
    this.#hasWaiter = true;
    try {
      const [output] = await this.#run([input], { ...IN_LINE, lockMs: Math.min(IN_LINE_MS, leftMs) });
      if (output === undefined) throw new Error('a batch returned fewer results than items');
      return output;
    } finally {
      this.#hasWaiter = false;
    }
  }

  /** Runs the parts of a failed batch, a few at the same time. */
  async #settleParts(batch: readonly Item<I, O>[], size: number, startedAt: number): Promise<void> {
    const starts = Array.from({ length: Math.ceil(batch.length / size) }, (_none, n) => n * size).values();
    const settleNext = async (): Promise<void> => {
      for (const start of starts)
        await this.#settle(batch.slice(start, start + size), { isRepeated: true, startedAt });
    };
    await Promise.all(Array.from({ length: this.#maxInFlight }, settleNext));
  }
}
