/**
 * What the sweep looks for: rows that nobody will touch unless somebody looks. Each search is an index probe on rows that
 * are overdue, so an idle database answers from a handful of empty index pages.
 */
import { randomUUID } from 'node:crypto';
import type { BatchId, ProjectId, Ring, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, type Statement, statement } from '../db/index.js';
import { mayRun, notSetAside, settledFailure } from '../rows/index.js';
import { dueNotices, leftForks } from '../tape/index.js';
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

const NOW = 'coalesce($1::timestamptz, now())';
const FIRST_ID = '00000000-0000-0000-0000-000000000000';

/** Running turns `t` that nobody holds. */
const UNHELD = `not exists (select from boxcar.workers w where w.id = t.holder_id and w.lease_until > ${NOW}) and ${notSetAside('dead_leases', 't.id', NOW)}`;
const DEAD = `t.status = 'running' and ${UNHELD}`;
const OVERDUE_TURN = `t.deadline_at <= ${NOW} and t.ended_at is null and t.deadline_at is not null and ${notSetAside('overdue_turns', 't.id', NOW)}`;
// One that waits for a batch ends with it.
const OVERDUE_CALL = `k.deadline_at <= ${NOW} and k.status = 'pending' and k.batch_id is null and ${notSetAside('overdue_calls', 'k.id', NOW)}`;
const DUE_LOOK = `k.look_at <= ${NOW} and k.look_at is not null and k.status = 'pending'`;
const DUE_WAIT = `w.due_at <= ${NOW} and w.due_at is not null and ${notSetAside('due_waits', 'w.turn_id', NOW)}`;

const BATCH_IN_ORDER = notSetAside('due_batches', 'b.id', NOW);
const DUE_BATCHES = `select b.id, b.project_id from boxcar.batches b where b.status = 'running' and b.is_due and ${BATCH_IN_ORDER}`;
const OVERDUE_BATCHES = `select b.id, b.project_id from boxcar.batches b where b.status = 'running' and b.deadline_at <= ${NOW} and ${BATCH_IN_ORDER}`;

// A turn that was handed back because it could not be run is rung only when its back-off is over.
const RINGABLE = `${notSetAside('lost_rings', 't.id', NOW)} and ${mayRun(NOW)}`;

const PROBE = statement(`
  select
    exists (select from boxcar.turns t where t.status = 'dispatched' and t.dispatched_at < ${NOW} - $2 * interval '1 millisecond' and ${RINGABLE}) as lost_rings,
    exists (select from boxcar.turns t where ${DEAD}) as dead_leases,
    exists (select from boxcar.turns t where ${OVERDUE_TURN}) as overdue_turns,
    exists (select from boxcar.tool_calls k where ${OVERDUE_CALL}) as overdue_calls,
    exists (select from boxcar.tool_calls k where ${DUE_LOOK}) as due_looks,
    exists (select from boxcar.waits w where ${DUE_WAIT}) or exists (select from boxcar.budgets b where b.paused_at <= ${NOW} - interval '5 seconds' and ${notSetAside('left_budgets', 'b.id', NOW)}) as due_waits,
    exists (${DUE_BATCHES}) or exists (${OVERDUE_BATCHES}) as due_batches,
    exists (select from boxcar.turns t where t.status = 'queued') as queued,
    exists (select from boxcar.operations o where o.door_job_id is not null) as waiting_doors,
    exists (select from boxcar.workers w where ${LONG_DEAD}) as dead_workers,
    exists (select from boxcar.sweep_failures f where ${settledFailure(NOW)}) as settled_failures,
    ${hasLongWaits(NOW)} as long_waits,
    ${hasFailedTurns} as failed_turns,
    ${hasLostTurns} as lost_turns,
    exists (${dueNotices(NOW)}) as notices,
    exists (${leftForks(NOW)}) as left_forks,
    exists (select from boxcar.waits w where w.kind = 'selector') as selector_waits`);

export interface SweepFindings {
  readonly lost_rings: boolean;
  readonly dead_leases: boolean;
  readonly overdue_turns: boolean;
  readonly overdue_calls: boolean;
  /** Calls in the hands of workers outside, whose job is to be looked into. */
  readonly due_looks: boolean;
  /** Turns that wait for a moment which has come, or for a budget. */
  readonly due_waits: boolean;
  /** Batches to be ended, or past their deadline. */
  readonly due_batches: boolean;
  readonly queued: boolean;
  /** Jobs at the queue door wait: the turns or batches of some may have ended. */
  readonly waiting_doors: boolean;
  readonly dead_workers: boolean;
  /** Rows that once could not be handled, and were since. */
  readonly settled_failures: boolean;
  /** Awaited turns that have stood in a queue for long: their waits may be a circle. */
  readonly long_waits: boolean;
  /** Turns that were given up and have not been ended. */
  readonly failed_turns: boolean;
  /** Calls or batches that wait for a turn or batch that could not be ended. */
  readonly lost_turns: boolean;
  /** Ends of sessions' turns that are to be told. */
  readonly notices: boolean;
  /** Open forks whose turn has ended. */
  readonly left_forks: boolean;
  /** Turns wait for a worker with their selector. */
  readonly selector_waits: boolean;
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
  left_forks: false,
  selector_waits: false,
};

/** Is there anything to do? One statement, the whole cost of an idle sweep. */
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
  update boxcar.sweeper set holder_id = $1, lease_until = clock_timestamp() + $2 * interval '1 millisecond' where lease_until <= clock_timestamp() returning true`);

const STEP_DOWN = statement(
  "update boxcar.sweeper set holder_id = null, lease_until = '-infinity' where holder_id = $1",
);

/**
 * Runs `body` if no other process sweeps at this moment; false = another process does. A sweeper that dies or is stopped delays
 * the others by its lease at most. When a sweep outlasts its lease, a second sweep may run at the same time; this is safe, since
 * the first sweep to lock a row takes it.
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

const DEAD_TURNS = statement(
  `select t.id as turn_id, t.project_id from boxcar.turns t where ${DEAD} and t.losses < $2 - 1 order by t.id limit $3`,
);

/** The turns that {@link takeOver} takes. */
export function findDeadTurns(
  pool: pg.Pool,
  options: SweepClock & { maxLosses: number; limit: number },
): Promise<{ turn_id: TurnId; project_id: ProjectId }[]> {
  return runRetrying(pool, DEAD_TURNS, [options.now ?? null, options.maxLosses, options.limit]);
}

const TAKE_OVER = statement(`
  with lk as (
    select t.id from boxcar.turns t where t.id = any ($3::uuid[]) and ${hasStatus('running')} and ${UNHELD} and t.losses < $2 - 1 order by t.id for update of t skip locked
  )
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, holder_id = null, dispatched_at = now(), losses = t.losses + 1
  from lk where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

/**
 * Takes turns from holders whose lease has passed; they continue from their last committed step.
 *
 * @param options.maxLosses - So many lost workers at the same step are the end of a turn.
 * @param options.turnIds - Only these. Default: all that {@link findDeadTurns} finds.
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

const STALE = `t.status = 'dispatched' and t.dispatched_at < ${NOW} - $2 * interval '1 millisecond'`;
const RING =
  't.id, t.epoch, t.worker_target, t.project_id, t.dispatched_at, t.priority, t.format, t.step_count';
const AS_RING = 't.id as turn_id, t.epoch, t.worker_target, t.project_id';
const CAN_RING = `t.format <= t.oldest_build and ${RINGABLE}`;

// Turns of a target without a worker wait with or without a ring, and are passed over. Turns that some workers of a target cannot
// read are passed over too: their rings might meet such a worker again and again, so the other workers look for these turns in the
// rows. `looked` reads one page of the index, and the page is filtered afterwards.
const STALE_RINGS = statement(`
  with recursive targets as (
    (select t.worker_target from boxcar.turns t where t.status = 'dispatched' order by t.worker_target limit 1)
    union all
    select (select t.worker_target from boxcar.turns t where t.status = 'dispatched' and t.worker_target > g.worker_target order by t.worker_target limit 1)
    from targets g where g.worker_target is not null
  ),
  served as materialized (
    select g.worker_target, w.oldest_build from targets g cross join lateral (
      select min(w.schema_version) as oldest_build from boxcar.workers w where w.lease_until > ${NOW} and w.targets @> array[g.worker_target]) w
    where w.oldest_build is not null
  ),
  running as materialized (
    select distinct o.worker_target, o.project_id from (select t.worker_target, t.project_id from boxcar.turns t where t.status = 'running' order by t.holder_id offset 0) o
  ),
  heads as materialized (
    select h.* from served g cross join lateral (
      select ${AS_RING}, t.dispatched_at from (
        select ${RING}, g.oldest_build from boxcar.turns t where ${STALE} and t.worker_target = g.worker_target order by t.dispatched_at, t.id limit $3) t
      where ${CAN_RING} order by t.dispatched_at, t.id limit 1) h
    order by h.dispatched_at limit $3
  ),
  looked as materialized (
    select l.* from (select * from served where served.worker_target >= $4 order by served.worker_target offset 0) g cross join lateral (
      select ${RING}, g.oldest_build from boxcar.turns t
      where ${STALE} and t.worker_target = g.worker_target and t.dispatched_at >= case when g.worker_target = $4 then $5 else '-infinity' end::timestamptz
        and (g.worker_target > $4 or (t.dispatched_at, -t.priority, t.id) > ($5::timestamptz, $6::int, $7::uuid))
      order by t.dispatched_at, -t.priority, t.id limit $3) l
    order by g.worker_target, l.dispatched_at, -l.priority, l.id limit $3
  ),
  page as (
    select ${AS_RING}, row_number() over (order by t.worker_target, t.dispatched_at, -t.priority, t.id) as n,
      row_number() over (partition by t.worker_target, t.project_id order by t.dispatched_at, -t.priority, t.id) = 1
        and not (t.worker_target = $4 and t.project_id = any ($8::uuid[]))
        and (t.worker_target, t.project_id) not in (select running.worker_target, running.project_id from running) as is_next
    from looked t where ${CAN_RING}
  ),
  rings as (
    select h.turn_id, h.epoch, h.worker_target, h.project_id, true as is_next, 0 as n, h.dispatched_at from heads h
    union all
    select p.turn_id, p.epoch, p.worker_target, p.project_id, p.is_next, p.n, null from page p where p.turn_id not in (select heads.turn_id from heads)
  )
  select (select coalesce(json_agg(r order by r.n, r.dispatched_at), '[]') from rings r) as rings,
    (select json_build_object('worker_target', t.worker_target, 'dispatched_at', t.dispatched_at::text, 'priority', -t.priority, 'turn_id', t.id,
        'project_ids', (select coalesce(json_agg(distinct p.project_id), '[]') from page p where p.worker_target = t.worker_target))
      from looked t where (select count(*) from looked) >= $3 order by t.worker_target desc, t.dispatched_at desc, -t.priority desc, t.id desc limit 1) as next`);

/** A ring that may be lost. */
export interface StaleRing extends Ring {
  /** It is the oldest of its target, or of a project that has no turn running: other rings may no longer pass it. */
  readonly isNext: boolean;
}

/** Where a search for stale rings ended. The next search begins there. */
export interface RingPlace {
  readonly workerTarget: string;
  readonly dispatchedAt: string;
  readonly priority: number;
  readonly turnId: TurnId;
  /** The projects whose rings at this target have been met: their oldest ring is before this place. */
  readonly projectIds: readonly ProjectId[];
}

type StaleRow = Parameters<typeof toRing>[0] & { readonly is_next: boolean };
interface PlaceRow {
  readonly worker_target: string;
  readonly dispatched_at: string;
  readonly priority: number;
  readonly turn_id: TurnId;
  readonly project_ids: readonly ProjectId[];
}

/**
 * Turns that were dispatched a while ago and are not claimed, although all live workers can read them: their ring may be lost. The
 * oldest ring of each target, then `limit` rings after a place.
 *
 * @returns `next`: where the next search begins; absent: this one has seen the last ring.
 */
export async function findStaleRings(
  pool: pg.Pool,
  options: SweepClock & { lostRingMs: number; limit: number; after?: RingPlace | undefined },
): Promise<{ readonly rings: readonly StaleRing[]; readonly next?: RingPlace }> {
  const { after } = options;
  const [row] = await runRetrying<{ rings: StaleRow[]; next: PlaceRow | null }>(pool, STALE_RINGS, [
    options.now ?? null,
    options.lostRingMs,
    options.limit,
    after?.workerTarget ?? '',
    after?.dispatchedAt ?? '-infinity',
    after?.priority ?? 0,
    after?.turnId ?? FIRST_ID,
    after?.projectIds ?? [],
  ]);
  const rings = (row?.rings ?? []).map((ring) => ({ ...toRing(ring), isNext: ring.is_next }));
  const next = row?.next ?? undefined;
  if (next === undefined) return { rings };
  const seen = after?.workerTarget === next.worker_target ? after.projectIds : [];
  return {
    rings,
    next: {
      workerTarget: next.worker_target,
      dispatchedAt: next.dispatched_at,
      priority: next.priority,
      turnId: next.turn_id,
      projectIds: [...new Set([...seen, ...next.project_ids])],
    },
  };
}

// A call of the epoch at which its turn was dispatched was not begun by any worker, and still is not.
const UNBEGUN = "k.status = 'pending' and k.epoch = lk.epoch and k.retry = 'never' and k.route = 'function'";
const RING_AGAIN = statement(`
  with want as (select * from json_to_recordset($1) as w(turn_id uuid, epoch int)),
  lk as (
    select t.id, t.epoch, t.pending_calls from boxcar.turns t join want w on w.turn_id = t.id and w.epoch = t.epoch where ${hasStatus('dispatched')} order by t.id for update of t skip locked
  ),
  unbegun as materialized (
    select k.id, k.turn_id from lk join boxcar.tool_calls k on k.turn_id = lk.id and ${UNBEGUN} where lk.pending_calls > 0 for update of k skip locked
  ),
  free as (
    select lk.id, lk.epoch from lk where lk.pending_calls = 0 or not exists (
      select from boxcar.tool_calls k where k.turn_id = lk.id and ${UNBEGUN} and k.id not in (select unbegun.id from unbegun))
  ),
  moved as (
    update boxcar.tool_calls k set epoch = free.epoch + 1 from free, unbegun where unbegun.turn_id = free.id and k.id = unbegun.id
  )
  update boxcar.turns t set epoch = t.epoch + 1, dispatched_at = now() from free where t.id = free.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

/**
 * Raises the epoch of dispatched turns, so that the new rings have unused job ids. Turns that are locked, or a call of
 * which is, are left to the next sweep.
 */
export async function ringAgain(pool: pg.Pool, rings: readonly Ring[]): Promise<readonly Ring[]> {
  const wanted = rings.map((ring) => ({ turn_id: ring.turnId, epoch: ring.epoch }));
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, RING_AGAIN, [JSON.stringify(wanted)])).map(
    toRing,
  );
}

export interface OverdueTurn extends EndableTurn {
  /** The account that governs it when that account's time is over; null = it is not. */
  readonly over_budget_id: string | null;
}

// A waiting turn is older than the turns it waits for and may have their deadline: it ends first, and its call is not answered.
const OVERDUE_TURNS = statement(
  `select ${ENDABLE}, (select b.id from boxcar.budgets b where b.id = t.budget_id and b.deadline_at <= ${NOW}) as over_budget_id
  from boxcar.turns t where ${OVERDUE_TURN} order by t.deadline_at, t.id limit $2`,
);

/** Turns past their deadline, in whatever status that is not final. */
export function findOverdueTurns(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<OverdueTurn[]> {
  return runRetrying<OverdueTurn>(pool, OVERDUE_TURNS, [options.now ?? null, options.limit]);
}

const EXHAUSTED_TURNS = statement(
  `select ${ENDABLE} from boxcar.turns t where ${DEAD} and t.losses >= $2 - 1 order by t.id limit $3`,
);

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
  /** Whose queue its job is in; null when it has none. */
  readonly target: string | null;
  readonly is_awaiting: boolean;
  /** As Postgres writes it: its answer counts only while this is its deadline. */
  readonly deadline_at: string;
}

const OVERDUE_CALLS = statement(`
  select k.id, k.turn_id, k.project_id, k.name, k.target, k.deadline_at::text as deadline_at,
    exists (select from boxcar.turns c where c.parent_tool_call_id = k.id and c.is_awaited) as is_awaiting
  from boxcar.tool_calls k where ${OVERDUE_CALL} order by k.deadline_at limit $2`);

/** Calls without a result past their deadline. */
export function findOverdueCalls(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<OverdueCall[]> {
  return runRetrying<OverdueCall>(pool, OVERDUE_CALLS, [options.now ?? null, options.limit]);
}

const FIND_DUE_BATCHES = statement(`
  (${DUE_BATCHES} order by b.id limit $2) union (${OVERDUE_BATCHES} order by b.deadline_at limit $2)`);

/** Batches that are to be ended or have passed their deadline. */
export async function findDueBatches(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<readonly { readonly id: BatchId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_DUE_BATCHES, [options.now ?? null, options.limit]);
}

const QUEUED_TARGETS = statement(`
  with recursive targets as (
    (select t.worker_target from boxcar.turns t where t.status = 'queued' order by t.worker_target limit 1)
    union all
    select (select t.worker_target from boxcar.turns t where t.status = 'queued' and t.worker_target > g.worker_target order by t.worker_target limit 1)
    from targets g where g.worker_target is not null
  )
  select worker_target from targets where worker_target is not null`);

/** Targets that have queued turns. */
export async function findQueuedTargets(pool: pg.Pool): Promise<readonly string[]> {
  return (await runRetrying<{ worker_target: string }>(pool, QUEUED_TARGETS, [])).map(
    (row) => row.worker_target,
  );
}

export interface Door extends pg.QueryResultRow {
  readonly project_id: ProjectId;
  /** The turn or batch whose end the job waits for. */
  readonly awaited_id: TurnId | BatchId;
  readonly job_id: string;
}

const DOOR =
  'o.project_id, coalesce(o.awaited_turn_id, o.awaited_batch_id) as awaited_id, o.door_job_id as job_id';

const DOORS_OF = statement(`
  select ${DOOR} from boxcar.operations o where o.awaited_turn_id = any ($1::uuid[]) and o.door_job_id is not null
  union all
  select ${DOOR} from boxcar.operations o where o.awaited_batch_id = any ($1::uuid[]) and o.door_job_id is not null`);

/** Jobs at the queue door that wait for the end of these turns and batches. */
export function findDoorsOf(db: Queryable, ids: readonly (TurnId | BatchId)[]): Promise<Door[]> {
  return run<Door>(db, DOORS_OF, [ids]);
}

// As many may wait as turns are queued, and of nearly all nothing has ended: a pass looks at a part of them.
const waitingDoors = (column: string, table: string): Statement =>
  statement(`
  with looked as materialized (
    select o.project_id, o.awaited_id, o.job_id, e.ended_at from (
      select d.project_id, d.${column} as awaited_id, d.door_job_id as job_id from boxcar.operations d
      where d.door_job_id is not null and d.${column} > $2 order by d.${column} fetch first ($3) rows with ties
    ) o cross join lateral (select t.ended_at from boxcar.${table} t where t.id = o.awaited_id offset 0) e
  )
  select (select coalesce(json_agg(json_build_object('project_id', l.project_id, 'awaited_id', l.awaited_id, 'job_id', l.job_id)), '[]')
      from looked l where l.ended_at < ${NOW} - interval '2 seconds') as doors,
    (select case when count(*) >= $3 then max(l.awaited_id::text) end from looked l) as next`);

const WAITING_DOORS = {
  turns: waitingDoors('awaited_turn_id', 'turns'),
  batches: waitingDoors('awaited_batch_id', 'batches'),
} as const;

/**
 * Jobs at the queue door whose turn or batch ended a while ago and that have not been answered, among the `limit` after one.
 *
 * @returns `next`: where the next look begins; undefined: this one saw the last.
 */
export async function findWaitingDoors(
  pool: pg.Pool,
  options: SweepClock & { of: 'turns' | 'batches'; after?: string | undefined; limit: number },
): Promise<{ readonly doors: readonly Door[]; readonly next: string | undefined }> {
  const [row] = await runRetrying<{ doors: Door[]; next: string | null }>(pool, WAITING_DOORS[options.of], [
    options.now ?? null,
    options.after ?? FIRST_ID,
    options.limit,
  ]);
  return { doors: row?.doors ?? [], next: row?.next ?? undefined };
}

const OPEN_DOOR = statement(`
  insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, awaited_batch_id, door_job_id, created_at, made)
  select o.project_id, $3, o.primitive, o.request_hash, o.response, o.awaited_turn_id, o.awaited_batch_id, $4, o.created_at, o.made
  from boxcar.operations o where o.project_id = $1 and o.idempotency_key = $2 and o.door_job_id is distinct from $4
  on conflict (project_id, idempotency_key) do update set door_job_id = excluded.door_job_id`);

/** Another job waits for the turn or batch of an operation: it gets a record of its own, under `own_key`. Once is enough. */
export async function openDoor(
  db: Queryable,
  door: { project_id: ProjectId; idempotency_key: string; own_key: string; job_id: string },
): Promise<void> {
  await run(db, OPEN_DOOR, [door.project_id, door.idempotency_key, door.own_key, door.job_id]);
}

const CLOSE_DOOR = statement(`
  update boxcar.operations set door_job_id = null where project_id = $1 and (awaited_turn_id = $2 or awaited_batch_id = $2) and door_job_id = $3`);

const CLOSE_DOORS = statement(`
  with found as (
    select o.project_id, o.idempotency_key from json_to_recordset($1) as d(awaited_id uuid, job_id text) cross join lateral (
      select x.project_id, x.idempotency_key from boxcar.operations x where x.awaited_turn_id = d.awaited_id and x.door_job_id = d.job_id
      union all
      select x.project_id, x.idempotency_key from boxcar.operations x where x.awaited_batch_id = d.awaited_id and x.door_job_id = d.job_id
      offset 0) o
  ),
  lk as (
    select o.project_id, o.idempotency_key from found cross join lateral (
      select x.project_id, x.idempotency_key, x.door_job_id from boxcar.operations x
      where x.project_id = found.project_id and x.idempotency_key = found.idempotency_key and x.door_job_id is not null for update of x skip locked) o
  )
  update boxcar.operations o set door_job_id = null from lk where o.project_id = lk.project_id and o.idempotency_key = lk.idempotency_key`);

/** The same for many jobs. Doors that are locked at this moment stay open. */
export async function closeDoors(pool: pg.Pool, doors: readonly Door[]): Promise<void> {
  const records = doors.map(({ awaited_id, job_id }) => ({ awaited_id, job_id }));
  await runRetrying(pool, CLOSE_DOORS, [JSON.stringify(records)]);
}

/** The job has its answer, or is gone. */
export async function closeDoor(db: Queryable, door: Door): Promise<void> {
  await run(db, CLOSE_DOOR, [door.project_id, door.awaited_id, door.job_id]);
}
