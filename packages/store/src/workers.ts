import type { Ring, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { THIS_BUILD } from './build.js';
import { type Queryable, run, runRetrying, statement, transaction } from './db.js';
import { IS_GATED } from './providers.js';
import { WINDOW_FACTOR } from './submission-sql.js';
import { toRing } from './turns.js';

export interface NewWorker {
  readonly id: WorkerId;
  /** Key of the session advisory lock the worker's direct connection holds while it lives. */
  readonly lockKey: string;
  readonly targets: readonly string[];
  readonly concurrency: number;
  readonly leaseMs: number;
  readonly info: Readonly<Record<string, unknown>>;
  /** The newest migration that its build knows; default: this build's. */
  readonly schemaVersion?: number;
}

const REGISTER = statement(`
  insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info, locked_at, schema_version)
  values ($1, $2, now() + $3 * interval '1 millisecond', $4, $5, $6, now(), $7)`);

/** The worker holds its lock by now. */
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

const RENEW = statement(`
  update boxcar.workers u set lease_until = now() + $2 * interval '1 millisecond', locked_at = case when $3 then now() end where u.id = $1
  returning array(select t.id from boxcar.turns t where t.holder_id = $1 and t.status = 'running') as held,
    array(select p.name from boxcar.providers p where ${IS_GATED}) as gated,
    (select max(v.min_compatible) from boxcar.schema_version v) as min_compatible,
    exists (select from boxcar.workers o where o.lease_until > now() and o.targets && u.targets and o.schema_version < u.schema_version) as has_older,
    exists (select from boxcar.workers o where o.lease_until > now() and o.id <> u.id) as has_peers`);

export interface Renewal {
  /** The turns that the rows say it holds. */
  readonly held: readonly TurnId[];
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
  held: TurnId[];
  gated: string[];
  min_compatible: number;
  has_older: boolean;
  has_peers: boolean;
}

/**
 * Renews the lease of a worker and with it of every turn it holds.
 *
 * @param options.hasLock - False: its session lock is gone for now, and only its lease speaks for it.
 * @returns Undefined = its row is gone and its turns with it.
 */
export async function renewLease(
  db: Queryable,
  workerId: WorkerId,
  options: { readonly leaseMs: number; readonly hasLock: boolean },
): Promise<Renewal | undefined> {
  const [row] = await run<RenewalRow>(db, RENEW, [workerId, options.leaseMs, options.hasLock]);
  if (row === undefined) return undefined;
  return {
    held: row.held,
    gated: row.gated,
    minCompatible: row.min_compatible,
    hasOlder: row.has_older,
    hasPeers: row.has_peers,
  };
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

/**
 * Who enters next. A project with fewer turns under way at this target goes before one with more; among equals the wheel turns on
 * from the project that was served last, so that a window smaller than the number of projects serves all of them. No project
 * is asked for more than brings it level with the others ($2 times that, when others did not use their share), so what is read
 * is what there is room for, not what is queued. What no living worker can read stays queued, and takes no room.
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
    select coalesce(jsonb_object_agg(c.project_id, c.here), '{}') as here, coalesce(jsonb_object_agg(c.project_id, c.active), '{}') as active
    from (
      select o.project_id, count(*) as active, count(*) filter (where o.worker_target = $1) as here
      from (select t.project_id, t.worker_target from boxcar.turns t where t.status = 'dispatched'
        union all select t.project_id, t.worker_target from boxcar.turns t where t.status = 'running') o
      group by o.project_id
    ) c
  ),
  wheel as materialized (
    select coalesce((select t.project_id from boxcar.turns t where t.status = 'dispatched' and t.worker_target = $1 order by t.dispatched_at desc limit 1),
      gen_random_uuid()) as stands_at
  ),
  open as materialized (
    select w.project_id, coalesce((b.here->>w.project_id::text)::int, 0) as here,
      (p.limits->>'max_concurrent')::int - coalesce((b.active->>w.project_id::text)::int, 0) as allowed
    from waiting w join boxcar.projects p on p.id = w.project_id cross join busy b
  ),
  share as materialized (
    select o.project_id, o.here,
      least(r.free, greatest(ceil($2::float8 * (r.free + sum(o.here) over ()) / count(*) over ())::int - o.here, 1), coalesce(o.allowed, r.free)) as quota
    from open o cross join room r where o.allowed is null or o.allowed > 0
  )
  select c.id, c.agent_id, (select free from room) as free from share s cross join wheel cross join lateral (
    select t.id, t.agent_id, row_number() over (order by t.priority desc, t.id) as place
    from boxcar.turns t
    where t.status = 'queued' and t.worker_target = $1 and t.project_id = s.project_id and t.format <= (select newest from room)
      and ${IS_IDLE}
      and (select true from boxcar.turns o where o.agent_id = t.agent_id and o.status = 'queued' and o.id < t.id limit 1) is not true
    order by t.priority desc, t.id limit s.quota
  ) c
  order by s.here + c.place, s.project_id <= wheel.stands_at, s.project_id limit (select free from room)`);

const LOCK_AGENTS = statement(
  'select id from boxcar.agents where id = any ($1::uuid[]) order by id for no key update',
);

const PROMOTE = statement(`
  with lk as (select t.id from boxcar.turns t where t.id = any ($1::uuid[]) and t.status = 'queued' order by t.id for update)
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from lk where t.id = lk.id and ${IS_IDLE}
  returning t.id as turn_id, t.epoch, t.worker_target`);

/** How often promotion asks for what projects left of their shares; the last round asks each for all of the room. */
const SHARES = [1, 8, 1_000_000];

interface Candidate extends pg.QueryResultRow {
  readonly id: string;
  readonly agent_id: string;
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
  return transaction(pool, async (tx) => {
    await run(tx, TAKE_TURN, [workerTarget]);
    const rings: Ring[] = [];
    for (const shares of SHARES) {
      const candidates = await run<Candidate>(tx, CANDIDATES, [workerTarget, shares]);
      const [first] = candidates;
      if (first === undefined) break;
      await run(tx, LOCK_AGENTS, [candidates.map((row) => row.agent_id)]);
      const rows = await run<Parameters<typeof toRing>[0]>(tx, PROMOTE, [candidates.map((row) => row.id)]);
      rings.push(...rows.map(toRing));
      if (candidates.length >= first.free) break;
    }
    return rings;
  });
}

const READY = statement(`
  select t.id as turn_id, t.epoch, t.worker_target from boxcar.turns t
  where t.status = 'dispatched' and t.worker_target = any ($1::text[]) and t.format <= $3
    and (not $4 or t.format > (select min(w.schema_version) from boxcar.workers w where w.lease_until > now() and w.targets @> array[t.worker_target]))
  order by t.dispatched_at limit $2`);

/**
 * Dispatched turns straight from the rows, for when no doorbell can be heard.
 *
 * @param options.schemaVersion - Only those that this build can read; default: this one.
 * @param options.isOnlyNewer - Only those that some living worker of their target cannot read.
 */
export async function findReady(
  pool: pg.Pool,
  targets: readonly string[],
  limit: number,
  options: { readonly schemaVersion?: number; readonly isOnlyNewer?: boolean } = {},
): Promise<readonly Ring[]> {
  const { schemaVersion = THIS_BUILD.schemaVersion, isOnlyNewer = false } = options;
  const values = [targets, limit, schemaVersion, isOnlyNewer];
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, READY, values)).map(toRing);
}
