/**
 * The transaction of a caller, in which the kernel writes a submission or a packing.
 *
 * X1  It is the caller's: the kernel neither commits it nor ends its connection. A savepoint undoes what a refusal has left.
 * X2  Nothing is announced before its end. The end is seen on the connection: the server says with each answer whether a transaction
 *     is open. What is then in the rows was committed; where the end is not seen, the sweep finds the turns.
 */
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';
import { type Queryable, run, statement } from './db.js';

/** A drizzle transaction of node-postgres, as far as it is needed. */
interface DrizzleTransaction {
  readonly _: { readonly session: unknown };
}

/** A pg client, or a drizzle transaction of node-postgres, inside a transaction of the caller. */
export type CallerTx = Queryable | DrizzleTransaction;

const isQueryable = (value: unknown): value is Queryable =>
  typeof value === 'object' && value !== null && 'query' in value && typeof value.query === 'function';

const member = (value: unknown, name: string): unknown =>
  typeof value === 'object' && value !== null ? Reflect.get(value, name) : undefined;

const refuse = (why: string): KernelError =>
  new KernelError('bad_request', { message: `tx: ${why}.`, details: { field: 'tx' } });

/** @throws KernelError `bad_request` for a pool, whose statements belong to no transaction, and for anything else. */
function clientOf(tx: CallerTx): Queryable {
  const client = isQueryable(tx) ? tx : member(member(member(tx, '_'), 'session'), 'client');
  if (client instanceof pg.Pool || !isQueryable(client))
    throw refuse('must be a pg client or a drizzle node-postgres transaction, inside a transaction');
  return client;
}

/** By client: the last of the submissions on it. */
const lasts = new WeakMap<Queryable, Promise<unknown>>();

/**
 * Does `work` when what was given before for the same client is done. Savepoints of two submissions at once would not be nested: the
 * refusal of one would undo the other.
 */
export function oneByOne<T>(tx: CallerTx, work: () => Promise<T>): Promise<T> {
  const client = clientOf(tx);
  const done = (lasts.get(client) ?? Promise.resolve()).then(work);
  lasts.set(
    client,
    done.catch(() => undefined),
  );
  return done;
}

/**
 * What runs the statements of `tx`. The kernel reads values in its own form, whatever parsers the client of the caller has.
 *
 * @throws KernelError `bad_request` for what is no client in a transaction.
 */
export function toQueryable(tx: CallerTx): Queryable {
  const client = clientOf(tx);
  return {
    query: <R extends pg.QueryResultRow>(config: pg.QueryConfig | string) => {
      const sent = typeof config === 'string' ? { text: config } : config;
      return client.query<R>({ ...sent, types: sent.types ?? pg.types });
    },
  };
}

const LOOK = statement(`
  select current_setting('transaction_isolation') as isolation, current_setting('transaction_read_only') as read_only,
    current_setting('lock_timeout') as lock_timeout, to_regclass('boxcar.operations') is not null as has_kernel`);
const LIMIT_LOCKS = statement(`select set_config('lock_timeout', $1, true)`);

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
   * @throws KernelError `bad_request` when there is no transaction, or one in which the kernel cannot write.
   */
  static async enter(tx: CallerTx, { lockMs }: { readonly lockMs: number }): Promise<CallerTransaction> {
    const db = toQueryable(tx);
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
    await run(this.db, LIMIT_LOCKS, [this.#lockTimeout]);
    await this.db.query({ text: 'release savepoint boxcar_submission' });
  }

  /** Undoes what was written; the caller can go on in its transaction. */
  async undo(): Promise<void> {
    await this.db.query({ text: 'rollback to savepoint boxcar_submission' });
    await this.db.query({ text: 'release savepoint boxcar_submission' });
  }
}

/** By connection: what is done at the end of its transaction. */
const waiting = new WeakMap<object, (() => void)[]>();

/** Calls `work` once the transaction has ended or its connection is lost. Does nothing where a client does not show that. */
export function afterTransaction(tx: CallerTx, work: () => void): void {
  const connection = member(clientOf(tx), 'connection');
  if (typeof connection !== 'object' || connection === null || !('on' in connection)) return;
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
