/**
 * The transaction of a caller, in which the kernel writes a submission or a packing.
 *
 * X1  It is the caller's: the kernel neither commits it nor ends its connection. A savepoint undoes what a refusal has left.
 * X2  Nothing is announced before its end. The end is seen on the connection: the server says with each answer whether a transaction
 *     is open. What is then in the rows was committed; where the end is not seen, the sweep finds the turns.
 * X3  One submission at a time: of two that are mixed on one connection the savepoint of one would undo the other.
 */
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

/** A drizzle transaction of node-postgres, as far as it is needed. */
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
 * What runs the statements of `tx`.
 *
 * @throws KernelError `bad_request` for a pool, whose statements belong to no transaction, and for anything else.
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
  select /* caller-transaction.look */ current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as read_only,
    current_setting('lock_timeout') as lock_timeout, to_regclass('boxcar.operations') is not null as has_kernel`);
const LIMIT_LOCKS = statement(
  `select /* caller-transaction.limit_locks */ set_config('lock_timeout', $1, true)`,
);

/** Connections, or clients that hide theirs, on which a submission is under way. */
const busy = new WeakSet<object>();

const connectionOf = (db: Queryable): object =>
  'connection' in db && typeof db.connection === 'object' && db.connection !== null ? db.connection : db;

/** Statements of a caller's transaction, between a savepoint and its release. */
export class CallerTransaction {
  readonly db: Queryable;
  readonly #lockTimeout: string;

  private constructor(db: Queryable, lockTimeout: string) {
    this.db = db;
    this.#lockTimeout = lockTimeout;
  }

  /**
   * @param options.lockMs - How long a statement waits for a lock, unless the caller has set a limit.
   * @throws KernelError `bad_request` when there is no transaction, one in which the kernel cannot write, or one in which a submission is
   * under way.
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

  /** Keeps what was written, until the caller commits. */
  async keep(): Promise<void> {
    try {
      await run(this.db, LIMIT_LOCKS, [this.#lockTimeout]);
      await this.db.query({ text: 'release savepoint boxcar_submission' });
    } finally {
      busy.delete(connectionOf(this.db));
    }
  }

  /** Undoes what was written; the caller can go on in its transaction. */
  async undo(): Promise<void> {
    try {
      await this.db.query({ text: 'rollback to savepoint boxcar_submission' });
      await this.db.query({ text: 'release savepoint boxcar_submission' });
    } finally {
      busy.delete(connectionOf(this.db));
    }
  }
}

/** By connection: what is done at the end of its transaction. */
const waiting = new WeakMap<object, (() => void)[]>();

/** Calls `work` once the transaction has ended or its connection is lost. Does nothing where a client does not show that. */
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
