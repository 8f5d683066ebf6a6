import { KernelError } from '@boxcar/kernel';
import {
  type CallWait,
  checkOut,
  emptySubmission,
  type Fence,
  type NewOperation,
  type Queryable,
  type Submission,
  type SubmissionItem,
  type SubmissionResult,
  type Tx,
  toDatabaseError,
  writeSubmission,
} from '@boxcar/store';
import type pg from 'pg';

/**
 * The effects of one primitive, written as one.
 *
 * A primitive that only gathers rows costs a single statement, which is its own transaction. The first statement a handler
 * runs on `tx` opens a real one: what was gathered so far is written into it first, so the handler can read it back.
 */
export class UnitOfWork {
  readonly submission: Submission = emptySubmission();
  readonly #pool: pg.Pool;
  /** Set by the first statement, so that statements that come together share one transaction. */
  #client: Promise<pg.PoolClient> | undefined;
  #last: Promise<unknown> = Promise.resolve();
  #isOver = false;
  readonly tx: Tx;
  /** The transaction once there is something to see in it, else the pool. */
  readonly db: Queryable;

  readonly #write: (item: SubmissionItem) => Promise<SubmissionResult>;

  /** @param write - Writes what needs no transaction around it; may gather several into one statement. */
  constructor(pool: pg.Pool, write: (item: SubmissionItem) => Promise<SubmissionResult>) {
    this.#pool = pool;
    this.#write = write;
    this.tx = {
      query: <R extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<R>> => {
        // One after the other: a connection takes one statement at a time.
        const result = this.#last.then(() => this.#query<R>(config));
        this.#last = result.catch(() => undefined);
        return result;
      },
    };
    this.db = { query: (config) => (this.isEmpty ? pool.query(config) : this.tx.query(config)) };
  }

  /** True when nothing was gathered and no transaction is open. */
  get isEmpty(): boolean {
    return (
      this.#client === undefined &&
      Object.values(this.submission).every((rows: readonly unknown[]) => rows.length === 0)
    );
  }

  async #query<R extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<R>> {
    const client = await this.#open();
    await this.#flush(client);
    try {
      return await client.query<R>(config);
    } catch (error) {
      // Only the loss of the connection is ours to name: what else the handler's own statement met is the handler's.
      const named = toDatabaseError(error);
      throw named instanceof KernelError && named.code === 'database_unavailable' ? named : error;
    }
  }

  async #open(): Promise<pg.PoolClient> {
    // A statement that a handler forgot to wait for must not open a transaction that nobody ends.
    if (this.#isOver)
      throw new KernelError('internal_error', { message: 'The transaction of this primitive is over.' });
    this.#client ??= this.#begin();
    return this.#client;
  }

  async #begin(): Promise<pg.PoolClient> {
    let client: pg.PoolClient | undefined;
    try {
      client = await checkOut(this.#pool);
      // Travels with the first statement; should it fail, that one fails too.
      client.query('begin').catch(() => undefined);
      return client;
    } catch (error) {
      this.#client = undefined;
      client?.release(true);
      throw toDatabaseError(error);
    }
  }

  /** Writes cards, boxes, agents and grants gathered so far; turns and batches wait for the end, where they are decided. */
  async #flush(client: pg.PoolClient): Promise<void> {
    const { cards, contextBoxes, tapes, agents, grants } = this.submission;
    if (cards.length + contextBoxes.length + tapes.length + agents.length + grants.length === 0) return;
    // Taken out before the write: what is gathered meanwhile belongs to the next one.
    await writeSubmission(client, {
      cards: cards.splice(0),
      contextBoxes: contextBoxes.splice(0),
      tapes: tapes.splice(0),
      agents: agents.splice(0),
      grants: grants.splice(0),
      runs: [],
      budgets: [],
      turns: [],
      batches: [],
    });
  }

  /**
   * Writes everything under the operation's key and the fence; `then` runs in the same transaction after an acceptance.
   * A refusal undoes all of it.
   */
  async commit(
    options: { operation: NewOperation; fence?: Fence; wait?: CallWait },
    then?: (tx: Tx) => Promise<void>,
  ): Promise<SubmissionResult> {
    if (this.#client === undefined && then === undefined) {
      this.#isOver = true;
      return this.#write({ submission: this.submission, ...options });
    }
    const client = await this.#open();
    this.#isOver = true;
    const result = await writeSubmission(client, this.submission, options);
    try {
      if (result.outcome === 'accepted') {
        await then?.(client);
        await client.query('commit');
      } else {
        await client.query('rollback');
      }
    } catch (error) {
      throw toDatabaseError(error);
    }
    this.#client = undefined;
    client.release();
    return result;
  }

  /** Undoes what was begun. Safe to call after `commit`. */
  async abandon(): Promise<void> {
    this.#isOver = true;
    const opening = this.#client;
    if (opening === undefined) return;
    this.#client = undefined;
    let client: pg.PoolClient;
    try {
      client = await opening;
    } catch {
      return;
    }
    try {
      // What is under way on the connection still: released before its next statement, it would run that on its own.
      await this.#last;
      await client.query('rollback');
      client.release();
    } catch (error) {
      client.release(error instanceof Error ? error : new Error(String(error)));
    }
  }
}
