/**
 * Rows that a sweep could not handle, and turns that could not be run. Each of them is tried again with a growing back-off, and given
 * up after some tries. So a row that can never be handled does not block the others or fill the log.
 */

import { checkWholeNumber, type ProjectId, type TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, retryTransient, run, runRetrying, statement } from '../db/index.js';
import type { SweepKind } from '../kinds/row-kinds.js';
import { query, queryRetrying } from '../query/query.js';
import type { Row } from '../schema/index.js';

/** The number of tries after which a row is given up. */
export const MAX_TRIES = 5;
/** A row has recovered when this time has passed since its next try was due, and it has not failed again. */
const SETTLED_AFTER = "interval '1 minute'";
/** Longer than the queue and the start of new processes need to deliver a job again. */
const JOB_SETTLED_AFTER = "interval '1 day'";

/**
 * True for rows that a search leaves out.
 *
 * @param kind - The kind of the search.
 * @param id - The column with the row's id.
 * @param now - The clock of the search.
 */
export const notSetAside = (kind: SweepKind, id: string, now = 'now()'): string => `
  not exists (
    select from boxcar.sweep_failures f
    where f.kind = '${kind}' and f.row_id = ${id} and (f.is_dead or f.next_try_at > ${now})
  )`;

/** The kinds as a list in SQL. */
export const listOf = (kinds: readonly SweepKind[]): string => kinds.map((kind) => `'${kind}'`).join(', ');

/** The kinds of failed ends of turns. */
export const UNENDED: readonly SweepKind[] = ['turn_ends', 'overdue_turns'];

/** A note of `turn_runs` ends with the turn's step. Other notes, and notes of older builds, name no step. */
const STEP = "' [(]at step ([0-9]+)[)]$'";

/** The cause in a note, without the step. */
export const causeIn = (note: string): string => note.replace(/ \(at step \d+\)$/, '');

/** True for a note `f` about the current step of a turn `t`. */
export const IS_OF_STEP = `
  coalesce(substring(f.last_error from ${STEP}), (t.step_count + 1)::text) = (t.step_count + 1)::text`;

/** True for turns `t` that may be run now: runs at this step have not failed recently, and the turn was not given up. */
export const mayRun = (now = 'now()'): string => `
  not exists (
    select from boxcar.sweep_failures f
    where f.kind = 'turn_runs'
      and f.row_id = t.id
      and (f.is_dead or (f.next_try_at > ${now} and ${IS_OF_STEP}))
  )`;

/** A given-up turn may only be ended. Written as a probe, because the table is nearly always empty. */
export const NOT_GIVEN_UP =
  "(select true from boxcar.sweep_failures f where f.kind = 'turn_runs' and f.row_id = t.id and f.is_dead) is not true";

/**
 * True for a note that may be deleted. A run may take longer than the time for which notes are kept, so a note stays while its turn is
 * at the same step.
 *
 * @param now - The clock of the search.
 */
export const settledFailure = (now = 'now()'): string => `
  not f.is_dead
  and f.next_try_at < ${now} - case when f.kind = 'blocked_jobs' then ${JOB_SETTLED_AFTER} else ${SETTLED_AFTER} end
  and (
    f.kind <> 'turn_runs'
    or not exists (select from boxcar.turns t where t.id = f.row_id and t.ended_at is null and ${IS_OF_STEP})
  )`;

/** The cause in a dead letter of the row `id`: the row's end was given up and will never happen. */
export const lostCause = (id: string, kinds: readonly SweepKind[]): string => `
  (
    select f.last_error
    from boxcar.sweep_failures f
    where f.kind in (${listOf(kinds)}) and f.row_id = ${id} and f.is_dead
    limit 1
  )`;

export interface SweepFailure {
  readonly kind: SweepKind;
  readonly rowId: string;
  readonly projectId: ProjectId | null;
  readonly error: string;
}

const IS_SAME_STEP = `
  substring(f.last_error from ${STEP}) is not distinct from substring(excluded.last_error from ${STEP})`;
/** `$7`: an earlier try got no answer. If its note exists, the failure has already been counted. */
const IS_NOTED =
  '$7::boolean and f.last_error = excluded.last_error and f.next_try_at > coalesce($1::timestamptz, now())';
const COUNT = `case when ${IS_SAME_STEP} then f.attempts + case when ${IS_NOTED} then 0 else 1 end else 1 end`;

/** `$1`: the clock of tests, `$2` to `$7`: kind, row, project, error, tries, whether it may already be noted. */
export const NOTE_TEXT = `
  insert /* dead-letters.note */ into boxcar.sweep_failures as f (
    kind, row_id, project_id, attempts, last_error, next_try_at, is_dead
  )
  select
    $2, $3::uuid, coalesce($4::uuid, t.project_id), 1,
    $5 || case when $2 = 'turn_runs' and t.id is not null then ' (at step ' || t.step_count + 1 || ')' else '' end,
    coalesce($1::timestamptz, now()) + interval '2 seconds',
    $6 <= 1
  from (select 1) one
  left join lateral (select x.* from boxcar.turns x where x.id = $3::uuid offset 0) t on true
  on conflict (kind, row_id) do update
    set attempts = ${COUNT},
      last_error = case when f.is_dead then f.last_error else excluded.last_error end,
      next_try_at = coalesce($1::timestamptz, now()) + power(2, least(${COUNT}, 20)) * interval '1 second',
      is_dead = f.is_dead or ${COUNT} >= $6,
      first_failed_at = case when ${IS_SAME_STEP} then f.first_failed_at else excluded.first_failed_at end
  returning f.attempts, f.is_dead`;
const NOTE = statement(NOTE_TEXT);

export interface NoteOptions {
  readonly now?: Date | undefined;
  /** The row is given up after this many failures. Default 5. */
  readonly maxTries?: number;
  /** True when the same note may exist: an earlier try got no answer. */
  readonly isRepeated?: boolean;
}

export interface NotedFailure {
  readonly attempts: number;
  readonly isDead: boolean;
}

/**
 * Records that a row could not be handled, and when it is tried again: after 2, 4, 8 and 16 seconds, doubling up to `maxTries`. For a
 * turn that could not be run, the note names its step; the count begins again at the next step. A row that was given up stays given up,
 * with its original cause, whatever fails later: a turn that could not be canceled must not run again.
 */
export function noteSweepFailure(
  pool: pg.Pool,
  failure: SweepFailure,
  options: NoteOptions = {},
): Promise<NotedFailure> {
  return retryTransient((attempt) => noteWithin(pool, failure, { ...options, isRepeated: attempt > 1 }));
}

/** The same as part of the caller's transaction. */
export async function noteWithin(
  db: Queryable,
  failure: SweepFailure,
  options: NoteOptions = {},
): Promise<NotedFailure> {
  const [row] = await run<Row<'sweepFailures', 'attempts' | 'is_dead'>>(db, NOTE, [
    options.now ?? null,
    failure.kind,
    failure.rowId,
    failure.projectId,
    // The message of Postgres may quote its input.
    failure.error.replaceAll('\u0000', ' ').slice(0, 2_000),
    options.maxTries ?? MAX_TRIES,
    options.isRepeated ?? false,
  ]);
  return { attempts: row?.attempts ?? 0, isDead: row?.is_dead === true };
}

// A release and its note have the same time. The next try of an earlier run's note was due before this run was claimed.
const NOTED = statement(`
  select /* dead-letters.noted */ f.attempts, f.is_dead
  from boxcar.turns t
  join boxcar.sweep_failures f on f.kind = 'turn_runs' and f.row_id = t.id
  where t.id = $1
    and t.status = 'dispatched'
    and t.epoch = $2
    and f.next_try_at > t.dispatched_at`);

/** The note that was written together with the release of a turn to this epoch, if the turn has not been claimed since. */
export async function findNoted(
  db: Queryable,
  { turnId, epoch }: { readonly turnId: TurnId; readonly epoch: number },
): Promise<NotedFailure | undefined> {
  const [row] = await run<Row<'sweepFailures', 'attempts' | 'is_dead'>>(db, NOTED, [turnId, epoch]);
  return row === undefined ? undefined : { attempts: row.attempts, isDead: row.is_dead };
}

const FIND_BLOCKED = statement(`
  select /* dead-letters.find_blocked */
    f.attempts, f.last_error as cause,
    greatest(extract(epoch from f.next_try_at - now()) * 1000, 0)::float8 as wait_ms
  from boxcar.sweep_failures f
  where f.kind = 'blocked_jobs' and f.row_id = $1`);

/** How often a job has blocked the event loop of its worker, the cause, and the time until it may run again. */
export interface BlockedJob extends pg.QueryResultRow {
  readonly attempts: number;
  readonly cause: string;
  readonly wait_ms: number;
}

/** The note about a job that has blocked the event loop of a worker. @param noteId - A UUID derived from the job. */
export async function findBlockedJob(db: Queryable, noteId: string): Promise<BlockedJob | undefined> {
  const [row] = await run<BlockedJob>(db, FIND_BLOCKED, [noteId]);
  return row;
}

const FORGET = statement(`
  delete /* dead-letters.forget */ from boxcar.sweep_failures f
  where ${settledFailure('coalesce($1::timestamptz, now())')}`);

/** Deletes the notes about rows that have been handled since. */
export async function forgetSettledFailures(
  pool: pg.Pool,
  options: { readonly now?: Date } = {},
): Promise<void> {
  await runRetrying(pool, FORGET, [options.now ?? null]);
}

export interface DeadLetter {
  readonly kind: SweepKind;
  readonly row_id: string;
  readonly project_id: ProjectId | null;
  readonly attempts: number;
  readonly last_error: string;
  /** False while the row is tried again. */
  readonly is_dead: boolean;
  readonly first_failed_at: Date;
}

/**
 * Rows that sweeps have failed on. Rows that were given up are first.
 *
 * @throws KernelError `bad_request` for a limit that is not a whole number of at least 1.
 */
export async function listDeadLetters(db: Queryable, limit: number): Promise<DeadLetter[]> {
  checkWholeNumber(limit, 'limit', { min: 1, max: Number.MAX_SAFE_INTEGER });
  return query(db, 'dead-letters.list', ({ orm, tables: { sweepFailures }, asc, desc }) =>
    orm
      .select({
        kind: sweepFailures.kind,
        row_id: sweepFailures.rowId,
        project_id: sweepFailures.projectId,
        attempts: sweepFailures.attempts,
        last_error: sweepFailures.lastError,
        is_dead: sweepFailures.isDead,
        first_failed_at: sweepFailures.firstFailedAt,
      })
      .from(sweepFailures)
      .orderBy(desc(sweepFailures.isDead), asc(sweepFailures.firstFailedAt))
      .limit(limit),
  );
}

const REVIVE = statement(`
  update /* dead-letters.revive */ boxcar.sweep_failures f
  set is_dead = false, attempts = 1, next_try_at = now()
  from unnest($1::text[], $2::uuid[]) as d(kind, row_id)
  where f.kind = d.kind and f.row_id = d.row_id`);

/**
 * Makes the sweeps try again the rows that they have given up.
 *
 * @returns The number of rows.
 */
export async function retryDeadLetters(pool: pg.Pool): Promise<number> {
  // The rows are found first, so that a repetition after a lost answer changes and reports the same rows. A turn whose end could not be
  // written must end, because its waiters have been answered: its end is tried again, not its run.
  const dead = await queryRetrying(
    pool,
    'dead-letters.find_dead',
    ({ orm, tables, alias, and, eq, inline, ne, notExists, or }) => {
      const failures = tables.sweepFailures;
      const ends = alias(failures, 'ends');
      const isEnd = and(eq(ends.kind, 'turn_ends'), eq(ends.rowId, failures.rowId));
      const hasNoEnd = notExists(orm.select({ kind: ends.kind }).from(ends).where(isEnd));
      return orm
        .select({ kind: failures.kind, row_id: failures.rowId })
        .from(failures)
        .where(and(failures.isDead, or(inline(ne(failures.kind, 'turn_runs')), hasNoEnd)));
    },
  );
  const ids = dead.map(({ row_id }) => row_id);
  await runRetrying(pool, REVIVE, [dead.map(({ kind }) => kind), ids]);
  return dead.length;
}
