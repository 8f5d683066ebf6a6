/** Transactions and connections. */
import type pg from 'pg';
import { ABORTED, readCode, toConnectionError, toDatabaseError } from './errors.js';
import { beginOn, queryLimited } from './pool.js';
import { type BatchTry, type RetryOptions, retryBatch, retryTransient } from './retry.js';
import { type Queryable, run, type Statement, type Tx } from './statement.js';

// The loss of a checked-out connection fails its statement and also emits an event. Without a listener, the event ends the process.
const ignoreLoss = (): void => undefined;

/** Runs one statement of outside code on a connection of the pool. @throws as in {@link toConnectionError}. */
export async function queryOutside<R extends pg.QueryResultRow>(
  pool: pg.Pool,
  config: pg.QueryConfig,
): Promise<pg.QueryResult<R>> {
  const client = await checkOut(pool);
  let broken: Error | undefined;
  try {
    return await queryLimited<R>(pool, client, config);
  } catch (thrown) {
    broken = toError(thrown);
    throw await toConnectionError(thrown, client);
  } finally {
    client.release(broken);
  }
}

/**
 * Runs `body` in one transaction on one connection of the pool. After a deadlock, a serialization failure or a lost connection the
 * whole `body` is repeated, so it must have no other effects.
 *
 * @throws KernelError `database_unavailable` after the last attempt.
 */
export function transaction<T>(
  pool: pg.Pool,
  body: (tx: Tx, attempt: number) => Promise<T>,
  options: RetryOptions = {},
): Promise<T> {
  return retryTransient((attempt) => transactOnce(pool, (tx) => body(tx, attempt)), options);
}

/** Checks a connection out of a pool of `createPool`. The loss of the connection only fails its statements. */
export async function checkOut(pool: pg.Pool): Promise<pg.PoolClient> {
  try {
    return await pool.connect();
  } catch (error) {
    throw toDatabaseError(error);
  }
}

/** A transaction whose statements are watched, and the first failure among them that no savepoint has undone. */
export interface Watched {
  readonly tx: Tx;
  /** The failure to report: the server refuses statements after a failed one as 25P02, which does not name the cause. */
  causeOf(error: unknown): unknown;
}

/** Watches the statements of one transaction, which fail in the order in which they were sent. */
export function watchFailures(client: Queryable): Watched {
  let first: unknown;
  return {
    tx: {
      query: <R extends pg.QueryResultRow>(config: pg.QueryConfig) => {
        const sent = client.query<R>(config);
        sent.then(
          (answer: pg.QueryResult | readonly pg.QueryResult[]) => {
            // `rollback to savepoint` gets the same answer as `rollback`: the transaction continues without the failure.
            if ([answer].flat().some(isRolledBack)) first = undefined;
          },
          (error: unknown) => {
            first ??= error;
          },
        );
        return sent;
      },
    },
    causeOf: (error) => (readCode(error) === ABORTED ? (first ?? error) : error),
  };
}

const isRolledBack = ({ command }: Pick<pg.QueryResult, 'command'>): boolean => command === 'ROLLBACK';

/** The server answers the commit of a failed transaction with a rollback, which must not count as success. */
const rolledBack = (): Error & { code: string } =>
  Object.assign(new Error('the transaction had failed and was rolled back'), { code: ABORTED });

/** Commits a transaction. @throws the earlier failure of a statement that was not awaited. */
export async function commitWatched(
  client: Pick<pg.PoolClient, 'query'>,
  { causeOf }: Watched,
): Promise<void> {
  if (isRolledBack(await client.query('commit'))) throw causeOf(rolledBack());
}

interface LockWait {
  /** The longest wait of each statement for one lock. Absent: the limit of the connection. */
  readonly lockMs?: number | undefined;
}

interface Settings {
  /** Statements with settings that apply within the transaction. */
  readonly settings?: readonly string[];
  /**
   * True: nothing is sent before the transaction has begun. Connections of a caller's own pool may not accept several statements at
   * once.
   */
  readonly waitsForBegin?: boolean;
}

/** The message that begins the transaction contains all settings, so they cost no round trip. A limit of 0 would mean no limit. */
const beginWithin = (pool: pg.Pool, { lockMs, settings = [] }: LockWait & Settings): string =>
  [
    beginOn(pool),
    ...(lockMs === undefined ? [] : [`set local lock_timeout = ${Math.max(Math.ceil(lockMs), 1)}`]),
    ...settings,
  ].join('; ');

/** `transaction` without its repetitions. */
export async function transactOnce<T>(
  pool: pg.Pool,
  body: (tx: Tx) => Promise<T>,
  limit: LockWait & Settings = {},
): Promise<T> {
  const client = await checkOut(pool);
  const watched = watchFailures(client);
  let broken: Error | undefined;
  try {
    // Sent together with the first statement. If this fails, the first statement fails too.
    const begun = client.query(beginWithin(pool, limit));
    begun.catch(ignoreLoss);
    if (limit.waitsForBegin === true) await begun;
    const result = await body(watched.tx);
    await begun;
    await commitWatched(client, watched);
    return result;
  } catch (error) {
    try {
      await client.query('rollback');
    } catch (failure) {
      // The connection is lost, and the transaction with it.
      broken = toError(failure);
    }
    throw toDatabaseError(watched.causeOf(error));
  } finally {
    client.release(broken);
  }
}

/**
 * Reads on one snapshot, so that the reads of `body` never mix two states. Not repeated. The pool may be a caller's own.
 *
 * @param options.settings - More settings that apply within the transaction.
 * @param options.makesTables - True: `body` may create temporary tables, which a read-only transaction may not.
 */
export function readSnapshot<T>(
  pool: pg.Pool,
  body: (db: Queryable) => Promise<T>,
  {
    settings = [],
    makesTables = false,
  }: Pick<Settings, 'settings'> & { readonly makesTables?: boolean } = {},
): Promise<T> {
  const mode = makesTables ? 'repeatable read' : 'repeatable read, read only';
  const begin = [`set transaction isolation level ${mode}`, ...settings];
  return transactOnce(pool, body, { settings: begin, waitsForBegin: true });
}

/**
 * Runs statements that need no answer of each other, in one transaction and one round trip. The begin, the statements that `send` sends
 * before it first waits, and the commit are sent together. Repeated as a whole, like `transaction`.
 */
export function transactAtOnce<T>(pool: pg.Pool, send: (tx: Tx) => Promise<T>): Promise<T> {
  return retryTransient(() => sendOnce(pool, send));
}

/**
 * `transactAtOnce` without its repetitions.
 *
 * @param options.after - Sends reads that see the committed state, in the same round trip. When they fail, the connection is closed,
 *   and their failure has no other effect.
 */
export async function sendOnce<T>(
  pool: pg.Pool,
  send: (tx: Tx) => Promise<T>,
  { after, ...limit }: LockWait & { readonly after?: ((db: Queryable) => Promise<unknown>) | undefined } = {},
): Promise<T> {
  const client = await checkOut(pool);
  const watched = watchFailures(client);
  const begun = client.query(beginWithin(pool, limit));
  begun.catch(() => undefined);
  const sent = send(watched.tx);
  // A failure on the server turns the commit into a rollback. After a failure in this process, before all statements were sent, the
  // transaction must be rolled back here.
  const isBroken = await hasFailed(sent);
  const committed = client.query(isBroken ? 'rollback' : 'commit');
  const [, , end, read] = await Promise.allSettled([begun, sent, committed, after?.(client)]);
  const lost = [end, read].find(({ status }) => status === 'rejected') as PromiseRejectedResult | undefined;
  client.release(lost && toError(lost.reason));
  try {
    await begun;
    const result = await sent;
    if (isRolledBack(await committed)) throw rolledBack();
    return result;
  } catch (error) {
    throw toDatabaseError(watched.causeOf(error));
  }
}

/** Whether the promise has already failed without an answer from outside. Ticks run when no promise has any work left. */
async function hasFailed(promise: Promise<unknown>): Promise<boolean> {
  let isRejected = false;
  promise.catch(() => {
    isRejected = true;
  });
  await new Promise<void>((resolve) => process.nextTick(resolve));
  return isRejected;
}

const toError = (thrown: unknown): Error => (thrown instanceof Error ? thrown : new Error(String(thrown)));

/**
 * Runs `body` on one connection of the pool, and repeats it as a whole when the connection was lost. Statements that `body` sends
 * together share a round trip.
 */
export function onConnection<T>(
  pool: pg.Pool,
  body: (db: Queryable, isRepeated: boolean) => Promise<T>,
  options: BatchTry = {},
): Promise<T> {
  return retryBatch(async (isRepeated) => {
    const client = await checkOut(pool);
    let broken: Error | undefined;
    try {
      return await body(client, isRepeated);
    } catch (error) {
      // Statements may still be in progress, so the connection is closed.
      broken = toError(error);
      throw error;
    } finally {
      client.release(broken);
    }
  }, options);
}

/** Like `transaction`, for a single statement that is its own transaction. It is retried as a whole, and needs no begin and commit. */
export function runRetrying<R extends pg.QueryResultRow>(
  db: Queryable,
  prepared: Statement,
  values: unknown[],
): Promise<R[]> {
  return retryTransient(() => run<R>(db, prepared, values));
}
