/**
 * Batches: turns whose ends are joined into one answer.
 *
 * B1  One statement ends a turn and lowers the counters of the batches that wait for it (`LOWER_BATCHES`, part of the commit). It
 *     begins after the turn was locked. The RETURNING of its UPDATE tells which batches the end makes due.
 * B2  A transaction that adds a batch to an existing turn holds the turn's lock. So an end either sees the batch, or was seen by that
 *     transaction.
 * B3  A batch gets its final status once, under its lock, together with the result of the call that waits for it.
 *
 * The kernel makes the decisions (`join.ts`). Lock order as everywhere: turns, tapes, batches, tool calls, each by id.
 */
import type {
  AgentId,
  BatchId,
  BatchKind,
  BatchStatus,
  BoxId,
  Closing,
  ErrorBody,
  FinalBatchStatus,
  JsonValue,
  ProjectId,
  RunId,
  ToolCallId,
  TurnId,
  TurnStatus,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { holdErasures } from '../erase/erasure.js';
import { KNOWS_END, lostCause } from '../rows/index.js';

/**
 * Part of the commit of ends, after its part `up`: lowers the counters of the batches of the turns that end. Each batch is updated
 * once, however many of its members end here. The process that commits finishes the batches with `lowered.is_due`. The part is left out
 * when no batch waits for the locked turns.
 */
export const LOWER_BATCHES = `
  , lows as (
    select
      u.batch_id, count(*)::int as n,
      (count(*) filter (where up.status = 'success'))::int as ok,
      (count(*) filter (where up.status in ('failed', 'timeout', 'canceled')))::int as bad
    from up
    cross join lateral unnest(up.batch_ids) as u(batch_id)
    where up.ended_at is not null
    group by u.batch_id
  ),
  batch_locks as (
    select lows.*
    from boxcar.batches b
    join lows on lows.batch_id = b.id
    order by b.id
    for update of b
  ),
  lowered as (
    update boxcar.batches b
    set
      remaining = b.remaining - k.n,
      succeeded = b.succeeded + k.ok,
      failed = b.failed + k.bad,
      is_due = b.is_due
        or (
          b.status = 'running'
          and (
            b.remaining = k.n
            or (
              b.closing is null
              and (coalesce(b.succeeded + k.ok >= b.min_success, false) or (b.fail_fast and b.failed + k.bad > 0))
            )
          )
        )
    from batch_locks k
    where b.id = k.batch_id
    returning b.id, b.is_due and (b.remaining = 0 or b.closing is null) as is_due
  )`;

const LOCK_BATCHES = statement(`
  with /* batches.lock_batches */
  free as materialized (
    select b.id
    from boxcar.batches b
    where b.id in (select unnest(t.batch_ids) from boxcar.turns t where t.id = any ($1::uuid[]))
    order by b.id
    for update of b skip locked
  )
  select t.id
  from boxcar.turns t
  where t.id = any ($1::uuid[])
    and exists (
      select from boxcar.batches b
      where b.id = any (t.batch_ids) and (b.id in (select id from free)) is not true
    )`);

/** Locks the batches that wait for turns. @returns The turns with a batch that another transaction has locked. */
export async function lockBatchesOf(tx: Tx, turnIds: readonly TurnId[]): Promise<ReadonlySet<TurnId>> {
  const rows = turnIds.length === 0 ? [] : await run<{ id: TurnId }>(tx, LOCK_BATCHES, [turnIds]);
  return new Set(rows.map((row) => row.id));
}

const CLOSE_OF = statement(`
  with /* batches.close_of */
  lk as (
    select b.id
    from boxcar.batches b
    where b.turn_id = any ($1::uuid[])
      and b.status = 'running'
      and b.tool_call_id is not null
      and b.closing is null
    order by b.id
    for update
  )
  update boxcar.batches b
  set closing = 'cancel', is_due = true
  from lk
  where b.id = lk.id
  returning b.id`);

/** Closes the batches of turns that ended while their calls were open: no call waits for these batches anymore. */
export async function closeBatchesOf(tx: Tx, turnIds: readonly TurnId[]): Promise<readonly BatchId[]> {
  return (await run<{ id: BatchId }>(tx, CLOSE_OF, [turnIds])).map((row) => row.id);
}

export interface BatchRow extends pg.QueryResultRow {
  readonly id: BatchId;
  readonly project_id: ProjectId;
  readonly project_name: string;
  readonly run_id: RunId | null;
  readonly turn_id: TurnId | null;
  readonly tool_call_id: ToolCallId | null;
  readonly primitive: string;
  readonly kind: BatchKind;
  readonly turn_ids: readonly TurnId[];
  readonly remaining: number;
  readonly succeeded: number;
  readonly failed: number;
  readonly min_success: number | null;
  readonly fail_fast: boolean;
  readonly status: BatchStatus;
  readonly closing: Closing | null;
  readonly is_overdue: boolean;
  /** The result of the batch when no call waited for it. */
  readonly answer: JsonValue;
  /** The cause why its end was given up; null otherwise. */
  readonly lost_cause: string | null;
}

const COLUMNS = `
  b.id, b.project_id, p.name as project_name, b.run_id, b.turn_id, b.tool_call_id, b.primitive, b.kind, b.turn_ids,
  b.remaining, b.succeeded, b.failed, b.min_success, b.fail_fast, b.status, b.closing,
  coalesce(b.deadline_at <= coalesce($2::timestamptz, now()), false) as is_overdue,
  b.answer,
  case when b.status = 'running' then ${lostCause('b.id', ['due_batches'])} end as lost_cause`;

const LOAD = statement(`
  select /* batches.load */ ${COLUMNS}
  from boxcar.batches b
  join boxcar.projects p on p.id = b.project_id
  where b.id = any ($1::uuid[])`);

/** Loads the current state of batches. */
export function loadBatches(
  db: Queryable,
  batchIds: readonly BatchId[],
  options: { readonly now?: Date } = {},
): Promise<BatchRow[]> {
  return run<BatchRow>(db, LOAD, [batchIds, options.now ?? null]);
}

// A large content is read in part only: the deliverables of a wide batch together can be larger than the memory of a worker.
const MEMBERS = statement(`
  select /* batches.members */
    t.id as turn_id, t.status, t.agent_id, t.output_box_id, t.error,
    case when c.content is null or c.size_bytes <= 8 * $2::int then coalesce(c.content, c.placeholder) end as content,
    case
      when c.content is not null and c.size_bytes > 8 * $2::int
        then left(coalesce(c.content->>'text', (c.content->'data')::text), $2::int + 1)
    end as beginning
  from boxcar.turns t
  left join boxcar.cards c on c.id = t.deliverable_card_id
  where t.id = any ($1::uuid[])`);

export interface MemberRow extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly status: TurnStatus;
  readonly agent_id: AgentId;
  readonly output_box_id: BoxId;
  readonly error: ErrorBody | null;
  /** The content of the deliverable when it is small. */
  readonly content: JsonValue;
  /** The beginning of a large deliverable's text: the characters that are shown and one more. Null for a small deliverable. */
  readonly beginning: string | null;
}

/** Loads the status of members and their deliverables, of which `limit` characters are shown. */
export function loadMembers(db: Queryable, turnIds: readonly TurnId[], limit: number): Promise<MemberRow[]> {
  return run<MemberRow>(db, MEMBERS, [turnIds, limit]);
}

const LOCK_OWNER = statement('select /* batches.lock_owner */ id from boxcar.turns where id = $1 for update');
const LOCK = statement(`
  select /* batches.lock */ ${COLUMNS}
  from boxcar.batches b
  join boxcar.projects p on p.id = b.project_id
  where b.id = any ($1::uuid[])
  for update of b`);

/**
 * Locks the turn of a batch, then the batch, and returns the batch. The statements are sent together, before any answer is awaited.
 *
 * @param options.holdsErasures - The project in which words of members are read and stored under these locks.
 */
export async function lockBatch(
  tx: Tx,
  batch: Pick<BatchRow, 'id' | 'turn_id'>,
  options: { readonly now?: Date; readonly holdsErasures?: ProjectId } = {},
): Promise<BatchRow | undefined> {
  const locking = batch.turn_id === null ? undefined : run(tx, LOCK_OWNER, [batch.turn_id]);
  // Before the batch: an erasure that holds this lock may need the batch.
  const holding = options.holdsErasures === undefined ? undefined : holdErasures(tx, options.holdsErasures);
  const [[row]] = await Promise.all([
    run<BatchRow>(tx, LOCK, [[batch.id], options.now ?? null]),
    locking,
    holding,
  ]);
  return row;
}

/**
 * True for a turn `t` that a running batch other than `$2` waits for. The batch was made from outside, or by an unfinished turn that is
 * not in `$1`.
 */
const IS_WANTED = `
  exists (
    select from boxcar.batches b
    where b.id = any (t.batch_ids)
      and b.id is distinct from $2::uuid
      and b.status = 'running'
      and b.closing is null
      and (
        b.turn_id is null
        or (
          b.turn_id <> all ($1::uuid[])
          and exists (select from boxcar.turns w where w.id = b.turn_id and w.ended_at is null)
        )
      )
  )`;

const WANTED_MEMBERS = statement(`
  select /* batches.wanted_members */ t.id
  from boxcar.batches m
  join boxcar.turns t on t.id = any (m.turn_ids)
  where m.id = $2::uuid and t.ended_at is null and ${IS_WANTED}`);

/** The unfinished members of a batch that another caller waits for too, such as a `collect` of another turn. */
export async function findWantedMembers(
  db: Queryable,
  batch: Pick<BatchRow, 'id' | 'turn_id'>,
): Promise<readonly TurnId[]> {
  const owners = batch.turn_id === null ? [] : [batch.turn_id];
  return (await run<{ id: TurnId }>(db, WANTED_MEMBERS, [owners, batch.id])).map((row) => row.id);
}

const CLOSE = statement(`
  update /* batches.close */ boxcar.batches
  set closing = $2, is_due = true
  where id = $1 and status = 'running' and closing is null`);

/** Closes a batch: its members are ended from now on, and the batch stays due until they have ended. The first reason is kept. */
export async function closeBatch(db: Queryable, batchId: BatchId, closing: Closing): Promise<void> {
  await run(db, CLOSE, [batchId, closing]);
}

const END = statement(`
  with /* batches.end */
  up as (
    update boxcar.batches
    set status = $2,
      closing = $3,
      is_due = false,
      ended_at = now(),
      answer = $4::json
    where id = $1 and status = 'running'
    returning id
  )
  select pg_notify('boxcar_ended', up.id::text)
  from up
  where $5`);

/**
 * Gives a batch its final status. `answer` is set when no call waits for the batch, and is announced. The caller holds the batch's lock
 * (B3).
 */
export async function endBatch(
  tx: Tx,
  batchId: BatchId,
  end: {
    readonly status: FinalBatchStatus;
    readonly closing: Closing | null;
    readonly answer: JsonValue | undefined;
  },
): Promise<void> {
  await run(tx, END, [
    batchId,
    end.status,
    end.closing,
    end.answer === undefined ? null : JSON.stringify(end.answer),
    end.answer !== undefined,
  ]);
}

const DETACH = statement('update /* batches.detach */ boxcar.batches set tool_call_id = null where id = $1');

/**
 * Detaches a batch from its call, which no longer waits for it. The caller holds the batch's lock and settles the call in the same
 * transaction.
 */
export async function detachBatch(tx: Tx, batchId: BatchId): Promise<void> {
  await run(tx, DETACH, [batchId]);
}

const JOINABLE = statement(`
  select /* batches.joinable */ c.id as turn_id, c.run_id, c.output_box_id,
    coalesce(${KNOWS_END}, false) as is_readable
  from boxcar.turns c
  join boxcar.projects p on p.id = c.project_id
  join boxcar.boxes b on b.id = c.output_box_id
  where c.id = any ($1::uuid[]) and c.project_id = $2`);

export interface JoinableTurn extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly output_box_id: string;
  /** True for the actor's own children, and for turns whose tape the actor may read up to their end. */
  readonly is_readable: boolean;
}

/** Returns the turns that exist in the project, and whether the actor may know how they end. */
export function findJoinable(
  db: Queryable,
  turnIds: readonly TurnId[],
  options: { readonly projectId: ProjectId; readonly actorId: AgentId },
): Promise<JoinableTurn[]> {
  return run<JoinableTurn>(db, JOINABLE, [turnIds, options.projectId, options.actorId]);
}

// From a turn to the turns it waits for: those that its open calls await, and the members of the batches that its calls await.
const WAITS_FOR = statement(`
  with recursive /* batches.waits_for */
  waits as (
    select u.id
    from unnest($1::uuid[]) as u(id)
    union
    select n.id
    from waits w
    cross join lateral (
      select coalesce(c.id, m.id) as id
      from boxcar.tool_calls k
      left join boxcar.turns c on c.parent_tool_call_id = k.id and c.is_awaited
      left join boxcar.batches b on b.id = k.batch_id and b.status = 'running'
      left join lateral unnest(b.turn_ids) as m(id) on true
      where k.turn_id = w.id and k.status = 'pending' and k.route = 'primitive'
      offset 0
    ) n
    where n.id is not null
  )
  select w.id as turn_id, t.agent_id, a.name as agent_name
  from waits w
  cross join lateral (select x.* from boxcar.turns x where x.id = w.id offset 0) t
  join boxcar.agents a on a.id = t.agent_id
  where w.id = any ($2::uuid[])
  limit 1`);

/** The first of `turnIds` that is one of the awaited turns, or that they wait for directly or through other turns. */
export async function findWaitCycle(
  db: Queryable,
  awaited: readonly TurnId[],
  turnIds: readonly TurnId[],
): Promise<
  { readonly turn_id: TurnId; readonly agent_id: AgentId; readonly agent_name: string } | undefined
> {
  const [row] = await run<{ turn_id: TurnId; agent_id: AgentId; agent_name: string }>(db, WAITS_FOR, [
    awaited,
    turnIds,
  ]);
  return row;
}

const LOCK_MEMBERS = statement(`
  select /* batches.lock_members */ id, status
  from boxcar.turns
  where id = any ($1::uuid[])
  order by id
  for update`);

/** Locks turns and returns their status: an end is either seen here or happens later. */
export async function lockMembers(
  tx: Tx,
  turnIds: readonly TurnId[],
): Promise<ReadonlyMap<TurnId, TurnStatus>> {
  const rows = await run<{ id: TurnId; status: TurnStatus }>(tx, LOCK_MEMBERS, [turnIds]);
  return new Map(rows.map((row) => [row.id, row.status]));
}

const JOIN = statement(`
  update /* batches.join */ boxcar.turns
  set batch_ids = array_append(coalesce(batch_ids, '{}'), $2::uuid)
  where id = any ($1::uuid[])`);

/** Adds a batch to turns that have not ended; the caller holds their locks (B2). */
export async function addBatch(tx: Tx, turnIds: readonly TurnId[], batchId: BatchId): Promise<void> {
  await run(tx, JOIN, [turnIds, batchId]);
}
