import type { Ring, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import type { WorkerInfo } from '../kinds/row-kinds.js';
import { mayRun, NOT_GIVEN_UP, THIS_BUILD } from '../rows/index.js';
import { type HeldAt, toRing } from '../turn/index.js';
import { WORKERS_CHANNEL } from './liveness.js';
import { IS_GATED } from './provider-limits.js';

export interface NewWorker {
  readonly id: WorkerId;
  /** The key of the session advisory lock that the worker's direct connection holds while the worker lives. */
  readonly lockKey: string;
  readonly targets: readonly string[];
  readonly concurrency: number;
  readonly leaseMs: number;
  readonly info: WorkerInfo;
  /** The newest migration that the worker's build knows. Default: the migration of this build. */
  readonly schemaVersion?: number;
}

const REGISTER = statement(`
  with /* workers.register */
  joined as (
    insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info, locked_at, schema_version)
    values ($1, $2, now() + $3 * interval '1 millisecond', $4, $5, $6, now(), $7)
    returning id
  )
  select pg_notify('${WORKERS_CHANNEL}', 'joined ' || id)
  from joined`);

/** Registers a worker. The worker must already hold its lock. The other workers are notified, so that one of them watches it. */
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

/** True when the row `alias` is a worker's row: a door has no targets. */
export const isWorker = (alias: string): string => `${alias}.targets <> '{}'`;

// Locks only the worker's row; the turns are read without locks. A watcher that ends the lease at the same moment (`END_LEASE`) waits for
// this row and then finds another `locked_at`, so it leaves the lease alone. If the watcher was first, the renewal makes the lease valid
// again, and turns that were taken over are missing in `held`.
const RENEW = statement(`
  update /* workers.renew */ boxcar.workers u
  set
    lease_until = now() + $2 * interval '1 millisecond',
    locked_at = case when $3 then now() end,
    told_at = now(),
    answers = u.answers
      || coalesce((
        select jsonb_object_agg(a.key, now() - a.value::float8 * interval '1 millisecond')
        from jsonb_each_text($4) a
      ), '{}')
  where u.id = $1
  returning
    (
      select coalesce(json_agg(json_build_object(
        'turnId', t.id, 'epoch', t.epoch, 'isGivenUp', not (${NOT_GIVEN_UP})
      )), '[]')
      from boxcar.turns t
      where t.holder_id = $1 and t.status = 'running'
    ) as held,
    array(select p.name from boxcar.providers p where ${IS_GATED}) as gated,
    (select max(v.min_compatible) from boxcar.schema_version v) as min_compatible,
    exists (
      select from boxcar.workers o
      where o.lease_until > now() and o.targets && u.targets and o.schema_version < u.schema_version
    ) as has_older,
    exists (
      select from boxcar.workers o
      where o.lease_until > now() and o.id <> u.id and ${isWorker('o')}
    ) as has_peers`);

/** @property isGivenUp - The turn may only be ended: the worker stops the work that it still does for it. */
export type HeldNow = HeldAt & { readonly isGivenUp: boolean };

export interface Renewal {
  /** The turns that the worker holds according to the rows. */
  readonly held: readonly HeldNow[];
  /** Providers of models whose calls must ask for room first. */
  readonly gated: readonly string[];
  /** The oldest build that can work on this database. */
  readonly minCompatible: number;
  /** True when workers of older builds serve the worker's targets as well. */
  readonly hasOlder: boolean;
  /** True when other workers live, whatever they serve. */
  readonly hasPeers: boolean;
}

interface RenewalRow extends pg.QueryResultRow {
  held: HeldNow[];
  gated: string[];
  min_compatible: number;
  has_older: boolean;
  has_peers: boolean;
}

/**
 * Renews the lease of a worker, and with it the lease of every turn it holds.
 *
 * @param options.hasLock - False: the worker has lost its session lock for now, and only its lease shows that it lives.
 * @param options.answers - Providers that have answered since the last renewal, and how many milliseconds ago the last answer was.
 * @returns Undefined when the worker's row is gone, and its turns with it.
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

const GIVE_UP = statement(
  'update /* workers.give_up */ boxcar.workers set lease_until = now(), locked_at = null where id = $1',
);

/** Ends the lease of a worker that can no longer commit. The sweep of any other worker takes over its turns. */
export async function giveUpLease(db: Queryable, workerId: WorkerId): Promise<void> {
  await run(db, GIVE_UP, [workerId]);
}

export interface NewDoor {
  readonly id: WorkerId;
  /** Different from the key of any worker; the door locks nothing. */
  readonly lockKey: string;
  readonly leaseMs: number;
  readonly info: WorkerInfo;
  readonly schemaVersion: number;
}

const ANNOUNCE_DOOR = statement(`
  insert /* workers.announce_door */ into boxcar.workers (
    id, lock_key, lease_until, targets, concurrency, info, schema_version
  )
  values ($1, $2, now() + $3 * interval '1 millisecond', '{}', 1, $4, $5)
  on conflict (id) do update set lease_until = excluded.lease_until, info = excluded.info`);

/** Announces that a door lives and which primitives it knows, for `leaseMs`. `removeWorker` withdraws the announcement. */
export async function announceDoor(db: Queryable, door: NewDoor): Promise<void> {
  const { id, lockKey, leaseMs, info, schemaVersion } = door;
  await run(db, ANNOUNCE_DOOR, [id, lockKey, leaseMs, JSON.stringify(info), schemaVersion]);
}

// The row of a worker of an older build does not list its primitives. A row whose lease has just ended may belong to a process that is
// slow for a moment or is restarting: a submission must not be refused for that.
const MAY_LIVE = "w.lease_until > now() - interval '1 minute'";
const KNOWS = statement(`
  select /* workers.knows */
    exists (
      select from boxcar.workers w
      where ${MAY_LIVE} and (w.info->'primitives' is null or w.info->'primitives' ? $1)
    ) as is_known,
    coalesce((
      select true
      from boxcar.workers w
      where ${MAY_LIVE} and w.info->'primitives'->>$1 not in ($2, '')
      limit 1
    ), false) as is_other`);

/**
 * Looks up a primitive in the rows of workers and doors. A row counts until a minute after its lease.
 *
 * @param hash - The hash of the arguments in the caller's own version of the primitive; '' = not known.
 * @returns `isKnown`: at least one process may know the primitive. `isOther`: at least one process takes other arguments than the
 *   caller.
 */
export async function lookUpPrimitive(
  db: Queryable,
  primitive: string,
  hash: string,
): Promise<{ readonly isKnown: boolean; readonly isOther: boolean }> {
  const [row] = await run<{ is_known: boolean; is_other: boolean }>(db, KNOWS, [primitive, hash]);
  return { isKnown: row?.is_known === true, isOther: hash !== '' && row?.is_other === true };
}

const REMOVE = statement('delete /* workers.remove */ from boxcar.workers where id = $1');

export async function removeWorker(db: Queryable, workerId: WorkerId): Promise<void> {
  await run(db, REMOVE, [workerId]);
}

/**
 * True for the row of a worker `w` that died a day ago. While the worker still holds a turn, its row is kept: it identifies the worker
 * that lost the turn. $1: the clock of tests.
 */
export const LONG_DEAD = `
  w.lease_until < coalesce($1::timestamptz, now()) - interval '1 day'
  and not exists (select from boxcar.turns t where t.holder_id = w.id and t.status = 'running')`;

const PURGE = statement(`delete /* workers.purge */ from boxcar.workers w where ${LONG_DEAD} returning w.id`);

/** Removes the rows that killed workers have left. */
export async function purgeDeadWorkers(
  pool: pg.Pool,
  options: { readonly now?: Date } = {},
): Promise<readonly WorkerId[]> {
  return (await runRetrying<{ id: WorkerId }>(pool, PURGE, [options.now ?? null])).map((row) => row.id);
}

// Ordered by the number of turns of the same project before a turn, then by the fewer waiting turns. With $5 the oldest turn of each
// target is first. No row is locked: several workers may read the same turn, and the claim decides which of them gets it.
const READY = statement(`
  with /* workers.ready */
  running as materialized (
    select o.worker_target, o.project_id, count(*)::int as n
    from (
      select t.worker_target, t.project_id
      from boxcar.turns t
      where t.status = 'running'
      order by t.holder_id
      offset 0
    ) o
    group by o.worker_target, o.project_id
  ),
  ready as (
    select
      t.id as turn_id, t.epoch, t.worker_target, t.project_id, t.dispatched_at,
      row_number() over (
        partition by t.worker_target, t.project_id
        order by t.dispatched_at, t.priority desc, t.id
      ) as place,
      count(*) over (partition by t.worker_target, t.project_id) as waiting,
      row_number() over (partition by t.worker_target order by t.dispatched_at, t.id) as place_of_all
    from boxcar.turns t
    where t.status = 'dispatched'
      and t.worker_target = any ($1::text[])
      and t.format <= $3
      and ${mayRun()}
      and t.id <> all ($6::uuid[])
      and (
        not $4
        or t.format > (
          select min(w.schema_version)
          from boxcar.workers w
          where w.lease_until > now() and w.targets @> array[t.worker_target]
        )
      )
  )
  select r.turn_id, r.epoch, r.worker_target
  from ready r
  order by
    $5 and r.place_of_all = 1 desc,
    r.place
      + coalesce((
        select n
        from running
        where running.worker_target = r.worker_target and running.project_id = r.project_id
      ), 0),
    r.waiting, r.dispatched_at, r.turn_id
  limit $2`);

/**
 * Dispatched turns, read from the rows. Used when doorbells cannot be heard.
 *
 * @param options.schemaVersion - Only turns that a build with this migration can read. Default: this build.
 * @param options.isOldestFirst - The oldest turn of each target is first, before the turns of projects with fewer turns.
 * @param options.isOnlyNewer - Only turns that at least one living worker of their target cannot read.
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
