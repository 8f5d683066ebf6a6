import type { Ring, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement, transaction } from './db.js';
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
}

const REGISTER = statement(`
  insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info)
  values ($1, $2, now() + $3 * interval '1 millisecond', $4, $5, $6)`);

export async function registerWorker(db: Queryable, worker: NewWorker): Promise<void> {
  await run(db, REGISTER, [
    worker.id,
    worker.lockKey,
    worker.leaseMs,
    worker.targets,
    worker.concurrency,
    JSON.stringify(worker.info),
  ]);
}

const RENEW = statement(`
  update boxcar.workers set lease_until = now() + $2 * interval '1 millisecond' where id = $1
  returning array(select t.id from boxcar.turns t where t.holder_id = $1 and t.status = 'running') as held`);

/**
 * Renews the lease of a worker and with it of every turn it holds.
 *
 * @returns The turns that the rows say it holds; undefined = its row is gone and its turns with it.
 */
export async function renewLease(
  db: Queryable,
  workerId: WorkerId,
  leaseMs: number,
): Promise<readonly TurnId[] | undefined> {
  const [row] = await run<{ held: TurnId[] }>(db, RENEW, [workerId, leaseMs]);
  return row?.held;
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

const HAS_QUEUED = statement(
  "select exists (select from boxcar.turns where status = 'queued' and worker_target = $1) as has_queued",
);

const TAKE_TURN = statement("select pg_advisory_xact_lock(hashtextextended('boxcar:promote:' || $1, 0))");

const CANDIDATES = statement(`
  with recursive room as (
    select greatest(${WINDOW_FACTOR} * (select coalesce(sum(w.concurrency), 0) from boxcar.workers w where w.lease_until > now() and w.targets @> array[$1])
      - (select count(*) from boxcar.turns t where t.status = 'dispatched' and t.worker_target = $1), 0)::int as free
  ),
  waiting as (
    (select t.project_id from boxcar.turns t where t.status = 'queued' and t.worker_target = $1 order by t.project_id limit 1)
    union all
    select (select t.project_id from boxcar.turns t where t.status = 'queued' and t.worker_target = $1 and t.project_id > w.project_id order by t.project_id limit 1)
    from waiting w where w.project_id is not null
  )
  select c.id, c.agent_id from room, waiting w cross join lateral (
    select t.id, t.agent_id, row_number() over (order by t.priority desc, t.id) as place
    from boxcar.turns t
    where t.status = 'queued' and t.worker_target = $1 and t.project_id = w.project_id
      and not exists (select from boxcar.turns a where a.agent_id = t.agent_id and a.status in ('dispatched', 'running', 'suspended'))
      and not exists (select from boxcar.turns o where o.agent_id = t.agent_id and o.status = 'queued' and o.id < t.id)
    order by t.priority desc, t.id limit (select free from room)
  ) c
  where w.project_id is not null
  order by c.place, c.id limit (select free from room)`);

const LOCK_AGENTS = statement(
  'select id from boxcar.agents where id = any ($1::uuid[]) order by id for no key update',
);

const PROMOTE = statement(`
  with lk as (select t.id from boxcar.turns t where t.id = any ($1::uuid[]) and t.status = 'queued' order by t.id for update)
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from lk where t.id = lk.id
    and not exists (select from boxcar.turns a where a.agent_id = t.agent_id and a.status in ('dispatched', 'running', 'suspended'))
  returning t.id as turn_id, t.epoch, t.worker_target`);

/**
 * Fills the window of a target from its queue: round robin over projects, then priority, then age; the oldest queued turn
 * of an agent that has none in hand. An empty queue costs one statement.
 *
 * One promoter per target at a time. The others wait their turn and then look again: one that left instead would leave
 * behind what it had just queued, unseen by the promoter before it, whose look was older.
 */
export async function promote(pool: pg.Pool, workerTarget: string): Promise<readonly Ring[]> {
  const [queue] = await runRetrying<{ has_queued: boolean }>(pool, HAS_QUEUED, [workerTarget]);
  if (queue?.has_queued !== true) return [];
  return transaction(pool, async (tx) => {
    await run(tx, TAKE_TURN, [workerTarget]);
    const candidates = await run<{ id: string; agent_id: string }>(tx, CANDIDATES, [workerTarget]);
    if (candidates.length === 0) return [];
    await run(tx, LOCK_AGENTS, [candidates.map((row) => row.agent_id)]);
    const rows = await run<Parameters<typeof toRing>[0]>(tx, PROMOTE, [candidates.map((row) => row.id)]);
    return rows.map(toRing);
  });
}

const READY = statement(`
  select t.id as turn_id, t.epoch, t.worker_target from boxcar.turns t
  where t.status = 'dispatched' and t.worker_target = any ($1::text[]) order by t.dispatched_at limit $2`);

/** Dispatched turns straight from the rows, for when no doorbell can be heard. */
export async function findReady(
  pool: pg.Pool,
  targets: readonly string[],
  limit: number,
): Promise<readonly Ring[]> {
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, READY, [targets, limit])).map(toRing);
}
