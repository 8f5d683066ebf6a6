/** Repeats work as a whole after a lost race or a lost connection. */
import { KernelError } from '@boxcar/kernel/base';
import type pg from 'pg';
import { isOverRowLimit, isTransient, LIMIT_STATES, RETRY_STATES, sqlStateOf } from './errors.js';
import { limitsOn } from './pool.js';

/** The number of tries for a transaction that lost a race or its connection. */
const TRANSACTION_ATTEMPTS = 5;
/**
 * The time for which a transaction is tried again. A transaction that waits for a lock is tried for all of this time, in which the
 * server frees the locks of a stopped process (`connection-limits.ts`).
 */
const PATIENCE_MS = 15_000;

export interface RetryOptions {
  /** The SQLSTATE of a limit that the work itself has set. Such a failure is not tried again, and is thrown as Postgres sent it. */
  readonly ownLimit?: '55P03' | '57014';
  /** False: throws at once when a row is locked or the work takes too long, so that the caller can try each row alone. Default true. */
  readonly isPatient?: boolean;
  /** How long the work is tried again while the server accepts no connections. Absent: only a few tries. */
  readonly awayMs?: number;
}

/** Options for one try of work on a batch of items. */
export interface BatchTry {
  /** An earlier try may have been committed as part of a larger batch, so the work looks for its traces first. Default false. */
  readonly isRepeated?: boolean;
  /** As in {@link RetryOptions}. */
  readonly isPatient?: boolean;
  /**
   * True: an item whose turn or tape is locked is left out of the batch and reported, and has no effect. When several statements share
   * a transaction, the first try waits briefly for other rows (`BATCH_LOCK_MS`) and then fails. A repetition leaves out each item that
   * needs a locked row. Default false.
   */
  readonly leavesLocked?: boolean;
}

/** `retryTransient` for a batch of items. */
export const retryBatch = <T>(
  work: (isRepeated: boolean) => Promise<T>,
  { isRepeated = false, ...options }: BatchTry & RetryOptions = {},
): Promise<T> => retryTransient((attempt) => work(isRepeated || attempt > 1), options);

/** The retry options for work whose loss costs more than a wait: a result that only this process knows. */
export const patientOn = (pool: pg.Pool): RetryOptions => ({ awayMs: limitsOn(pool).awayMs });

/**
 * Repeats `work` a few times, for a few seconds, while its errors show that it had no effect or that its effect is not known.
 *
 * @param work - Gets the number of the attempt, from 1. An earlier attempt may have been committed and only its answer lost. So work
 *   that is not idempotent must look for its own traces first.
 * @throws KernelError `database_unavailable` after the last attempt.
 */
export async function retryTransient<T>(
  work: (attempt: number) => Promise<T>,
  options: RetryOptions = {},
): Promise<T> {
  const startedAt = performance.now();
  for (let attempt = 1; ; attempt++) {
    try {
      return await work(attempt);
    } catch (error) {
      if (sqlStateOf(error) === options.ownLimit) throw error instanceof KernelError ? error.cause : error;
      if (!isTransient(error) || (options.isPatient === false && isOverRowLimit(error))) throw error;
      if (!mayTryAgain(error, attempt, { elapsedMs: performance.now() - startedAt, ...options })) throw error;
      await new Promise((resolve) =>
        setTimeout(resolve, 2 ** Math.min(attempt, 5) * 5 * (1 + Math.random())),
      );
    }
  }
}

function mayTryAgain(
  error: unknown,
  attempt: number,
  { elapsedMs, awayMs = 0 }: { readonly elapsedMs: number } & RetryOptions,
): boolean {
  if (elapsedMs >= PATIENCE_MS) return attempt === 1;
  const state = sqlStateOf(error);
  if (attempt < TRANSACTION_ATTEMPTS || state === '55P03') return true;
  return elapsedMs < awayMs && !LIMIT_STATES.has(state) && !RETRY_STATES.has(state);
}
