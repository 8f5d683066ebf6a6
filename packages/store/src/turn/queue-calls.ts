/**
 * Calls that outside workers answer through a queue: their state in the rows, and the time of the next look at the queue. `look_at` is
 * that time. Null means that the queue has nothing more to tell: only an answer or the deadline ends the call.
 */
import { randomInt } from 'node:crypto';
import type { JsonValue, ProjectId, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type LockLimit,
  limitLocks,
  patientOn,
  type Queryable,
  retriesOf,
  retryTransient,
  run,
  runRetrying,
  statement,
  type Tx,
  transactOnce,
} from '../db/index.js';
import type { CallRouteKind } from '../kinds/row-kinds.js';
import type { CallSettlement } from './call-types.js';
import type { SweepClock } from './sweep-turns.js';

export interface QueueCall extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
  readonly route: CallRouteKind;
  readonly target: string | null;
  readonly retry: 'safe' | 'never';
  readonly status: CallSettlement['status'] | 'pending';
  /** True when the call's job was in the queue, or may have been. Set only for calls that must not be sent twice. */
  readonly is_sent: boolean;
  /** True when the turn that waits for the call has ended. */
  readonly is_over: boolean;
}

const QUEUE_CALL = `
  select /* queue-calls.queue_call */ k.id, k.turn_id, k.project_id, k.name, k.route, k.target, k.retry, k.status,
    k.sent_at is not null as is_sent, t.ended_at is not null as is_over
  from boxcar.tool_calls k
  join boxcar.turns t on t.id = k.turn_id`;

const CALLS = statement(`${QUEUE_CALL} where k.id = any ($1::uuid[])`);

/** Loads calls by id, of any route and status. */
export function loadQueueCalls(db: Queryable, ids: readonly ToolCallId[]): Promise<QueueCall[]> {
  return run<QueueCall>(db, CALLS, [ids]);
}

const DUE = statement(`
  ${QUEUE_CALL}
  where k.look_at <= coalesce($1::timestamptz, now())
    and k.look_at is not null
    and k.status = 'pending'
  order by k.look_at
  limit $2`);

/** Calls that are due for a look at their job. The calls that have waited longest for a look are first. */
export function findDueCalls(pool: pg.Pool, options: SweepClock & { limit: number }): Promise<QueueCall[]> {
  return runRetrying<QueueCall>(pool, DUE, [options.now ?? null, options.limit]);
}

const ARGUMENTS = statement(
  'select /* queue-calls.arguments */ k.id, k.arguments from boxcar.tool_calls k where k.id = any ($1::uuid[])',
);

/** Loads the arguments of calls whose job must be created again. */
export async function loadArguments(
  db: Queryable,
  ids: readonly ToolCallId[],
): Promise<ReadonlyMap<ToolCallId, JsonValue>> {
  const rows = await run<{ id: ToolCallId; arguments: JsonValue }>(db, ARGUMENTS, [ids]);
  return new Map(rows.map((row) => [row.id, row.arguments]));
}

// The interval between looks grows with the age of a call, so that a backlog of slow calls does not delay the looks at other calls. One
// more look shortly before the deadline finds an answer whose bell was lost.
const NOTE = statement(`
  with /* queue-calls.note */
  lk as (
    select k.id
    from boxcar.tool_calls k
    where k.id = any ($1::uuid[]) and k.status = 'pending'
    order by k.id
    for update of k skip locked
  )
  update boxcar.tool_calls k
  set
    look_at = case
      when k.id = any ($2::uuid[]) then null
      else least(
        now() + least(greatest((now() - k.created_at) / 4, interval '2 seconds'), interval '60 seconds'),
        greatest(k.deadline_at - interval '3 seconds', now() + interval '1 second')
      )
    end,
    sent_at = case when k.id = any ($3::uuid[]) then coalesce(k.sent_at, now()) else k.sent_at end
  from lk
  where k.id = lk.id
  returning k.id`);

/**
 * Records the result of a look. `restIds` need no further look. `sentIds` must not be sent twice and have their job in the queue.
 *
 * @returns The calls that were recorded. A call that another session has locked is not recorded, and stays due.
 */
export async function noteLooks(
  pool: pg.Pool,
  looks: {
    readonly callIds: readonly ToolCallId[];
    readonly restIds?: readonly ToolCallId[];
    readonly sentIds?: readonly ToolCallId[];
  },
): Promise<ReadonlySet<ToolCallId>> {
  if (looks.callIds.length === 0) return new Set();
  const values = [looks.callIds, looks.restIds ?? [], looks.sentIds ?? []];
  const rows = await runRetrying<{ id: ToolCallId }>(pool, NOTE, values);
  return new Set(rows.map((row) => row.id));
}

const MARK = statement(`
  with /* queue-calls.mark */
  lk as (
    select k.id
    from boxcar.tool_calls k
    where k.id = any ($1::uuid[]) and k.status = 'pending'
    order by k.id
    for update of k
  )
  update boxcar.tool_calls k
  set sent_at = date_trunc('second', now()) + m.signature * interval '1 microsecond'
  from lk
  join unnest($1::uuid[], $2::int[]) as m(id, signature) on m.id = lk.id
  where k.id = lk.id and k.sent_at is null
  returning k.id`);
const MARKED = statement(`
  select /* queue-calls.marked */ k.id
  from unnest($1::uuid[], $2::int[]) as m(id, signature)
  cross join lateral (
    select *
    from boxcar.tool_calls k
    where k.id = m.id
      and k.status = 'pending'
      and (extract(microseconds from k.sent_at)::int % 1000000) = m.signature
    offset 0
  ) k`);

/**
 * Identifies the process that made a mark, in case the answer is lost. The identity is the fraction of the second in `sent_at`, in
 * microseconds.
 */
export interface SendMark {
  readonly id: ToolCallId;
  readonly signature: number;
  /** The mark may already exist: an earlier try got no answer. */
  readonly mayExist: boolean;
}

export const newMark = (id: ToolCallId): SendMark => ({
  id,
  signature: randomInt(1_000_000),
  mayExist: false,
});

/**
 * Marks calls that must not be sent twice, before they are sent: only the process that has marked a call sends it.
 *
 * @returns The calls that the caller must send.
 * @throws KernelError `database_unavailable`: the marks may exist. Call it again with the same marks and `mayExist` to find out.
 *   With a limit, a locked row fails as `55P03`.
 */
export async function markSent(
  pool: pg.Pool,
  marks: readonly SendMark[],
  limit: LockLimit = {},
): Promise<ReadonlySet<ToolCallId>> {
  if (marks.length === 0) return new Set();
  const values = [marks.map(({ id }) => id), marks.map(({ signature }) => signature)];
  const mayExist = marks.some((mark) => mark.mayExist);
  const mark = (): Promise<{ id: ToolCallId }[]> =>
    limit.lockMs === undefined
      ? run(pool, MARK, values)
      : transactOnce(pool, (tx) => {
          limitLocks(tx, limit);
          return run(tx, MARK, values);
        });
  const rows = await retryTransient(
    async (attempt) => {
      const marked = await mark();
      // This statement begins after the mark, which waits for an earlier try that is still running.
      return attempt === 1 && !mayExist ? marked : run<{ id: ToolCallId }>(pool, MARKED, values);
    },
    { ...patientOn(pool), ...retriesOf(limit) },
  );
  return new Set(rows.map((row) => row.id));
}

const HASTEN = statement(`
  with /* queue-calls.hasten */
  lk as (
    select k.id
    from boxcar.tool_calls k
    where k.turn_id = any ($1::uuid[]) and k.status = 'pending' and k.route = 'queue'
    order by k.id
    for update of k
  )
  update boxcar.tool_calls k
  set look_at = now()
  from lk
  where k.id = lk.id`);

/** Makes the calls of ended turns due for a look, so that the next sweep handles their jobs. */
export async function hastenLooks(pool: pg.Pool, turnIds: readonly TurnId[]): Promise<void> {
  if (turnIds.length > 0) await runRetrying(pool, HASTEN, [turnIds]);
}

/** The same as `hastenLooks`, in the transaction that ends the turns. */
export async function hastenLooksWithin(tx: Tx, turnIds: readonly TurnId[]): Promise<void> {
  await run(tx, HASTEN, [turnIds]);
}
