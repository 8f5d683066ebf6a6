/**
 * Calls that workers outside answer through a queue: what the rows know of them, and when to ask the queue again.
 * `look_at` is that moment; null = nothing more to be learnt there, only an answer or the deadline ends the call.
 */
import type { JsonValue, ProjectId, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement, type Tx } from './db.js';
import type { SweepClock } from './sweep.js';
import type { CallRouteKind, CallSettlement } from './tool-calls.js';

export interface QueueCall extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
  readonly route: CallRouteKind;
  readonly target: string | null;
  readonly retry: 'safe' | 'never';
  readonly status: CallSettlement['status'] | 'pending';
  /** Its job was in the queue once; known only of calls that must not be sent twice. */
  readonly is_sent: boolean;
  /** The turn that waits for it has ended. */
  readonly is_over: boolean;
}

const QUEUE_CALL = `
  select k.id, k.turn_id, k.project_id, k.name, k.route, k.target, k.retry, k.status, k.sent_at is not null as is_sent, t.ended_at is not null as is_over
  from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id`;

const CALLS = statement(`${QUEUE_CALL} where k.id = any ($1::uuid[])`);

/** Calls by id, of whatever route and status. */
export function loadQueueCalls(db: Queryable, ids: readonly ToolCallId[]): Promise<QueueCall[]> {
  return run<QueueCall>(db, CALLS, [ids]);
}

const DUE = statement(`
  ${QUEUE_CALL} where k.look_at <= coalesce($1::timestamptz, now()) and k.look_at is not null and k.status = 'pending' order by k.look_at limit $2`);

/** Calls whose job is due for a look, those that have waited longest for one first. */
export function findDueCalls(pool: pg.Pool, options: SweepClock & { limit: number }): Promise<QueueCall[]> {
  return runRetrying<QueueCall>(pool, DUE, [options.now ?? null, options.limit]);
}

const ARGUMENTS = statement(
  'select k.id, k.arguments from boxcar.tool_calls k where k.id = any ($1::uuid[])',
);

/** The arguments of calls whose job has to be made again. */
export async function loadArguments(
  db: Queryable,
  ids: readonly ToolCallId[],
): Promise<ReadonlyMap<ToolCallId, JsonValue>> {
  const rows = await run<{ id: ToolCallId; arguments: JsonValue }>(db, ARGUMENTS, [ids]);
  return new Map(rows.map((row) => [row.id, row.arguments]));
}

// The older a call, the rarer the looks: a backlog of slow calls must not take them from the others. Shortly before its
// deadline there is one more, so that an answer whose bell was lost is not missed.
const NOTE = statement(`
  with lk as (
    select k.id from boxcar.tool_calls k where k.id = any ($1::uuid[]) and k.status = 'pending' order by k.id for update of k
  )
  update boxcar.tool_calls k set
    look_at = case when k.id = any ($2::uuid[]) then null
      else least(
        now() + least(greatest((now() - k.created_at) / 4, interval '2 seconds'), interval '60 seconds'),
        greatest(k.deadline_at - interval '3 seconds', now() + interval '1 second')) end,
    sent_at = case when k.id = any ($3::uuid[]) then now() else k.sent_at end
  from lk where k.id = lk.id`);

/** What a look, or a sending, has shown: which calls need no further look, which have their job in the queue now. */
export async function noteLooks(
  pool: pg.Pool,
  looks: {
    readonly callIds: readonly ToolCallId[];
    readonly restIds?: readonly ToolCallId[];
    readonly sentIds?: readonly ToolCallId[];
  },
): Promise<void> {
  if (looks.callIds.length === 0) return;
  await runRetrying(pool, NOTE, [looks.callIds, looks.restIds ?? [], looks.sentIds ?? []]);
}

const HASTEN = statement(`
  with lk as (
    select k.id from boxcar.tool_calls k where k.turn_id = any ($1::uuid[]) and k.status = 'pending' and k.route = 'queue' order by k.id for update of k
  )
  update boxcar.tool_calls k set look_at = now() from lk where k.id = lk.id`);

/** Turns that ended with calls still out: their jobs are looked after at the next sweep. */
export async function hastenLooks(pool: pg.Pool, turnIds: readonly TurnId[]): Promise<void> {
  if (turnIds.length > 0) await runRetrying(pool, HASTEN, [turnIds]);
}

/** The same as part of the transaction that ends them. */
export async function hastenLooksWithin(tx: Tx, turnIds: readonly TurnId[]): Promise<void> {
  await run(tx, HASTEN, [turnIds]);
}
