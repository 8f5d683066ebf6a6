/**
 * Calls of turns that wait for an approval.
 *
 * G1  A waiting call is open, and its time does not run: its deadline moves to a time after that of the ticket, and is set again when the
 *     ticket is consumed. The call holds no worker, no connection and no timer. Until then no sweep sends the job of a call to an external
 *     worker.
 * G2  A decision dispatches the turn of its call if the turn is suspended. A worker that suspends a turn looks at its tickets once more,
 *     since a decision may have come before. The sweep finds turns that both have missed.
 * G3  A ticket that was not consumed proves that its call was not begun, even after a crash. A call has one ticket that counts: only the
 *     claim that holds its turn makes a ticket, and only for a call without one.
 * Rule: docs/reference/approvals.md, "Calls that wait".
 */
import type { Ring, TicketId, TicketStatus, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { FIRST_LOOK, hasStatus, type RingRow, toRing } from '../turn/index.js';
import { IS_LEFT } from '../work/index.js';
import { APPROVALS_CHANNEL, type NewTicket, requestApproval, voidTicket } from './tickets.js';

/** Gives the sweep time to expire the ticket before the call is overdue. */
const SPARE_MS = 60_000;

/** The format of builds that know tickets. An older build would run the call. */
const APPROVALS_FORMAT = 34;

// The turn stays locked until the ticket exists, so no other worker can take the turn over in between.
const LOCK_TURN = statement(`
  with /* gated-calls.lock_turn */
  lk as (
    select t.id, t.format
    from boxcar.turns t
    where t.id = $1 and t.epoch = $2 and ${hasStatus('running')}
    for no key update of t
  ),
  raised as (
    update boxcar.turns t
    set format = ${APPROVALS_FORMAT}
    from lk
    where t.id = lk.id and lk.format < ${APPROVALS_FORMAT}
  )
  select lk.id
  from lk`);

const STOP_CLOCK = statement(`
  update /* gated-calls.stop_clock */ boxcar.tool_calls k
  set deadline_at = now() + $2 * interval '1 millisecond', look_at = null
  where k.id = $1 and k.status = 'pending'
  returning k.id`);

/**
 * Makes a call wait (G1), and keeps its turn from builds that do not know tickets.
 *
 * @param options.epoch - The epoch of the requesting claim: the turn may have another holder by now.
 * @param options.replaces - The ticket that does not count any more.
 * @returns False when the call was answered meanwhile, has another ticket, or belongs to another holder.
 */
export async function parkCall(
  tx: Tx,
  ticket: NewTicket & { readonly turnId: TurnId; readonly toolCallId: ToolCallId; readonly callMs: number },
  { epoch, replaces }: { readonly epoch: number; readonly replaces?: TicketId | undefined },
): Promise<boolean> {
  const { turnId, toolCallId, projectId, timeoutMs, callMs } = ticket;
  if ((await run(tx, LOCK_TURN, [turnId, epoch])).length === 0) return false;
  if (replaces !== undefined && !(await voidTicket(tx, { ticketId: replaces, projectId }))) return false;
  if ((await findCallTicket(tx, { toolCallId, turnId, epoch })) !== undefined) return false;
  const open = await run(tx, STOP_CLOCK, [toolCallId, timeoutMs + callMs + SPARE_MS]);
  if (open.length === 0) return false;
  await requestApproval(tx, ticket);
  return true;
}

/** The ticket of a call. */
export interface CallTicket extends pg.QueryResultRow {
  readonly id: TicketId;
  readonly status: TicketStatus;
  readonly args_hash: string;
  readonly policy_version: string;
  readonly decision_reason: string | null;
  readonly resolved_by: string | null;
  /** Consumed by another claim of the turn. */
  readonly is_consumed: boolean;
  /** How long the call may take after its begin. */
  readonly call_ms: number;
}

const OF_CALL = statement(`
  select /* gated-calls.of_call */
    a.id, a.status, a.args_hash, a.policy_version, a.decision_reason, a.resolved_by,
    a.consumed_at is not null and a.consumed_epoch is distinct from $3 as is_consumed,
    a.call_ms::float8 as call_ms
  from boxcar.approvals a
  where a.tool_call_id = $1 and a.turn_id = $2 and a.voided_at is null
  order by a.created_at desc, a.id desc
  limit 1`);

/** The ticket of a call that counts; undefined when the call has no such ticket. */
export async function findCallTicket(
  db: Queryable,
  {
    toolCallId,
    turnId,
    epoch,
  }: { readonly toolCallId: ToolCallId; readonly turnId: TurnId; readonly epoch: number },
): Promise<CallTicket | undefined> {
  return (await run<CallTicket>(db, OF_CALL, [toolCallId, turnId, epoch]))[0];
}

/** Starts the clock of the calls whose tickets are in `used`. */
const START_CLOCK = `
  update boxcar.tool_calls k
  set deadline_at = now() + used.call_ms * interval '1 millisecond',
    look_at = case when k.route = 'queue' then now() + ${FIRST_LOOK} end
  from used
  where k.id = used.tool_call_id and k.status = 'pending'
  returning used.call_ms::float8 as call_ms`;

const CONSUME = statement(`
  with /* gated-calls.consume */
  used as (
    update boxcar.approvals a
    set consumed_at = coalesce(a.consumed_at, now()), consumed_epoch = $4
    where a.id = $1
      and a.tool_call_id = $2
      and a.status = 'approved'
      and (a.consumed_at is null or a.consumed_epoch = $4)
      and a.voided_at is null
      and a.args_hash = $3
    returning a.tool_call_id, a.call_ms
  )
  ${START_CLOCK}`);

/**
 * Consumes the ticket of a call that is about to begin, and starts its clock. @returns How long the call may take; undefined when it may
 * not begin.
 */
export async function consumeForCall(
  db: Queryable,
  of: {
    readonly ticketId: TicketId;
    readonly toolCallId: ToolCallId;
    readonly argsHash: string;
    /** The epoch of the claim that begins the call. After a lost answer, the same claim can ask again and gets the same result. */
    readonly epoch: number;
  },
): Promise<number | undefined> {
  const [row] = await run<{ call_ms: number }>(db, CONSUME, [
    of.ticketId,
    of.toolCallId,
    of.argsHash,
    of.epoch,
  ]);
  return row?.call_ms;
}

const SET_ASIDE = statement(`
  with /* gated-calls.set_aside */
  used as (
    update boxcar.approvals a
    set voided_at = now(),
      status = case when a.status = 'pending' then 'expired' else a.status end,
      resolved_at = coalesce(a.resolved_at, now()),
      resolved_by = coalesce(a.resolved_by, 'system:policy'),
      decision_reason = case when a.status = 'pending' then 'The policy has changed' else a.decision_reason end
    where a.id = $1
      and a.tool_call_id = $2
      and a.consumed_at is null
      and a.voided_at is null
      and a.status in ('pending', 'approved')
    returning a.id, a.tool_call_id, a.call_ms
  ),
  told as (select pg_notify('${APPROVALS_CHANNEL}', u.id::text) from used u)
  ${START_CLOCK},
    (select count(*) from told)`);

/**
 * Sets the ticket aside when the policy itself has decided about the call: no decision is needed any more, and the clock of the call
 * starts.
 *
 * @returns How long the call may take; undefined when it was denied, begun or answered meanwhile.
 */
export async function setAside(
  db: Queryable,
  { ticketId, toolCallId }: { readonly ticketId: TicketId; readonly toolCallId: ToolCallId },
): Promise<number | undefined> {
  return (await run<{ call_ms: number }>(db, SET_ASIDE, [ticketId, toolCallId]))[0]?.call_ms;
}

const LOOK_AFTER = statement(`
  update /* gated-calls.look_after */ boxcar.tool_calls k
  set look_at = now() + ${FIRST_LOOK}
  where k.id = $1 and k.status = 'pending' and k.route = 'queue' and k.look_at is null`);

/** Called when a call begins that might have had to wait: from here on the sweep looks after its job. */
export async function lookAfter(db: Queryable, toolCallId: ToolCallId): Promise<void> {
  await run(db, LOOK_AFTER, [toolCallId]);
}

/** For a call `k`: its ticket was decided, and the call was neither begun nor answered since. */
const IS_DECIDED = `
  exists (
    select from boxcar.approvals a
    where a.tool_call_id = k.id
      and a.consumed_at is null
      and a.voided_at is null
      and a.status <> 'pending'
  )`;

const wakeText = (locking: string): string => `
  with /* gated-calls.wake */
  lk as (
    select t.id
    from boxcar.turns t
    where t.id = any ($1::uuid[])
      and ${hasStatus('suspended')}
      and exists (
        select from boxcar.tool_calls k
        where k.turn_id = t.id and k.status = 'pending' and ${IS_DECIDED}
      )
    order by t.id
    for update of t ${locking}
  )
  update boxcar.turns t
  set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from lk
  where t.id = lk.id and ${hasStatus('suspended')}
  returning t.id as turn_id, t.epoch, t.worker_target`;
const WAKE = statement(wakeText(''));
const WAKE_FREE = statement(wakeText('skip locked'));

/**
 * Dispatches suspended turns that have a decided call (G2).
 *
 * @param options.skipsLocked - Skips turns whose rows are locked, instead of waiting for them.
 * @returns The rings of the turns.
 */
export async function wakeDecided(
  db: Queryable,
  turnIds: readonly TurnId[],
  options: { readonly skipsLocked?: boolean } = {},
): Promise<readonly Ring[]> {
  if (turnIds.length === 0) return [];
  return (await run<RingRow>(db, options.skipsLocked === true ? WAKE_FREE : WAKE, [turnIds])).map(toRing);
}

// Tickets whose call was answered, or was deleted with its turn: no other code looks at them again.
const CLOSE = statement(`
  update /* gated-calls.close */ boxcar.approvals a
  set voided_at = coalesce($1::timestamptz, now())
  where ${IS_LEFT}
    and not exists (select from boxcar.tool_calls k where k.id = a.tool_call_id and k.status = 'pending')`);

/** Sets tickets aside whose call was answered without them. */
export async function closeAnswered(
  db: Queryable,
  options: { readonly now?: Date | undefined } = {},
): Promise<void> {
  await run(db, CLOSE, [options.now ?? null]);
}

// Skips a ticket that is being decided, because its decision has no effect any more.
const WITHDRAW = statement(`
  with /* gated-calls.withdraw */
  lk as (
    select a.id
    from boxcar.approvals a
    where a.tool_call_id = any ($1::uuid[])
      and a.consumed_at is null
      and a.voided_at is null
      and a.status = 'pending'
    for no key update of a skip locked
  ),
  over as (
    update boxcar.approvals a
    set status = 'expired',
      resolved_at = now(),
      resolved_by = 'system:turn-ended',
      decision_reason = 'The turn has ended',
      voided_at = now()
    from lk
    where a.id = lk.id
    returning a.id
  )
  select pg_notify('${APPROVALS_CHANNEL}', o.id::text)
  from over o`);

/** Withdraws the requests of calls whose turn has ended: they must not be decided any more. */
export async function withdrawTickets(tx: Tx, toolCallIds: readonly ToolCallId[]): Promise<void> {
  if (toolCallIds.length > 0) await run(tx, WITHDRAW, [toolCallIds]);
}

const FIND = statement(`
  select /* gated-calls.find */ distinct t.id
  from boxcar.approvals a
  join boxcar.tool_calls k on k.id = a.tool_call_id
  join boxcar.turns t on t.id = k.turn_id
  where ${IS_LEFT} and k.status = 'pending' and t.status = 'suspended'
  limit $2`);

/** Turns that were not woken after a decision, because a process died in between. */
export async function findUnwoken(
  db: Queryable,
  options: { readonly limit: number; readonly now?: Date | undefined },
): Promise<readonly TurnId[]> {
  return (await run<{ id: TurnId }>(db, FIND, [options.now ?? null, options.limit])).map(({ id }) => id);
}
