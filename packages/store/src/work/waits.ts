/**
 * Turns that wait for something other than a call: a time, room at a provider, a budget, a decision.
 *
 * V1  A wait row belongs to a suspended turn without open calls, and each such turn has a wait row: both are written together.
 * V2  The statement that wakes a turn also deletes its wait, under the turn's lock. So a turn is woken once.
 * V3  Only the provider's own books (`providers.ts`) end a wait for room at a provider, in their order. Only a worker that has the
 *     selector ends a wait for a selector (`selector-waits.ts`).
 */

import type { ErrorBody, JsonObject, ProjectId, Ring, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, retryTransient, run, runRetrying, statement, transactOnce } from '../db/index.js';
import type { WaitKind } from '../kinds/row-kinds.js';
import { notSetAside } from '../rows/index.js';
import type { StepCommit } from '../turn/index.js';
import { findSuspended, hasStatus, lockTurns, toRing } from '../turn/index.js';

/** A wait, in a form for people. */
export interface WaitLine {
  readonly kind: WaitKind;
  /** The time of the next look; null when something else wakes the turn. */
  readonly due_at: string | null;
  /** The provider whose room the turn waits for. */
  readonly provider: string | null;
  readonly detail: JsonObject;
}

// The turn is locked first, by its epoch, holder and status. If a takeover, an end or a cancel got the lock before, the turn no longer has
// them, and nothing is written. Its attempt, its row and its wait change in this one statement (V1).
const RETRY_LATER = statement(`
  with /* waits.retry_later */
  lk as (
    select t.id, t.project_id
    from boxcar.turns t
    where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and ${hasStatus('running')}
    for update
  ),
  closed as (
    update boxcar.steps s
    set model = $6,
      prompt_hash = decode($7, 'hex'),
      toolset_hash = decode($8, 'hex'),
      manifest = $9::jsonb,
      usage = $10::jsonb,
      finish_reason = $11,
      model_ms = $12,
      error = $13::jsonb
    from lk
    where s.turn_id = lk.id and s.step = $4 and s.attempt = $5
  ),
  up as (
    update boxcar.turns t
    set status = 'suspended',
      holder_id = null,
      retries = t.retries + 1,
      spent_tokens = t.spent_tokens + $16::bigint,
      spent_cost = t.spent_cost + $17::bigint
    from lk
    where t.id = lk.id
  )
  insert into boxcar.waits (turn_id, project_id, kind, due_at, detail)
  select lk.id, lk.project_id, 'retry', clock_timestamp() + $14::float8 * interval '1 millisecond', $15::jsonb
  from lk
  returning turn_id`);

/**
 * Suspends a turn whose model call failed, until the call is made again. Closes the attempt with its error, and leaves no other trace.
 * When the turn has another holder, the function does nothing and returns false. A repetition returns true when an earlier try has
 * suspended the turn.
 */
export async function retryLater(
  pool: pg.Pool,
  failed: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    readonly step: NonNullable<StepCommit['step']>;
    /** The charge for the call, for a turn whose row counts its spending. */
    readonly spent?: StepCommit['spent'];
    readonly delayMs: number;
    /** The details of the wait that are shown. */
    readonly detail: JsonObject;
  },
): Promise<boolean> {
  const { step } = failed;
  const values = [
    failed.turnId,
    failed.epoch,
    failed.holderId,
    step.step,
    step.attempt,
    step.model,
    step.promptHash,
    step.toolsetHash,
    JSON.stringify(step.manifest),
    step.usage === null ? null : JSON.stringify(step.usage),
    step.finishReason,
    step.modelMs,
    JSON.stringify(step.error),
    failed.delayMs,
    JSON.stringify(failed.detail),
    failed.spent?.tokens ?? 0,
    failed.spent?.costMicros ?? 0,
  ];
  const suspend = async (db: Queryable): Promise<boolean> => (await run(db, RETRY_LATER, values)).length > 0;
  return retryTransient((attempt) =>
    attempt === 1
      ? suspend(pool)
      : transactOnce(pool, async (tx) => {
          await lockTurns(tx, [failed.turnId]);
          return (await findSuspended(tx, 'retry', [failed])).size > 0 || suspend(tx);
        }),
  );
}

/** A build that does not know waits ends a turn and leaves its wait row, which no other process would remove. `ids`: an array. */
export const strayWaits = (ids: string): string => `
  strays as (
    delete from boxcar.waits w
    using boxcar.turns t
    where w.turn_id = any (${ids}) and t.id = w.turn_id and t.ended_at is not null
  )`;

// The turn is locked before its wait is deleted, in the same order as at an end. If another transaction has deleted the wait in the
// meantime, it is not in `gone`, although `lk` has the turn.
export const wakeText = (which: string): string => `
  with /* waits.wake */
  due as materialized (select array(${which}) as ids),
  ${strayWaits('(select ids from due)::uuid[]')},
  lk as (
    select t.id
    from boxcar.turns t
    where t.id = any ((select ids from due)::uuid[])
      and ${hasStatus('suspended')}
      and t.pending_calls = 0
    order by t.id
    for update of t skip locked
  ),
  gone as (
    delete from boxcar.waits w
    using lk
    where w.turn_id = lk.id
    returning w.turn_id
  )
  update boxcar.turns t
  set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from gone
  where t.id = gone.turn_id
  returning t.id as turn_id, t.epoch, t.worker_target`;

const NOW = 'coalesce($1::timestamptz, now())';
const DUE = `
  from boxcar.waits w
  where w.due_at <= ${NOW}
    and w.kind not in ('limit', 'selector')
    and ${notSetAside('due_waits', 'w.turn_id', NOW)}`;

const DUE_WAITS = statement(
  `select /* waits.due_waits */ w.turn_id, w.project_id ${DUE} order by w.due_at limit $2`,
);

/** Finds the turns that {@link wakeDue} would wake. */
export function findDueWaits(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<{ turn_id: TurnId; project_id: ProjectId }[]> {
  return runRetrying(pool, DUE_WAITS, [options.now ?? null, options.limit]);
}

const WAKE_DUE = statement(
  wakeText(
    `select w.turn_id ${DUE} and ($3::uuid[] is null or w.turn_id = any ($3)) order by w.due_at limit $2`,
  ),
);

type RingRow = Parameters<typeof toRing>[0];

/**
 * Wakes turns whose wait is due.
 *
 * @param options.turnIds - Only these turns.
 */
export async function wakeDue(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number; readonly turnIds?: readonly TurnId[] },
): Promise<readonly Ring[]> {
  const values = [options.now ?? null, options.limit, options.turnIds ?? null];
  return (await runRetrying<RingRow>(pool, WAKE_DUE, values)).map(toRing);
}

const WAKE_RETRIES = statement(
  wakeText(`
    select t.id
    from json_to_recordset($1) as x(turn_id uuid, epoch int)
    cross join lateral (
      select t.id
      from boxcar.turns t
      join boxcar.waits w on w.turn_id = t.id
      where t.id = x.turn_id and t.epoch = x.epoch and w.kind = 'retry'
      offset 0
    ) t`),
);

/** Wakes turns that have waited for their retry since the given epochs. The caller has measured the time itself. */
export async function wakeRetries(
  pool: pg.Pool,
  waiting: readonly Pick<Ring, 'turnId' | 'epoch'>[],
): Promise<readonly Ring[]> {
  const records = waiting.map(({ turnId, epoch }) => ({ turn_id: turnId, epoch }));
  return (await runRetrying<RingRow>(pool, WAKE_RETRIES, [JSON.stringify(records)])).map(toRing);
}

const FAILED_ATTEMPTS = statement(`
  select /* waits.failed_attempts */ s.attempt, s.opened_at, s.error
  from boxcar.steps s
  where s.turn_id = $1
    and s.step = $2
    and s.error is not null
    and s.committed_at is null
  order by s.attempt`);

export interface FailedAttempt extends pg.QueryResultRow {
  readonly attempt: number;
  readonly opened_at: Date;
  readonly error: ErrorBody;
}

/** The attempts at a step whose call failed and was made again. */
export function loadFailedAttempts(db: Queryable, turnId: TurnId, step: number): Promise<FailedAttempt[]> {
  return run<FailedAttempt>(db, FAILED_ATTEMPTS, [turnId, step]);
}
