/**
 * Handles the rows of a sweep one after another. One pass waits about a second for all locks together. A row that stays locked is
 * left to the next pass, which handles it after the others. Locked rows therefore never block a sweep, however many there are.
 */
export interface PatienceOptions {
  /** How long one row may wait for its locks. Default 200. */
  readonly rowMs?: number;
  /** How long all rows of a pass together may wait for locks. After that, a locked row is left at once. Default 1,000. */
  readonly passMs?: number;
}

export class RowPatience {
  readonly #rowMs: number;
  readonly #passMs: number;
  #leftMs: number;
  /** Rows that were locked in this pass; `#lockedBefore` has the rows of the previous pass. */
  #locked = new Set<string>();
  #lockedBefore: ReadonlySet<string> = new Set();

  constructor(options: PatienceOptions = {}) {
    this.#rowMs = options.rowMs ?? 200;
    this.#passMs = options.passMs ?? 1_000;
    this.#leftMs = this.#passMs;
  }

  /** Starts a pass. */
  renew(): void {
    this.#leftMs = this.#passMs;
    this.#lockedBefore = this.#locked;
    this.#locked = new Set();
  }

  /** How long the next row may wait for a lock. */
  get lockMs(): number {
    return Math.max(1, Math.min(this.#rowMs, this.#leftMs));
  }

  /**
   * @param handling.work - Handles a row and waits at most `lockMs` for a lock. False: the row was locked.
   * @param handling.onLocked - Called for a locked row that was not locked in the pass before.
   */
  async each<R>(
    rows: readonly R[],
    handling: {
      readonly idOf: (row: R) => string;
      readonly work: (row: R, lockMs: number) => Promise<boolean>;
      readonly onLocked: (row: R) => void;
    },
  ): Promise<void> {
    const { idOf, work, onLocked } = handling;
    const wasLocked = (row: R): boolean => this.#lockedBefore.has(idOf(row));
    for (const row of [...rows.filter((row) => !wasLocked(row)), ...rows.filter(wasLocked)]) {
      const startedAt = performance.now();
      if (await work(row, this.lockMs)) continue;
      this.#leftMs -= performance.now() - startedAt;
      this.#locked.add(idOf(row));
      if (!wasLocked(row)) onLocked(row);
    }
  }
}
