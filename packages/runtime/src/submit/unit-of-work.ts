import { KernelError } from '@boxcar/kernel';
import {
  asOutside,
  beginOn,
  type CallWait,
  type ConnectionLimits,
  checkOut,
  commitWatched,
  type Fence,
  type HandlerScope,
  handlerScope,
  limitsOn,
  type NewOperation,
  outsideHandlers,
  type Queryable,
  queryOutside,
  refuseNested,
  type SubmissionItem,
  type SubmissionResult,
  sqlStateOf,
  type Tx,
  toConnectionError,
  toDatabaseError,
  type Watched,
  watchFailures,
  writeSubmission,
} from '@boxcar/store';
import type pg from 'pg';
import { AwakeClock, handlerSlots, type Slot } from '../lib/index.js';
import type { SubmissionDraft } from './draft.js';
import { isOver } from './pending-calls.js';

/** An open transaction. */
interface Open extends Watched {
  readonly client: pg.PoolClient;
  /**
   * The error to report when the handler is the cause: its transaction waited for something else, or its own limit has ended a
   * statement.
   */
  named(error: unknown, waitedMs?: number): unknown;
  /** Call after a statement has ended, when the handler continues. */
  rest(): void;
  release(error?: Error): void;
}

/** SQLSTATE: the server has ended a transaction that waited for its process. */
const IDLE = '25P03';
/** SQLSTATE: a lock was not free in time, or not at once. */
const NO_LOCK = '55P03';
/** SQLSTATE: a statement took too long, or a user has canceled it. */
const CANCELED = '57014';
/** This part of a limit counts as the whole limit, because clocks differ. */
const ALMOST = 0.9;
const SETS_LIMITS = /\b(lock|statement|transaction)_timeout\b/i;

interface UnitOptions {
  readonly pool: pg.Pool;
  readonly primitive: string;
  /** The rows to write. The handler's tools get the same draft and add to it. */
  readonly draft: SubmissionDraft;
  /** True when the handler is part of the kernel: such a handler waits only for the database while its transaction is open. */
  readonly isOwn: boolean;
  /** Writes a submission that needs no surrounding transaction; several may be gathered into one statement. */
  readonly write: (item: SubmissionItem) => Promise<SubmissionResult>;
  /** The transaction of the caller, in which all reads and writes are made. This unit does not end it. */
  readonly outer?: Tx | undefined;
}

/**
 * The transaction of one primitive, which writes the primitive's draft as a whole.
 *
 * A primitive that only gathers rows costs a single statement, which is its own transaction. The first statement that a handler
 * runs on `tx` opens a real transaction. The rows gathered so far are written into it first, so that the handler can read them.
 */
export class UnitOfWork {
  readonly #draft: SubmissionDraft;
  readonly #pool: pg.Pool;
  readonly #isOwn: boolean;
  /** Set by the first statement, so that concurrent statements share one transaction. */
  #opening: Promise<Open> | undefined;
  #opened: Open | undefined;
  #slot: Slot | undefined;
  /** The limits of the pool when the transaction began. */
  #limits: ConnectionLimits | undefined;
  #last: Promise<unknown> = Promise.resolve();
  #isRunning = false;
  #isOver = false;
  #isCut = false;
  /** True when the handler has changed the limits of its transaction. */
  #hasOwnLimits = false;
  readonly tx: Tx;
  /** The transaction while it has rows to show, otherwise the pool. */
  readonly db: Queryable;
  /** The scope in which the handler runs. */
  readonly scope: HandlerScope;
  readonly #write: UnitOptions['write'];
  readonly #outer: Tx | undefined;

  constructor({ pool, primitive, draft, isOwn, write, outer }: UnitOptions) {
    this.#draft = draft;
    this.#outer = outer;
    this.#pool = pool;
    this.#isOwn = isOwn;
    this.#write = write;
    this.scope = handlerScope(pool, primitive);
    this.tx = {
      query: <R extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<R>> => {
        // The scope is open from this call on, and not only when the transaction has its connection.
        this.scope.isOpen = !this.#isOver && outer === undefined;
        // Statements run one after another: a connection takes one statement at a time.
        const result = this.#last.then(() => this.#query<R>(config));
        this.#last = result.catch(() => undefined);
        return result;
      },
    };
    this.db = {
      query: <R extends pg.QueryResultRow>(config: pg.QueryConfig) =>
        this.isEmpty && outer === undefined ? queryOutside<R>(pool, config) : this.tx.query<R>(config),
    };
  }

  /** True when nothing was gathered and no transaction is open. */
  get isEmpty(): boolean {
    return !this.scope.isOpen && this.#opening === undefined && this.#draft.isEmpty;
  }

  async #query<R extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<R>> {
    if (this.#outer !== undefined) {
      if (this.#isOver) throw isOver();
      await this.#flush(this.#outer);
      return this.#outer.query<R>(config);
    }
    const open = await this.#open();
    this.#isRunning = true;
    this.#hasOwnLimits ||= SETS_LIMITS.test(typeof config === 'string' ? config : config.text);
    const startedAt = performance.now();
    try {
      await this.#flush(open.tx);
      return await open.tx.query<R>(config);
    } catch (thrown) {
      throw await toConnectionError(open.named(thrown, performance.now() - startedAt), open.client);
    } finally {
      this.#isRunning = false;
      open.rest();
    }
  }

  async #open(): Promise<Open> {
    // A statement that a handler did not await must not open a transaction that nothing ends.
    if (this.#isOver) throw isOver();
    this.#opening ??= this.#begin({ isOutside: !this.#isOwn });
    return this.#opening;
  }

  /**
   * @param options.isOutside - True for an outside handler, which holds the connection between its statements and may wait for
   * something else.
   */
  async #begin({ isOutside }: { readonly isOutside: boolean }): Promise<Open> {
    let client: pg.PoolClient | undefined;
    try {
      refuseNested(this.#pool, { scope: this.scope.outer });
      if (isOutside) {
        this.#slot = handlerSlots(this.#pool).take(this.scope.primitive);
        await this.#slot.granted;
      }
      client = await outsideHandlers(() => checkOut(this.#pool));
      this.#limits = limitsOn(this.#pool);
      if (this.#isCut) throw new Error('the handler was given up');
      // Sent together with the first statement; if it fails, that statement fails too.
      client.query(beginOn(this.#pool)).catch(() => undefined);
      this.#opened = this.#watch(
        client,
        isOutside ? new AwakeClock(limitsOn(this.#pool).idleMs / 4) : undefined,
      );
      return this.#opened;
    } catch (error) {
      this.#opening = undefined;
      this.scope.isOpen = false;
      // Nothing was sent on this connection.
      client?.release();
      this.#slot?.leave();
      throw toDatabaseError(error);
    }
  }

  /** @param clock - Runs while the handler holds the connection. */
  #watch(client: pg.PoolClient, clock: AwakeClock | undefined): Open {
    const watched = watchFailures(client);
    let end: Error | undefined;
    const onEnd = (error: Error): void => {
      end ??= error;
    };
    client.on('error', onEnd);
    return {
      client,
      ...watched,
      named: (thrown, waitedMs) => {
        const error = watched.causeOf(thrown);
        if (this.#isOwnLimit(error, waitedMs))
          return asOutside(error instanceof KernelError ? error.cause : error);
        // A process that was paused in the meantime retries. A handler whose transaction waited for something else would do so
        // again.
        // again.
        if ((sqlStateOf(error) !== IDLE && sqlStateOf(end) !== IDLE) || clock?.wasAwake !== true)
          return error;
        const { primitive } = this.scope;
        const { idleMs } = limitsOn(this.#pool);
        return new KernelError('transaction_idle', {
          message: `The handler of ${primitive} waited for something else inside its transaction for longer than ${idleMs} ms, and Postgres has ended it.`,
          details: { primitive, idle_limit_ms: idleMs },
          cause: error,
        });
      },
      rest: () => clock?.restart(),
      release: (error) => {
        clock?.stop();
        client.off('error', onEnd);
        client.release(error);
        this.#slot?.leave();
      },
    };
  }

  /**
   * Whether a statement was ended by a limit or `nowait` of the handler, or by a user who canceled it. Only a limit of the pool
   * is a reason to retry.
   */
  #isOwnLimit(error: unknown, waitedMs = Number.POSITIVE_INFINITY): boolean {
    const state = sqlStateOf(error);
    if (state !== NO_LOCK && state !== CANCELED) return false;
    const { lockMs, statementMs } = this.#limits ?? limitsOn(this.#pool);
    return this.#hasOwnLimits || waitedMs < (state === NO_LOCK ? lockMs : statementMs) * ALMOST;
  }

  /** Writes the rows that the next statement must see. */
  async #flush(tx: Tx): Promise<void> {
    const rows = this.#draft.takeEarly();
    if (rows !== undefined) await writeSubmission(tx, rows);
  }

  /**
   * Writes everything under the operation's key and the fence. After an acceptance, `then` runs in the same transaction. A
   * refusal undoes everything.
   */
  async commit(
    options: { operation: NewOperation; fence?: Fence; wait?: CallWait },
    then?: (tx: Tx) => Promise<void>,
  ): Promise<SubmissionResult> {
    const { refusal, rows } = this.#draft;
    if (refusal !== undefined) throw refusal;
    if (this.#outer !== undefined) {
      this.#isOver = true;
      const written = await writeSubmission(this.#outer, rows, options);
      if (written.outcome === 'accepted') await then?.(this.#outer);
      return written;
    }
    if (this.#opening === undefined && then === undefined) {
      this.#isOver = true;
      return this.#write({ submission: rows, ...options });
    }
    this.#opening ??= this.#begin({ isOutside: false });
    const open = await this.#opening;
    const { client, tx } = open;
    this.#isOver = true;
    this.scope.isOpen = false;
    let result: SubmissionResult;
    try {
      result = await writeSubmission(tx, rows, options);
      if (result.outcome === 'accepted') {
        await then?.(tx);
        await commitWatched(client, open);
      } else {
        await client.query('rollback');
      }
    } catch (error) {
      throw toDatabaseError(open.named(error));
    }
    this.#opening = undefined;
    open.release();
    return result;
  }

  /**
   * Undoes the transaction. Safe to call after `commit`.
   *
   * @param options.isCut - Does not wait for a running statement: the connection is closed with it.
   */
  async abandon({ isCut = false }: { readonly isCut?: boolean } = {}): Promise<void> {
    this.#isOver = true;
    this.#isCut ||= isCut;
    this.scope.isOpen = false;
    const opening = this.#opening;
    if (opening === undefined) return;
    this.#opening = undefined;
    // If `#begin` still waits for a slot or a connection, it releases both itself.
    opening.catch(() => undefined);
    if (this.#opened === undefined) this.#slot?.leave();
    if (isCut && this.#opened === undefined) return;
    let open: Open;
    try {
      open = await opening;
    } catch {
      return;
    }
    if (isCut && this.#isRunning) {
      open.client.connection.stream.destroy();
      open.release(new Error('the handler was given up during a statement'));
      return;
    }
    try {
      // A statement may still be running on the connection. If the connection were released before the next statement, that
      // statement would run outside the transaction.
      await this.#last;
      await open.client.query('rollback');
      open.release();
    } catch (error) {
      open.release(error instanceof Error ? error : new Error(String(error)));
    }
  }
}
