/**
 * Rows that a sweep could not handle: each is tried again later than the time before, and after some tries left alone, so that
 * one that can never be handled does not stand in front of the others, nor fill the log.
 */
import type { ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from './db.js';

/** Which part of the sweep failed on a row: the name of its finding. */
export type SweepKind =
  | 'dead_leases'
  | 'overdue_turns'
  | 'overdue_calls'
  | 'due_waits'
  | 'due_batches'
  | 'lost_rings'
  | 'wait_cycles'
  | 'notices'
  | 'left_forks';

/** Tries until a row is left alone. */
const MAX_TRIES = 5;
/** A row that was to be tried again so long ago, and has not failed since, is in order. */
const SETTLED_AFTER = "interval '1 minute'";

/**
 * True for rows that a search leaves out.
 *
 * @param kind - Of the search.
 * @param id - The column with the row's id.
 * @param now - The clock of the search.
 */
export const notSetAside = (kind: SweepKind, id: string, now = 'now()'): string =>
  `not exists (select from boxcar.sweep_failures f where f.kind = '${kind}' and f.row_id = ${id} and (f.is_dead or f.next_try_at > ${now}))`;

/** @param now - The clock of the search. */
export const settledFailure = (now = 'now()'): string =>
  `not f.is_dead and f.next_try_at < ${now} - ${SETTLED_AFTER}`;

export interface SweepFailure {
  readonly kind: SweepKind;
  readonly rowId: string;
  readonly projectId: ProjectId | null;
  readonly error: string;
}

const NOTE = statement(`
  insert into boxcar.sweep_failures as f (kind, row_id, project_id, attempts, last_error, next_try_at)
  values ($2, $3, $4, 1, $5, coalesce($1::timestamptz, now()) + interval '2 seconds')
  on conflict (kind, row_id) do update set attempts = f.attempts + 1, last_error = excluded.last_error,
    next_try_at = coalesce($1::timestamptz, now()) + power(2, least(f.attempts + 1, 20)) * interval '1 second', is_dead = f.attempts + 1 >= ${MAX_TRIES}
  returning f.attempts, f.is_dead`);

/** Notes that a row could not be handled, and when it is tried again: after 2, 4, 8, 16 seconds, then no more. */
export async function noteSweepFailure(
  pool: pg.Pool,
  failure: SweepFailure,
  options: { readonly now?: Date | undefined } = {},
): Promise<{ readonly attempts: number; readonly isDead: boolean }> {
  const [row] = await runRetrying<{ attempts: number; is_dead: boolean }>(pool, NOTE, [
    options.now ?? null,
    failure.kind,
    failure.rowId,
    failure.projectId,
    // What Postgres says may quote what it was given.
    failure.error.replaceAll('\u0000', ' ').slice(0, 2_000),
  ]);
  return { attempts: row?.attempts ?? 0, isDead: row?.is_dead === true };
}

const FORGET = statement(
  `delete from boxcar.sweep_failures f where ${settledFailure('coalesce($1::timestamptz, now())')}`,
);

/** Forgets rows that were handled since. */
export async function forgetSettledFailures(
  pool: pg.Pool,
  options: { readonly now?: Date } = {},
): Promise<void> {
  await runRetrying(pool, FORGET, [options.now ?? null]);
}

export interface DeadLetter extends pg.QueryResultRow {
  readonly kind: SweepKind;
  readonly row_id: string;
  readonly project_id: ProjectId | null;
  readonly attempts: number;
  readonly last_error: string;
  /** False: it is tried again. */
  readonly is_dead: boolean;
  readonly first_failed_at: Date;
}

const LIST = statement(`
  select kind, row_id, project_id, attempts, last_error, is_dead, first_failed_at from boxcar.sweep_failures
  order by is_dead desc, first_failed_at limit $1`);

/** Rows that sweeps have failed on, those that were given up first. */
export function listDeadLetters(db: Queryable, limit: number): Promise<DeadLetter[]> {
  return run<DeadLetter>(db, LIST, [limit]);
}

const RETRY = statement(`
  update boxcar.sweep_failures set is_dead = false, attempts = 1, next_try_at = now() where is_dead returning row_id`);

/**
 * Lets the sweeps try again what they have given up.
 *
 * @returns How many rows.
 */
export async function retryDeadLetters(pool: pg.Pool): Promise<number> {
  return (await runRetrying(pool, RETRY, [])).length;
}
