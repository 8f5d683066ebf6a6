/**
 * The transaction of a caller, in which the kernel writes a submission or a packing.
 *
 * X1  The transaction belongs to the caller: the kernel neither commits it nor ends its connection. A savepoint undoes the writes of a
 *     refused submission.
 * X2  Nothing is announced before the transaction ends. The kernel detects the end on the connection: with each answer the server tells
 *     whether a transaction is open. Rows that exist after the end were committed. If the end is not detected, the sweep finds the
 *     turns.
 * X3  Only one submission at a time: when two submissions are mixed on one connection, the savepoint of one would undo the other.
 */
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

/** The parts of a node-postgres drizzle transaction that are needed here. */
interface DrizzleTransaction {
  readonly _: { readonly session: unknown };
}

/** A pg client, or a drizzle transaction of node-postgres, inside a transaction of the caller. */
export type CallerTx = Queryable | DrizzleTransaction;

const isQueryable = (value: unknown): value is Queryable =>
  typeof value === 'object' && value !== null && 'query' in value && typeof value.query === 'function';

const refuse = (why: string): KernelError =>
  new KernelError('bad_request', { message: `tx: ${why}.`, details: { field: 'tx' } });

/**
 * The object that runs the statements of `tx`.
 *
 * @throws KernelError `bad_request` for a pool, whose statements belong to no transaction, and for any other unsuitable value.
 */
export function toQueryable(tx: CallerTx): Queryable {
  const session =
    typeof tx === 'object' && tx !== null && '_' in tx && !isQueryable(tx) ? tx._.session : undefined;
  const client: unknown =
    typeof session === 'object' && session !== null && 'client' in session ? session.client : tx;
  if (client instanceof pg.Pool || !isQueryable(client))
    throw refuse('must be a pg client or a drizzle node-postgres transaction, inside a transaction');
  return client;
}

const LOOK = statement(`
  select /* caller-transaction.look */
    current_setting('transaction_isolation') as isolation,
    current_setting('transaction_read_only') as read_only,
    current_setting('lock_timeout') as lock_timeout,
    to_regclass('boxcar.operations') is not null as has_kernel`);
const LIMIT_LOCKS = statement(
  `select /* caller-transaction.limit_locks */ set_config('lock_timeout', $1, true)`,
);

/** Connections with a submission in progress. Clients that hide their connection represent it. */
const busy = new WeakSet<object>();

const connectionOf = (db: Queryable): object =>
  'connection' in db && typeof db.connection === 'object' && db.connection !== null ? db.connection : db;

/** The statements of a caller's transaction between a savepoint and its release. */
export class CallerTransaction {
  readonly db: Queryable;
  readonly #lockTimeout: string;

  private constructor(db: Queryable, lockTimeout: string) {
    this.db = db;
    this.#lockTimeout = lockTimeout;
  }

  /**
   * @param options.lockMs - The longest wait of a statement for a lock, unless the caller has set a limit.
   * @throws KernelError `bad_request` when there is no transaction, when the kernel cannot write in it, or when a submission is already
   *   in progress in it.
   */
  static async enter(tx: CallerTx, options: { readonly lockMs: number }): Promise<CallerTransaction> {
    const db = toQueryable(tx);
    const connection = connectionOf(db);
    if (busy.has(connection))
      throw refuse('has a submission under way; await each submission before the next one');
    busy.add(connection);
    try {
      return await CallerTransaction.#begin(db, options);
    } catch (error) {
      busy.delete(connection);
      throw error;
    }
  }

  static async #begin(db: Queryable, { lockMs }: { readonly lockMs: number }): Promise<CallerTransaction> {
    try {
      await db.query({ text: 'savepoint boxcar_submission' });
    } catch (error) {
      if (error instanceof pg.DatabaseError && error.code === '25P01')
        throw refuse('is not inside a transaction; send begin before, and commit after');
      throw error;
    }
    const [seen] = await run<{
      isolation: string;
      read_only: string;
      lock_timeout: string;
      has_kernel: boolean;
    }>(db, LOOK, []);
    const own = new CallerTransaction(db, seen?.lock_timeout ?? '0');
    try {
      if (seen?.has_kernel !== true) throw refuse('is a transaction of a database without the schema boxcar');
      if (seen.read_only === 'on') throw refuse('is a read only transaction');
      if (seen.isolation !== 'read committed')
        throw refuse(
          `has the isolation level '${seen.isolation}'; a submission reads the newest rows under its locks and needs 'read committed'`,
        );
      if (seen.lock_timeout === '0') await run(db, LIMIT_LOCKS, [`${lockMs}ms`]);
    } catch (error) {
      await own.undo();
      throw error;
    }
    return own;
  }

  /** Keeps the writes until the caller commits. */
  async keep(): Promise<void> {
    try {
      await run(this.db, LIMIT_LOCKS, [this.#lockTimeout]);
      await this.db.query({ text: 'release savepoint boxcar_submission' });
    } finally {
      busy.delete(connectionOf(this.db));
    }
  }

  /** Undoes the writes. The caller can continue in its transaction. */
  async undo(): Promise<void> {
    try {
      await this.db.query({ text: 'rollback to savepoint boxcar_submission' });
      await this.db.query({ text: 'release savepoint boxcar_submission' });
    } finally {
      busy.delete(connectionOf(this.db));
    }
  }
}

/** The callbacks for the end of a transaction, by connection. */
const waiting = new WeakMap<object, (() => void)[]>();

/** Calls `work` when the transaction has ended or its connection is lost. Has no effect if the client does not show its connection. */
export function afterTransaction(db: Queryable, work: () => void): void {
  const connection = connectionOf(db);
  if (connection === db || !('on' in connection)) return;
  const emitter = connection as NodeJS.EventEmitter;
  const known = waiting.get(emitter);
  if (known !== undefined) {
    known.push(work);
    return;
  }
  const works = [work];
  waiting.set(emitter, works);
  const end = (): void => {
    emitter.off('readyForQuery', onReady);
    emitter.off('end', end);
    waiting.delete(emitter);
    for (const one of works) one();
  };
  const onReady = ({ status }: { readonly status?: string }): void => {
    if (status === 'I') end();
  };
  emitter.on('readyForQuery', onReady);
  emitter.on('end', end);
}
