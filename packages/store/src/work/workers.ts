import { type Ring, type TurnId, toErrorBody, type WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  isServerTrouble,
  type Queryable,
  run,
  runRetrying,
  statement,
  type Tx,
  transaction,
} from '../db/index.js';
import type { WorkerInfo } from '../kinds/row-kinds.js';
import { lostCause, mayRun, noteSweepFailure, THIS_BUILD } from '../rows/index.js';
import { ringPriority, WINDOW_FACTOR } from '../submit/index.js';
import { type HeldAt, hasStatus, isHeldBack, toRing } from '../turn/index.js';
import { WORKERS_CHANNEL } from './liveness.js';
import { IS_GATED } from './providers.js';

export interface NewWorker {
  readonly id: WorkerId;
  /** Key of the session advisory lock the worker's direct connection holds while it lives. */
  readonly lockKey: string;
  readonly targets: readonly string[];
  readonly concurrency: number;
  readonly leaseMs: number;
  readonly info: WorkerInfo;
  /** The newest migration that its build knows; default: this build's. */
  readonly schemaVersion?: number;
}

const REGISTER = statement(`
  with joined as (
    insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info, locked_at, schema_version)
    values ($1, $2, now() + $3 * interval '1 millisecond', $4, $5, $6, now(), $7)
    returning id
  )
  select pg_notify('${WORKERS_CHANNEL}', 'joined ' || id) from joined`);

/** The worker must already hold its lock. The other workers are notified, so that one of them watches it. */
export async function registerWorker(db: Queryable, worker: NewWorker): Promise<void> {
  await run(db, REGISTER, [
    worker.id,
    worker.lockKey,
    worker.leaseMs,
    worker.targets,
    worker.concurrency,
    JSON.stringify(worker.info),
    worker.schemaVersion ?? THIS_BUILD.schemaVersion,
  ]);
}

/** The row `alias` is a worker's: a door has no targets. */
export const isWorker = (alias: string): string => `${alias}.targets <> '{}'`;

const RENEW = statement(`
  update boxcar.workers u set lease_until = now() + $2 * interval '1 millisecond', locked_at = case when $3 then now() end, told_at = now(),
    answers = u.answers || coalesce((select jsonb_object_agg(a.key, now() - a.value::float8 * interval '1 millisecond') from jsonb_each_text($4) a), '{}') where u.id = $1
  returning (select coalesce(json_agg(json_build_object('turnId', t.id, 'epoch', t.epoch)), '[]') from boxcar.turns t where t.holder_id = $1 and t.status = 'running') as held,
    array(select p.name from boxcar.providers p where ${IS_GATED}) as gated,
    (select max(v.min_compatible) from boxcar.schema_version v) as min_compatible,
    exists (select from boxcar.workers o where o.lease_until > now() and o.targets && u.targets and o.schema_version < u.schema_version) as has_older,
    exists (select from boxcar.workers o where o.lease_until > now() and o.id <> u.id and ${isWorker('o')}) as has_peers`);

export interface Renewal {
  /** The turns that the rows say it holds. */
  readonly held: readonly HeldAt[];
  /** Providers of models whose calls have to ask for room first. */
  readonly gated: readonly string[];
  /** The oldest build that may work on this database. */
  readonly minCompatible: number;
  /** Workers of older builds serve its targets as well. */
  readonly hasOlder: boolean;
  /** Others live, whatever they serve. */
  readonly hasPeers: boolean;
}

interface RenewalRow extends pg.QueryResultRow {
  held: HeldAt[];
  gated: string[];
  min_compatible: number;
  has_older: boolean;
  has_peers: boolean;
}

/**
 * Renews the lease of a worker and with it of every turn it holds.
 *
 * @param options.hasLock - False: its session lock is gone for now, and only its lease speaks for it.
 * @param options.answers - Providers that have answered since the renewal before, and how many milliseconds ago the last time.
 * @returns Undefined = its row is gone and its turns with it.
 */
export async function renewLease(
  db: Queryable,
  workerId: WorkerId,
  options: {
    readonly leaseMs: number;
    readonly hasLock: boolean;
    readonly answers?: Readonly<Record<string, number>>;
  },
): Promise<Renewal | undefined> {
  const { leaseMs, hasLock, answers = {} } = options;
  const [row] = await run<RenewalRow>(db, RENEW, [workerId, leaseMs, hasLock, JSON.stringify(answers)]);
  if (row === undefined) return undefined;
  return {
    held: row.held,
    gated: row.gated,
    minCompatible: row.min_compatible,
    hasOlder: row.has_older,
    hasPeers: row.has_peers,
  };
}

const GIVE_UP = statement('update boxcar.workers set lease_until = now(), locked_at = null where id = $1');

/** Ends the lease of a worker that can no longer commit: the sweep of any other worker takes its turns over. */
export async function giveUpLease(db: Queryable, workerId: WorkerId): Promise<void> {
  await run(db, GIVE_UP, [workerId]);
}

export interface NewDoor {
  readonly id: WorkerId;
  /** Unlike that of any worker; it locks nothing. */
  readonly lockKey: string;
  readonly leaseMs: number;
  readonly info: WorkerInfo;
  readonly schemaVersion: number;
}

const ANNOUNCE_DOOR = statement(`
  insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info, schema_version)
  values ($1, $2, now() + $3 * interval '1 millisecond', '{}', 1, $4, $5)
  on conflict (id) do update set lease_until = excluded.lease_until, info = excluded.info`);

/** Says that a door lives and which primitives it knows, for `leaseMs`. `removeWorker` takes it back. */
export async function announceDoor(db: Queryable, door: NewDoor): Promise<void> {
  const { id, lockKey, leaseMs, info, schemaVersion } = door;
  await run(db, ANNOUNCE_DOOR, [id, lockKey, leaseMs, JSON.stringify(info), schemaVersion]);
}

// A worker of an older build does not say what it knows. A row whose lease has just lapsed may be of a process that is slow for a
// moment or is started again: a submission must not be refused for that.
const MAY_LIVE = "w.lease_until > now() - interval '1 minute'";
const KNOWS = statement(`
  select exists (select from boxcar.workers w where ${MAY_LIVE} and (w.info->'primitives' is null or w.info->'primitives' ? $1)) as is_known,
    coalesce((select true from boxcar.workers w where ${MAY_LIVE} and w.info->'primitives'->>$1 not in ($2, '') limit 1), false) as is_other`);

/**
 * What workers and doors say of a primitive that live, or did a minute ago.
 *
 * @param hash - Of the arguments that the caller's own version of it takes; '' = not known.
 * @returns `isKnown`: one may know it. `isOther`: one takes other arguments than the caller.
 */
export async function lookUpPrimitive(
  db: Queryable,
  primitive: string,
  hash: string,
): Promise<{ readonly isKnown: boolean; readonly isOther: boolean }> {
  const [row] = await run<{ is_known: boolean; is_other: boolean }>(db, KNOWS, [primitive, hash]);
  return { isKnown: row?.is_known === true, isOther: hash !== '' && row?.is_other === true };
}

const REMOVE = statement('delete from boxcar.workers where id = $1');

export async function removeWorker(db: Queryable, workerId: WorkerId): Promise<void> {
  await run(db, REMOVE, [workerId]);
}

/** The rest of a worker `w` that died a day ago: while it holds a turn, the row says who lost it. $1: the clock of tests. */
export const LONG_DEAD = `w.lease_until < coalesce($1::timestamptz, now()) - interval '1 day'
  and not exists (select from boxcar.turns t where t.holder_id = w.id and t.status = 'running')`;

const PURGE = statement(`delete from boxcar.workers w where ${LONG_DEAD} returning w.id`);

/** Removes the rows that killed workers have left behind. */
export async function purgeDeadWorkers(
  pool: pg.Pool,
  options: { readonly now?: Date } = {},
): Promise<readonly WorkerId[]> {
  return (await runRetrying<{ id: WorkerId }>(pool, PURGE, [options.now ?? null])).map((row) => row.id);
}

// The order keeps the planner from looking among the queued turns of other targets. `exists` would forget it.
const HAS_QUEUED = statement(`
  select (select true from boxcar.turns t where t.status = 'queued' and t.worker_target = $1 order by t.worker_target, t.project_id limit 1) is not null as has_queued`);

// Where a project has a limit, promoters of different targets count it one after the other.
const TAKE_TURN = statement(`
  select pg_advisory_xact_lock(hashtextextended('boxcar:promote:' || $1, 0)),
    (select pg_advisory_xact_lock(hashtextextended('boxcar:limited', 0)) from boxcar.projects where limits ? 'max_concurrent' limit 1)`);

// A probe for each turn: as an anti-join it goes through all turns under way for each queued one, where there were few at the
// last ANALYZE. `is not true`: of `is null` Postgres expects so little that it reads and sorts the whole queue.
const IS_IDLE =
  "(select true from boxcar.turns a where a.agent_id = t.agent_id and a.status in ('dispatched', 'running', 'suspended') limit 1) is not true";

/** An earlier turn of its agent is queued. A turn whose end was given up does not block others. */
const IS_BEHIND = `(select true from boxcar.turns o where o.agent_id = t.agent_id and o.status = 'queued' and o.id < t.id
    and ${lostCause('o.id', ['turn_ends'])} is null limit 1)`;

/** Its promotion has not failed recently: such a turn must not take the place of others. */
const IS_IN_ORDER =
  "(select true from boxcar.sweep_failures f where f.kind = 'turn_runs' and f.row_id = t.id and (f.is_dead or f.next_try_at > now()) limit 1) is not true";

/**
 * The turns that enter next. A project with fewer turns under way at this target precedes a project with more turns.
 * Projects with equally many take turns, after the project that was served last, so that a window smaller than the number
 * of projects serves all of them. Of each project at most as many turns are read as would give it the same number as the
 * others ($2 times that number, when others did not use their share), so the work depends on the room, not on the length
 * of the queue. A project with no turn under way enters with one turn even when there is no room: its ring precedes those
 * of projects with more turns (`ring-priority.ts`). Turns that no live worker can read stay queued and take no room, and so do turns that wait for
 * the prompt cache of another (`warm-cache.ts`).
 */
export const CANDIDATES = statement(`
  with recursive room as materialized (
    select greatest(${WINDOW_FACTOR} * p.concurrency
      - (select count(*) from boxcar.turns t where t.status = 'dispatched' and t.worker_target = $1 and t.format <= p.newest), 0)::int as free, p.newest
    from (select coalesce(sum(w.concurrency), 0) as concurrency, max(w.schema_version) as newest
      from boxcar.workers w where w.lease_until > now() and w.targets @> array[$1]) p
  ),
  waiting as (
    (select t.project_id from boxcar.turns t where t.status = 'queued' and t.worker_target = $1 order by t.project_id limit 1)
    union all
    select (select t.project_id from boxcar.turns t where t.status = 'queued' and t.worker_target = $1 and t.project_id > w.project_id order by t.project_id limit 1)
    from waiting w where w.project_id is not null
  ),
  busy as materialized (
    select coalesce(jsonb_object_agg(c.project_id, c.here), '{}') as here, coalesce(jsonb_object_agg(c.project_id, c.active), '{}') as active,
      coalesce(jsonb_object_agg(c.project_id, c.waiting), '{}') as waiting
    from (
      select o.project_id, count(*) as active, count(*) filter (where o.worker_target = $1) as here,
        count(*) filter (where o.worker_target = $1 and o.is_waiting) as waiting
      from (select t.project_id, t.worker_target, true as is_waiting from boxcar.turns t where t.status = 'dispatched'
        union all select t.project_id, t.worker_target, false from boxcar.turns t where t.status = 'running') o
      group by o.project_id
    ) c
  ),
  wheel as materialized (
    select coalesce((select t.project_id from boxcar.turns t where t.status = 'dispatched' and t.worker_target = $1 order by t.dispatched_at desc limit 1),
      gen_random_uuid()) as stands_at
  ),
  open as materialized (
    select w.project_id, coalesce((b.here->>w.project_id::text)::int, 0) as here, coalesce((b.waiting->>w.project_id::text)::int, 0) as waiting,
      (p.limits->>'max_concurrent')::int - coalesce((b.active->>w.project_id::text)::int, 0) as allowed
    from waiting w join boxcar.projects p on p.id = w.project_id cross join busy b
  ),
  share as materialized (
    select o.project_id, o.here, o.waiting,
      greatest(least(r.free, greatest(ceil($2::float8 * (r.free + sum(o.here) over ()) / count(*) over ())::int - o.here, 1), coalesce(o.allowed, r.free)),
        (o.here = 0 and r.newest is not null)::int) as quota
    from open o cross join room r where o.allowed is null or o.allowed > 0
  ),
  ranked as (
  select c.id, c.agent_id, s.here = 0 and c.place = 1 as is_first, ${ringPriority('s.waiting', '(s.here + c.place)::int - 1')} as priority,
    row_number() over (order by s.here + c.place, s.project_id <= wheel.stands_at, s.project_id) as place
  from share s cross join wheel cross join lateral (
    select t.id, t.agent_id, row_number() over (order by t.priority desc, t.id) as place
    from boxcar.turns t
    where t.status = 'queued' and t.worker_target = $1 and t.project_id = s.project_id and t.format <= (select newest from room)
      and ${isHeldBack('t')} is not true and ${IS_IDLE} and ${IS_IN_ORDER}
      and ${IS_BEHIND} is not true
    order by t.priority desc, t.id limit s.quota
  ) c
  )
  select r.id, r.agent_id, r.priority, (select free from room) as free from ranked r where r.place <= (select free from room) or r.is_first order by r.place`);

// Locked agents and turns are skipped and delay no others: the process that holds the lock promotes after its commit, or the sweep.
const LOCK_AGENTS = statement(`
  with lk as materialized (select id from boxcar.agents where id = any ($1::uuid[]) order by id for no key update skip locked)
  select a.id from boxcar.agents a where a.id = any ($1::uuid[]) and a.id not in (select lk.id from lk)`);

export const PROMOTE = statement(`
  with lk as (select t.id from boxcar.turns t where t.id = any ($1::uuid[]) and ${hasStatus('queued')} order by t.id for update skip locked)
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from lk where t.id = lk.id and ${IS_IDLE}
  returning t.id as turn_id, t.epoch, t.worker_target`);

/** How often promotion asks for what projects left of their shares; the last round asks each for all of the room. */
const SHARES = [1, 8, 1_000_000];

interface Candidate extends pg.QueryResultRow {
  readonly id: string;
  readonly agent_id: string;
  /** The priority of its ring (`ring-priority.ts`). */
  readonly priority: number;
  readonly free: number;
}

/**
 * Fills the window of a target from its queue: projects by turns, within a project by priority, then age; the oldest queued
 * turn of an agent that has none in hand; of a project with `max_concurrent` no more than it allows. An empty queue costs one
 * statement.
 *
 * One promoter per target at a time. The others wait their turn and then look again: one that left instead would leave
 * behind what it had just queued, unseen by the promoter before it, whose look was older.
 */
export async function promote(pool: pg.Pool, workerTarget: string): Promise<readonly Ring[]> {
  const [queue] = await runRetrying<{ has_queued: boolean }>(pool, HAS_QUEUED, [workerTarget]);
  if (queue?.has_queued !== true) return [];
  try {
    return await transaction(pool, (tx) => fillWindow(tx, workerTarget, promoteAll));
  } catch (error) {
    if (isServerTrouble(error)) throw error;
  }
  // A row that cannot be written must not block the others.
  const failures = new Map<string, string>();
  const rings = await transaction(pool, (tx) => {
    failures.clear();
    return fillWindow(tx, workerTarget, (inner, ids) => promoteEach(inner, ids, failures));
  });
  for (const [rowId, error] of failures)
    await noteSweepFailure(pool, { kind: 'turn_runs', rowId, projectId: null, error });
  return rings;
}

type Promotion = (tx: Tx, ids: readonly string[]) => Promise<readonly Ring[]>;

async function fillWindow(tx: Tx, workerTarget: string, promotion: Promotion): Promise<readonly Ring[]> {
  await run(tx, TAKE_TURN, [workerTarget]);
  const rings: Ring[] = [];
  for (const shares of SHARES) {
    const candidates = await run<Candidate>(tx, CANDIDATES, [workerTarget, shares]);
    const [first] = candidates;
    if (first === undefined) break;
    const agentIds = candidates.map((row) => row.agent_id);
    const busy = new Set((await run<{ id: string }>(tx, LOCK_AGENTS, [agentIds])).map(({ id }) => id));
    const chosen = candidates.filter((row) => !busy.has(row.agent_id));
    const promoted = await promotion(
      tx,
      chosen.map(({ id }) => id),
    );
    const ringOf = new Map<string, Ring>(promoted.map((ring) => [ring.turnId, ring]));
    // Keeps the order of the candidates: rings of equal priority are delivered in the order in which they are rung.
    for (const { id, priority } of chosen) {
      const ring = ringOf.get(id);
      if (ring !== undefined) rings.push({ ...ring, priority });
    }
    if (candidates.length >= first.free) break;
  }
  return rings;
}

const promoteAll: Promotion = async (tx, ids) =>
  (await run<Parameters<typeof toRing>[0]>(tx, PROMOTE, [ids])).map(toRing);

const SAVEPOINT = statement('savepoint one_turn');
const UNDO = statement('rollback to savepoint one_turn');

/** Promotes each turn alone, and notes failures in `failures` by turn id, as `code: message`. */
async function promoteEach(
  tx: Tx,
  ids: readonly string[],
  failures: Map<string, string>,
): Promise<readonly Ring[]> {
  const rings: Ring[] = [];
  for (const id of ids) {
    if (failures.has(id)) continue;
    await run(tx, SAVEPOINT, []);
    try {
      rings.push(...(await promoteAll(tx, [id])));
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      await run(tx, UNDO, []);
      const { code, message } = toErrorBody(error);
      failures.set(id, `${code}: ${message}`);
    }
  }
  return rings;
}

// Ordered by how many turns of the project are before a turn, then by fewer waiting; with $5 the oldest of each target is first.
const READY = statement(`
  with running as materialized (
    select o.worker_target, o.project_id, count(*)::int as n
    from (select t.worker_target, t.project_id from boxcar.turns t where t.status = 'running' order by t.holder_id offset 0) o group by o.worker_target, o.project_id
  ),
  ready as (
  select t.id as turn_id, t.epoch, t.worker_target, t.project_id, t.dispatched_at,
    row_number() over (partition by t.worker_target, t.project_id order by t.dispatched_at, t.priority desc, t.id) as place,
    count(*) over (partition by t.worker_target, t.project_id) as waiting,
    row_number() over (partition by t.worker_target order by t.dispatched_at, t.id) as place_of_all
  from boxcar.turns t
  where t.status = 'dispatched' and t.worker_target = any ($1::text[]) and t.format <= $3
    and ${mayRun()} and t.id <> all ($6::uuid[])
    and (not $4 or t.format > (select min(w.schema_version) from boxcar.workers w where w.lease_until > now() and w.targets @> array[t.worker_target]))
  )
  select r.turn_id, r.epoch, r.worker_target from ready r
  order by $5 and r.place_of_all = 1 desc, r.place + coalesce((select n from running where running.worker_target = r.worker_target and running.project_id = r.project_id), 0),
    r.waiting, r.dispatched_at, r.turn_id limit $2`);

/**
 * Dispatched turns straight from the rows, for when no doorbell can be heard.
 *
 * @param options.schemaVersion - Only those that this build can read; default: this one.
 * @param options.isOldestFirst - The oldest turn of each target is first, before the turns of projects with fewer turns.
 * @param options.isOnlyNewer - Only those that some living worker of their target cannot read.
 * @param options.exceptIds - Turns that are left out.
 */
export async function findReady(
  pool: pg.Pool,
  targets: readonly string[],
  limit: number,
  options: {
    readonly schemaVersion?: number;
    readonly isOldestFirst?: boolean;
    readonly isOnlyNewer?: boolean;
    readonly exceptIds?: readonly TurnId[];
  } = {},
): Promise<readonly Ring[]> {
  const { schemaVersion = THIS_BUILD.schemaVersion, isOldestFirst = false, isOnlyNewer = false } = options;
  const values = [targets, limit, schemaVersion, isOnlyNewer, isOldestFirst, options.exceptIds ?? []];
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, READY, values)).map(toRing);
}
