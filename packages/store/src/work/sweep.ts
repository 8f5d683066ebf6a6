/**
 * The searches of the sweep: rows that no process would touch without it. Each search is an index probe on overdue rows, so in an idle
 * database it reads only a few empty index pages.
 */
import { randomUUID } from 'node:crypto';
import type { BatchId, ProjectId, Ring, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import { mayRun, notSetAside, settledFailure } from '../rows/index.js';
import { dueHandoffNotices, dueNotices, leftForks } from '../tape/index.js';
import {
  ENDABLE,
  type EndableTurn,
  hasFailedTurns,
  hasLostTurns,
  hasStatus,
  type SweepClock,
  toRing,
} from '../turn/index.js';
import { hasLongWaits } from './wait-cycles.js';
import { LONG_DEAD } from './workers.js';

export const NOW = 'coalesce($1::timestamptz, now())';
export const FIRST_ID = '00000000-0000-0000-0000-000000000000';

/** True for running turns `t` without a living holder. */
const UNHELD = `
  not exists (select from boxcar.workers w where w.id = t.holder_id and w.lease_until > ${NOW})
  and ${notSetAside('dead_leases', 't.id', NOW)}`;
const DEAD = `t.status = 'running' and ${UNHELD}`;
const OVERDUE_TURN = `
  t.deadline_at <= ${NOW}
  and t.ended_at is null
  and t.deadline_at is not null
  and ${notSetAside('overdue_turns', 't.id', NOW)}`;
// A call that waits for a batch ends with the batch.
const OVERDUE_CALL = `
  k.deadline_at <= ${NOW}
  and k.status = 'pending'
  and k.batch_id is null
  and ${notSetAside('overdue_calls', 'k.id', NOW)}`;
const DUE_LOOK = `k.look_at <= ${NOW} and k.look_at is not null and k.status = 'pending'`;
const DUE_WAIT = `w.due_at <= ${NOW} and w.due_at is not null and ${notSetAside('due_waits', 'w.turn_id', NOW)}`;

const BATCH_IN_ORDER = notSetAside('due_batches', 'b.id', NOW);
const DUE_BATCHES = `
  select b.id, b.project_id
  from boxcar.batches b
  where b.status = 'running' and b.is_due and ${BATCH_IN_ORDER}`;
const OVERDUE_BATCHES = `
  select b.id, b.project_id
  from boxcar.batches b
  where b.status = 'running' and b.deadline_at <= ${NOW} and ${BATCH_IN_ORDER}`;

// A turn that was handed back because it could not be run is rung only after its back-off.
export const RINGABLE = `${notSetAside('lost_rings', 't.id', NOW)} and ${mayRun(NOW)}`;

/** True for the ticket `a` of a call that was decided a while ago, and that no process has acted on. */
export const IS_LEFT = `
  a.tool_call_id is not null
  and a.consumed_at is null
  and a.voided_at is null
  and a.status <> 'pending'
  and a.resolved_at < ${NOW} - interval '2 seconds'`;

/** True for a handoff `h` that nothing waits for anymore: the turn that asked has ended, or the call that waits for it has its answer. */
export const IS_ORPHAN = `
  (
    h.parent_turn_id is not null
    and (
      exists (select from boxcar.turns p where p.id = h.parent_turn_id and p.ended_at is not null)
      or (
        h.is_awaited
        and h.tool_call_id is not null
        and not exists (select from boxcar.tool_calls k where k.id = h.tool_call_id and k.status = 'pending')
      )
    )
  )`;

/** True for a handoff `h` that waits for a ticket `a` which was decided a while ago, or that nothing waits for anymore. */
export const IS_LEFT_HANDOFF = `
  h.ended_at is null
  and h.phase = 'awaiting_approval'
  and (a.resolved_at < ${NOW} - interval '2 seconds' or a.voided_at is not null or ${IS_ORPHAN})`;

// Takes no locks and decides nothing: each part of the sweep reads its rows again and locks them. A row that is committed after this
// snapshot is found by the next sweep.
const PROBE = statement(`
  select /* sweep.probe */
    exists (
      select from boxcar.turns t
      where t.status = 'dispatched'
        and t.dispatched_at < ${NOW} - $2 * interval '1 millisecond'
        and ${RINGABLE}
    ) as lost_rings,
    exists (select from boxcar.turns t where ${DEAD}) as dead_leases,
    exists (select from boxcar.turns t where ${OVERDUE_TURN}) as overdue_turns,
    exists (select from boxcar.tool_calls k where ${OVERDUE_CALL}) as overdue_calls,
    exists (select from boxcar.tool_calls k where ${DUE_LOOK}) as due_looks,
    exists (select from boxcar.waits w where ${DUE_WAIT})
    or exists (
      select from boxcar.budgets b
      where b.paused_at <= ${NOW} - interval '5 seconds' and ${notSetAside('left_budgets', 'b.id', NOW)}
    ) as due_waits,
    exists (${DUE_BATCHES}) or exists (${OVERDUE_BATCHES}) as due_batches,
    exists (select from boxcar.turns t where t.status = 'queued') as queued,
    exists (select from boxcar.operations o where o.door_job_id is not null) as waiting_doors,
    exists (select from boxcar.workers w where ${LONG_DEAD}) as dead_workers,
    exists (select from boxcar.sweep_failures f where ${settledFailure(NOW)}) as settled_failures,
    ${hasLongWaits(NOW)} as long_waits,
    ${hasFailedTurns} as failed_turns,
    ${hasLostTurns} as lost_turns,
    exists (${dueNotices(NOW)}) as notices,
    exists (${dueHandoffNotices(NOW)}) as handoff_notices,
    exists (select from boxcar.webhook_deliveries d where d.status = 'pending' and d.next_at <= ${NOW}) as webhooks,
    exists (${leftForks(NOW)}) as left_forks,
    exists (select from boxcar.waits w where w.kind = 'selector') as selector_waits,
    exists (select from boxcar.approvals a where a.status = 'pending' and a.expires_at <= ${NOW})
    or exists (select from boxcar.approvals a where ${IS_LEFT})
    or exists (
      select from boxcar.handoffs h
      join boxcar.approvals a on a.id = h.ticket_id
      where ${IS_LEFT_HANDOFF}
    ) as approvals`);

export interface SweepFindings {
  readonly lost_rings: boolean;
  readonly dead_leases: boolean;
  readonly overdue_turns: boolean;
  readonly overdue_calls: boolean;
  /** Calls of outside workers whose job is due for a look. */
  readonly due_looks: boolean;
  /** Turns that wait for a time that has come, or for a budget. */
  readonly due_waits: boolean;
  /** Batches that must be ended, or that are past their deadline. */
  readonly due_batches: boolean;
  readonly queued: boolean;
  /** Jobs wait at the queue door: the turns or batches of some may have ended. */
  readonly waiting_doors: boolean;
  readonly dead_workers: boolean;
  /** Rows that could not be handled earlier, and have been handled since. */
  readonly settled_failures: boolean;
  /** Awaited turns that have been queued for long: their waits may form a cycle. */
  readonly long_waits: boolean;
  /** Turns that were given up and have not been ended. */
  readonly failed_turns: boolean;
  /** Calls or batches that wait for a turn or batch that could not be ended. */
  readonly lost_turns: boolean;
  /** Ends of turns of sessions that must be reported. */
  readonly notices: boolean;
  /** Ends of handoffs that must be reported to the agents that asked. */
  readonly handoff_notices: boolean;
  /** Events that must be sent to outside receivers. */
  readonly webhooks: boolean;
  /** Open forks whose turn has ended. */
  readonly left_forks: boolean;
  /** Turns that wait for a worker with their selector. */
  readonly selector_waits: boolean;
  /** Requests for approval that have expired, or that were decided and not acted on. */
  readonly approvals: boolean;
}

const NOTHING: SweepFindings = {
  lost_rings: false,
  dead_leases: false,
  overdue_turns: false,
  overdue_calls: false,
  due_looks: false,
  due_waits: false,
  due_batches: false,
  queued: false,
  waiting_doors: false,
  dead_workers: false,
  settled_failures: false,
  long_waits: false,
  failed_turns: false,
  lost_turns: false,
  notices: false,
  handoff_notices: false,
  webhooks: false,
  left_forks: false,
  selector_waits: false,
  approvals: false,
};

/** Checks whether there is anything to do. An idle sweep costs only this one statement. */
export async function probe(
  db: Queryable,
  options: SweepClock & { readonly lostRingMs: number },
): Promise<SweepFindings> {
  const [row] = await run<SweepFindings & pg.QueryResultRow>(db, PROBE, [
    options.now ?? null,
    options.lostRingMs,
  ]);
  return row ?? NOTHING;
}

const ELECT = statement(`
  update /* sweep.elect */ boxcar.sweeper
  set holder_id = $1, lease_until = clock_timestamp() + $2 * interval '1 millisecond'
  where lease_until <= clock_timestamp()
  returning true`);

const STEP_DOWN = statement(
  "update /* sweep.step_down */ boxcar.sweeper set holder_id = null, lease_until = '-infinity' where holder_id = $1",
);

/**
 * Runs `body` if no other process sweeps at this moment; false when another process does. A sweeper that dies or is stopped delays the
 * others by its lease at most. When a sweep outlasts its lease, a second sweep may run at the same time. This is safe, since the first
 * sweep to lock a row takes it.
 */
export async function elected(pool: pg.Pool, leaseMs: number, body: () => Promise<void>): Promise<boolean> {
  const me = randomUUID();
  if ((await run(pool, ELECT, [me, leaseMs])).length === 0) return false;
  try {
    await body();
  } finally {
    await run(pool, STEP_DOWN, [me]);
  }
  return true;
}

const DEAD_TURNS = statement(`
  select /* sweep.dead_turns */ t.id as turn_id, t.project_id
  from boxcar.turns t
  where ${DEAD} and t.losses < $2 - 1
  order by t.id
  limit $3`);

/** Finds the turns that {@link takeOver} takes. */
export function findDeadTurns(
  pool: pg.Pool,
  options: SweepClock & { maxLosses: number; limit: number },
): Promise<{ turn_id: TurnId; project_id: ProjectId }[]> {
  return runRetrying(pool, DEAD_TURNS, [options.now ?? null, options.maxLosses, options.limit]);
}

const TAKE_OVER = statement(`
  with /* sweep.take_over */
  lk as (
    select t.id
    from boxcar.turns t
    where t.id = any ($3::uuid[])
      and ${hasStatus('running')}
      and ${UNHELD}
      and t.losses < $2 - 1
    order by t.id
    for update of t skip locked
  )
  update boxcar.turns t
  set status = 'dispatched',
    epoch = t.epoch + 1,
    holder_id = null,
    dispatched_at = now(),
    losses = t.losses + 1
  from lk
  where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

/**
 * Takes turns from holders whose lease has ended. The turns continue from their last committed step.
 *
 * @param options.maxLosses - The number of workers lost at the same step that ends a turn.
 * @param options.turnIds - Only these turns. Default: all that {@link findDeadTurns} finds.
 */
export async function takeOver(
  pool: pg.Pool,
  options: SweepClock & { maxLosses: number; limit: number; turnIds?: readonly TurnId[] },
): Promise<readonly Ring[]> {
  const turnIds = options.turnIds ?? (await findDeadTurns(pool, options)).map((turn) => turn.turn_id);
  if (turnIds.length === 0) return [];
  const rows = await runRetrying<Parameters<typeof toRing>[0]>(pool, TAKE_OVER, [
    options.now ?? null,
    options.maxLosses,
    turnIds,
  ]);
  return rows.map(toRing);
}

export interface OverdueTurn extends EndableTurn {
  /** The account that governs the turn, when the time of that account is over; otherwise null. */
  readonly over_budget_id: string | null;
}

// A waiting turn is older than the turns it waits for, and may have the same deadline. So it ends first, and its call is not answered.
const OVERDUE_TURNS = statement(`
  select /* sweep.overdue_turns */
    ${ENDABLE},
    (select b.id from boxcar.budgets b where b.id = t.budget_id and b.deadline_at <= ${NOW}) as over_budget_id
  from boxcar.turns t
  where ${OVERDUE_TURN}
  order by t.deadline_at, t.id
  limit $2`);

/** Turns past their deadline, in any status that is not final. */
export function findOverdueTurns(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<OverdueTurn[]> {
  return runRetrying<OverdueTurn>(pool, OVERDUE_TURNS, [options.now ?? null, options.limit]);
}

const EXHAUSTED_TURNS = statement(`
  select /* sweep.exhausted_turns */ ${ENDABLE}
  from boxcar.turns t
  where ${DEAD} and t.losses >= $2 - 1
  order by t.id
  limit $3`);

/** Turns that lost their worker too often at the same step. */
export function findExhaustedTurns(
  pool: pg.Pool,
  options: SweepClock & { maxLosses: number; limit: number },
): Promise<EndableTurn[]> {
  return runRetrying<EndableTurn>(pool, EXHAUSTED_TURNS, [
    options.now ?? null,
    options.maxLosses,
    options.limit,
  ]);
}

export interface OverdueCall extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
  /** The target whose queue has the call's job; null when the call has no job. */
  readonly target: string | null;
  readonly is_awaiting: boolean;
  /** In the text form of Postgres. An answer to the call counts only while the call has this deadline. */
  readonly deadline_at: string;
}

const OVERDUE_CALLS = statement(`
  select /* sweep.overdue_calls */
    k.id, k.turn_id, k.project_id, k.name, k.target, k.deadline_at::text as deadline_at,
    exists (select from boxcar.turns c where c.parent_tool_call_id = k.id and c.is_awaited) as is_awaiting
  from boxcar.tool_calls k
  where ${OVERDUE_CALL}
  order by k.deadline_at
  limit $2`);

/** Unanswered calls past their deadline. */
export function findOverdueCalls(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<OverdueCall[]> {
  return runRetrying<OverdueCall>(pool, OVERDUE_CALLS, [options.now ?? null, options.limit]);
}

const FIND_DUE_BATCHES = statement(`
  select /* sweep.find_due_batches */ *
  from (${DUE_BATCHES} order by b.id limit $2) u
  union
  (${OVERDUE_BATCHES} order by b.deadline_at limit $2)`);

/** Batches that must be ended, or that are past their deadline. */
export async function findDueBatches(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<readonly { readonly id: BatchId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_DUE_BATCHES, [options.now ?? null, options.limit]);
}

const QUEUED_TARGETS = statement(`
  with recursive /* sweep.queued_targets */
  targets as (
    (
      select t.worker_target
      from boxcar.turns t
      where t.status = 'queued'
      order by t.worker_target
      limit 1
    )
    union all
    select (
      select t.worker_target
      from boxcar.turns t
      where t.status = 'queued' and t.worker_target > g.worker_target
      order by t.worker_target
      limit 1
    )
    from targets g
    where g.worker_target is not null
  )
  select worker_target
  from targets
  where worker_target is not null`);

/** Targets that have queued turns. */
export async function findQueuedTargets(pool: pg.Pool): Promise<readonly string[]> {
  return (await runRetrying<{ worker_target: string }>(pool, QUEUED_TARGETS, [])).map(
    (row) => row.worker_target,
  );
}
