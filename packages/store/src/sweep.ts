/**
 * What the sweep looks for: rows that nobody will touch unless somebody looks. Each search is an index probe on rows that
 * are overdue, so an idle database answers from a handful of empty index pages.
 */
import type { AgentId, BoxId, ProjectId, Ring, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement, transaction } from './db.js';
import { toRing } from './turns.js';
import { LONG_DEAD } from './workers.js';

const NOW = 'coalesce($1::timestamptz, now())';
const DEAD = `t.status = 'running' and not exists (select from boxcar.workers w where w.id = t.holder_id and w.lease_until > ${NOW})`;
const OVERDUE_TURN = `t.deadline_at <= ${NOW} and t.ended_at is null and t.deadline_at is not null`;
const OVERDUE_CALL = `k.deadline_at <= ${NOW} and k.status = 'pending'`;
const DUE_LOOK = `k.look_at <= ${NOW} and k.look_at is not null and k.status = 'pending'`;
const WAITING_DOOR = `o.door_job_id is not null and (select t.ended_at from boxcar.turns t where t.id = o.awaited_turn_id) < ${NOW} - interval '2 seconds'`;

const PROBE = statement(`
  select
    exists (select from boxcar.turns t where t.status = 'dispatched' and t.dispatched_at < ${NOW} - $2 * interval '1 millisecond') as lost_rings,
    exists (select from boxcar.turns t where ${DEAD}) as dead_leases,
    exists (select from boxcar.turns t where ${OVERDUE_TURN}) as overdue_turns,
    exists (select from boxcar.tool_calls k where ${OVERDUE_CALL}) as overdue_calls,
    exists (select from boxcar.tool_calls k where ${DUE_LOOK}) as due_looks,
    exists (select from boxcar.turns t where t.status = 'queued') as queued,
    exists (select from boxcar.operations o where ${WAITING_DOOR}) as waiting_doors,
    exists (select from boxcar.workers w where ${LONG_DEAD}) as dead_workers`);

export interface SweepFindings {
  readonly lost_rings: boolean;
  readonly dead_leases: boolean;
  readonly overdue_turns: boolean;
  readonly overdue_calls: boolean;
  /** Calls in the hands of workers outside, whose job is to be looked into. */
  readonly due_looks: boolean;
  readonly queued: boolean;
  readonly waiting_doors: boolean;
  readonly dead_workers: boolean;
}

export interface SweepClock {
  /** Clock for tests; Postgres's own when omitted. */
  readonly now?: Date;
}

const NOTHING: SweepFindings = {
  lost_rings: false,
  dead_leases: false,
  overdue_turns: false,
  overdue_calls: false,
  due_looks: false,
  queued: false,
  waiting_doors: false,
  dead_workers: false,
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

const ELECT = statement(
  "select pg_try_advisory_xact_lock(hashtextextended('boxcar:sweep', 0)) as is_elected",
);

/** Runs `body` if no other process sweeps at this moment; false = another one does. */
export function elected(pool: pg.Pool, body: () => Promise<void>): Promise<boolean> {
  return transaction(pool, async (tx) => {
    const [row] = await run<{ is_elected: boolean }>(tx, ELECT, []);
    if (row?.is_elected !== true) return false;
    await body();
    return true;
  });
}

const TAKE_OVER = statement(`
  with lk as (
    select t.id from boxcar.turns t where ${DEAD} and t.attempt < $2 order by t.id limit $3 for update of t skip locked
  )
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, holder_id = null, dispatched_at = now()
  from lk where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

/** Takes turns from holders whose lease has passed; they continue from their last committed step. */
export async function takeOver(
  pool: pg.Pool,
  options: SweepClock & { maxAttempts: number; limit: number },
): Promise<readonly Ring[]> {
  const rows = await runRetrying<Parameters<typeof toRing>[0]>(pool, TAKE_OVER, [
    options.now ?? null,
    options.maxAttempts,
    options.limit,
  ]);
  return rows.map(toRing);
}

// Those of a target without a worker wait with or without a ring, and would stand in front of the others for ever.
const STALE_RINGS = statement(`
  select t.id as turn_id, t.epoch, t.worker_target from boxcar.turns t
  where t.status = 'dispatched' and t.dispatched_at < ${NOW} - $2 * interval '1 millisecond'
    and (t.worker_target in (select unnest(w.targets) from boxcar.workers w where w.lease_until > ${NOW})) is true
  order by t.dispatched_at limit $3`);

/** Turns dispatched a while ago that nobody has claimed, although workers live for them: their ring may be lost. */
export async function findStaleRings(
  pool: pg.Pool,
  options: SweepClock & { lostRingMs: number; limit: number },
): Promise<readonly Ring[]> {
  const rows = await runRetrying<Parameters<typeof toRing>[0]>(pool, STALE_RINGS, [
    options.now ?? null,
    options.lostRingMs,
    options.limit,
  ]);
  return rows.map(toRing);
}

const RING_AGAIN = statement(`
  with want as (select * from json_to_recordset($1) as w(turn_id uuid, epoch int)),
  lk as (
    select t.id from boxcar.turns t join want w on w.turn_id = t.id and w.epoch = t.epoch where t.status = 'dispatched' order by t.id for update of t
  )
  update boxcar.turns t set epoch = t.epoch + 1, dispatched_at = now() from lk where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

/** Raises the epoch of dispatched turns, so that their new ring has a job id that was never used. */
export async function ringAgain(pool: pg.Pool, rings: readonly Ring[]): Promise<readonly Ring[]> {
  const wanted = rings.map((ring) => ({ turn_id: ring.turnId, epoch: ring.epoch }));
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, RING_AGAIN, [JSON.stringify(wanted)])).map(
    toRing,
  );
}

export interface EndableTurn extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly agent_id: AgentId;
  readonly epoch: number;
  readonly holder_id: WorkerId | null;
  readonly parent_turn_id: TurnId | null;
  readonly parent_tool_call_id: ToolCallId | null;
  readonly is_awaited: boolean;
  readonly primitive: string;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
  readonly step_count: number;
  readonly attempt: number;
}

const ENDABLE =
  't.id as turn_id, t.project_id, t.agent_id, t.epoch, t.holder_id, t.parent_turn_id, t.parent_tool_call_id, t.is_awaited, t.primitive, t.context_box_id, t.output_box_id, t.step_count, t.attempt';

const OVERDUE_TURNS = statement(
  `select ${ENDABLE} from boxcar.turns t where ${OVERDUE_TURN} order by t.deadline_at limit $2`,
);

/** Turns past their deadline, in whatever status that is not final. */
export function findOverdueTurns(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<EndableTurn[]> {
  return runRetrying<EndableTurn>(pool, OVERDUE_TURNS, [options.now ?? null, options.limit]);
}

const EXHAUSTED_TURNS = statement(
  `select ${ENDABLE} from boxcar.turns t where ${DEAD} and t.attempt >= $2 order by t.id limit $3`,
);

/** Turns that lost their worker too often at the same step. */
export function findExhaustedTurns(
  pool: pg.Pool,
  options: SweepClock & { maxAttempts: number; limit: number },
): Promise<EndableTurn[]> {
  return runRetrying<EndableTurn>(pool, EXHAUSTED_TURNS, [
    options.now ?? null,
    options.maxAttempts,
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
}

const OVERDUE_CALLS = statement(`
  select k.id, k.turn_id, k.project_id, k.name, k.target,
    exists (select from boxcar.turns c where c.parent_tool_call_id = k.id and c.is_awaited) as is_awaiting
  from boxcar.tool_calls k where ${OVERDUE_CALL} order by k.deadline_at limit $2`);

/** Calls without a result past their deadline. */
export function findOverdueCalls(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<OverdueCall[]> {
  return runRetrying<OverdueCall>(pool, OVERDUE_CALLS, [options.now ?? null, options.limit]);
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
  /** The turn whose end the job waits for. */
  readonly turn_id: TurnId;
  readonly job_id: string;
}

const DOOR = 'o.project_id, o.awaited_turn_id as turn_id, o.door_job_id as job_id';

const DOORS_OF = statement(`
  select ${DOOR} from boxcar.operations o where o.awaited_turn_id = any ($1::uuid[]) and o.door_job_id is not null`);

/** Jobs at the queue door that wait for the end of these turns. */
export function findDoorsOf(db: Queryable, turnIds: readonly TurnId[]): Promise<Door[]> {
  return run<Door>(db, DOORS_OF, [turnIds]);
}

const WAITING_DOORS = statement(`select ${DOOR} from boxcar.operations o where ${WAITING_DOOR} limit $2`);

/** Jobs at the queue door whose turn ended a while ago and that have not been answered. */
export function findWaitingDoors(pool: pg.Pool, options: SweepClock & { limit: number }): Promise<Door[]> {
  return runRetrying<Door>(pool, WAITING_DOORS, [options.now ?? null, options.limit]);
}

const OPEN_DOOR = statement(`
  insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, door_job_id)
  select o.project_id, $3, o.primitive, o.request_hash, o.response, o.awaited_turn_id, $4
  from boxcar.operations o where o.project_id = $1 and o.idempotency_key = $2 and o.door_job_id is distinct from $4
  on conflict (project_id, idempotency_key) do update set door_job_id = excluded.door_job_id`);

/** Another job waits for the turn of an operation: it gets a record of its own, under `own_key`. Once is enough. */
export async function openDoor(
  db: Queryable,
  door: { project_id: ProjectId; idempotency_key: string; own_key: string; job_id: string },
): Promise<void> {
  await run(db, OPEN_DOOR, [door.project_id, door.idempotency_key, door.own_key, door.job_id]);
}

const CLOSE_DOOR = statement(`
  update boxcar.operations set door_job_id = null where project_id = $1 and awaited_turn_id = $2 and door_job_id = $3`);

/** The job has its answer, or is gone. */
export async function closeDoor(db: Queryable, door: Door): Promise<void> {
  await run(db, CLOSE_DOOR, [door.project_id, door.turn_id, door.job_id]);
}
