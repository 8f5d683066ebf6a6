/**
 * Transactions that wait only briefly for each lock. After that they fail as `55P03` and are not tried again here: a sweep looks again
 * soon, and a failed batch is split until the locked row is alone.
 */
import type pg from 'pg';
import { transaction } from './db.js';
import type { BatchTry, RetryOptions } from './retry.js';
import type { Tx } from './statement.js';

export interface LockLimit {
  /** The longest wait for one lock. Absent: the limit of the connection, with repetitions for some seconds. */
  readonly lockMs?: number | undefined;
}

/** A try of work on a batch of items. It may wait only briefly for each lock. */
export type LimitedTry = BatchTry & LockLimit;

/**
 * The longest lock wait in the first try of a batch that leaves out locked items. It applies to rows for which the try cannot leave out
 * a single item.
 */
const BATCH_LOCK_MS = 50;

/** The limit of that first try. */
export const firstLimit = (leavesLocked: boolean | undefined): LockLimit =>
  leavesLocked === true ? { lockMs: BATCH_LOCK_MS } : {};

/** The clause for a row lock in a statement for many rows: locked rows are left out, or waited for. */
export const skipping = (leavesLocked: boolean): string => (leavesLocked ? ' skip locked' : '');

/** Limits the lock waits of the following statements in the transaction. It is sent with the first of them. */
export function limitLocks(tx: Tx, { lockMs }: LockLimit): void {
  if (lockMs === undefined) return;
  // 0 would mean no limit. If this fails, the next statement of the transaction fails too.
  tx.query({ text: `set local lock_timeout = ${Math.max(Math.ceil(lockMs), 1)}` }).catch(() => undefined);
}

/** The retry options of such a transaction: it is not retried after a lock timeout. */
export const retriesOf = ({ lockMs }: LockLimit): RetryOptions =>
  lockMs === undefined ? {} : { ownLimit: '55P03' };

/** The body of a transaction, with a limit for its locks. */
export const limited =
  <T, A extends readonly unknown[]>(limit: LockLimit, body: (tx: Tx, ...attempt: A) => Promise<T>) =>
  (tx: Tx, ...attempt: A): Promise<T> => {
    limitLocks(tx, limit);
    return body(tx, ...attempt);
  };

/**
 * `transaction` with a limit for its locks. With a limit, work that takes too long is not tried again either: see the top of this file.
 */
export function transactWithin<T>(
  pool: pg.Pool,
  limit: LockLimit,
  body: (tx: Tx, attempt: number) => Promise<T>,
): Promise<T> {
  return transaction(pool, limited(limit, body), {
    ...retriesOf(limit),
    ...(limit.lockMs === undefined ? {} : { isPatient: false }),
  });
}
