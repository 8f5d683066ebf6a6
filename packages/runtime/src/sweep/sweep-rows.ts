/**
 * Handles the rows of a sweep: all together, and if that fails one by one. A locked row is left to the next pass, and a
 * row that cannot be handled is set aside.
 */
import { type ProjectId, type Ring, type TurnId, tryParseId } from '@boxcar/kernel';
import {
  type EndableTurn,
  isServerTrouble,
  type LockLimit,
  noteSweepFailure,
  type SweepKind,
  sqlStateOf,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { type EndSubtrees, endAndAnnounce, endWaiting, type RowHandling, toCause } from '../end/index.js';
import { RowPatience } from '../lib/index.js';

const isLocked = (error: unknown): boolean => sqlStateOf(error) === '55P03';

export interface Clock {
  readonly now?: Date;
  readonly limit: number;
}

/** The objects that the parts of a sweep share. */
export interface SweepContext {
  readonly runtime: RuntimeCore;
  readonly rows: SweepRows;
  /** Whether the doorbell can be reached. */
  readonly queue: { readonly isDoorbellUnavailable: boolean; markDoorbellUnavailable(): void };
}

export class SweepRows {
  readonly #runtime: RuntimeCore;
  readonly #patience = new RowPatience();

  constructor(runtime: RuntimeCore) {
    this.#runtime = runtime;
  }

  /** Call at the beginning of a pass. */
  renew(): void {
    this.#patience.renew();
  }

  get lockMs(): number {
    return this.#patience.lockMs;
  }

  /**
   * Handles all rows at once, and if that fails one by one, so that a row that cannot be handled does not delay the
   * others. Such a row is noted, and left out of the searches for a while.
   */
  async orAlone<R extends { readonly turn_id: TurnId; readonly project_id: ProjectId | null }>(
    kind: SweepKind,
    clock: Clock,
    work: {
      readonly all: () => Promise<readonly Ring[]>;
      readonly find: () => Promise<readonly R[]>;
      readonly alone: (row: R, limit: LockLimit) => Promise<readonly Ring[]>;
    },
  ): Promise<readonly Ring[]> {
    try {
      return await work.all();
    } catch (error) {
      if (isServerTrouble(error)) throw error;
    }
    const rings: Ring[] = [];
    await this.each(kind, clock, {
      rows: await work.find(),
      key: 'turn_id',
      work: async (row, limit) => void rings.push(...(await work.alone(row, limit))),
    });
    return rings;
  }

  /**
   * Notes a row that could not be handled. A failure that is not caused by the row, such as a lost connection, is
   * thrown.
   */
  async #setAside(
    row: { readonly kind: SweepKind; readonly rowId: string; readonly projectId: ProjectId | null },
    failure: unknown,
    clock: Pick<Clock, 'now'>,
  ): Promise<void> {
    if (isServerTrouble(failure)) throw failure;
    const error = toCause(failure);
    const { attempts, isDead } = await noteSweepFailure(
      this.#runtime.pool,
      { ...row, error },
      { now: clock.now },
    );
    this.#runtime.log('error', isDead ? 'sweep.row_given_up' : 'sweep.row_failed', {
      part: row.kind,
      row_id: row.rowId,
      attempts,
      error,
    });
    // Callers no longer need to wait for the end of this turn or batch.
    const id = tryParseId<'turn' | 'batch'>(row.rowId);
    if (!isDead || id === undefined) return;
    this.#runtime.watcher.hint([id]);
    this.#runtime.wakeDoorJobsSoon([id]);
  }

  #logLocked(part: SweepKind, rowId: string): void {
    this.#runtime.log('warn', 'sweep.row_locked', { part, row_id: rowId });
  }

  /**
   * Handles the rows in sequence. A locked row is left to the next pass. A row that cannot be handled is set aside.
   */
  each<K extends string, R extends Readonly<Record<K, string>> & { readonly project_id: ProjectId | null }>(
    kind: SweepKind,
    clock: Pick<Clock, 'now'>,
    of: {
      readonly rows: readonly R[];
      readonly key: K;
      readonly work: (row: R, limit: LockLimit) => Promise<void>;
    },
  ): Promise<void> {
    return this.#patience.each(of.rows, {
      idOf: (row) => `${kind}:${row[of.key]}`,
      onLocked: (row) => this.#logLocked(kind, row[of.key]),
      work: async (row, lockMs) => {
        try {
          await of.work(row, { lockMs });
        } catch (failure) {
          // A lock is not a defect of the row, and does not affect the other rows.
          if (isLocked(failure)) return false;
          await this.#setAside({ kind, rowId: row[of.key], projectId: row.project_id }, failure, clock);
        }
        return true;
      },
    });
  }

  /** Ends waiting turns, each in a transaction of its own. */
  async end(
    kind: SweepKind,
    turns: readonly EndableTurn[],
    { status, error, ...clock }: Clock & Pick<EndSubtrees, 'status' | 'error'>,
  ): Promise<void> {
    await this.each(kind, clock, {
      rows: turns,
      key: 'turn_id',
      work: async (turn, limit) => {
        await endAndAnnounce(this.#runtime, limit, (tx) => endWaiting(tx, turn, { status, error }));
      },
    });
  }

  handling(clock: Clock): RowHandling {
    return { each: (kind, rows, work) => this.each(kind, clock, { rows, key: 'id', work }) };
  }
}
