/** Queued turns enter the window of their target. Rule: docs/reference/turns.md, "Window"; docs/reference/operations.md, "Fairness". */
import { type Ring, toErrorBody, WINDOW_FACTOR } from '@boxcar/kernel';
import type pg from 'pg';
import { isServerTrouble, run, runRetrying, statement, type Tx, transaction } from '../db/index.js';
import { lostCause, noteSweepFailure } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { ringPriority } from '../submit/index.js';
import { hasStatus, isHeldBack, toRing } from '../turn/index.js';

// The order keeps the planner from searching the queued turns of other targets. Inside `exists` Postgres would drop the order.
const HAS_QUEUED = statement(`
  select /* promote.has_queued */ (
    select true
    from boxcar.turns t
    where t.status = 'queued' and t.worker_target = $1
    order by t.worker_target, t.project_id
    limit 1
  ) is not null as has_queued`);

// When a project has a limit, promoters of different targets take turns to count it.
const TAKE_TURN = statement(`
  select /* promote.take_turn */
    pg_advisory_xact_lock(hashtextextended('boxcar:promote:' || $1, 0)),
    (
      select pg_advisory_xact_lock(hashtextextended('boxcar:limited', 0))
      from boxcar.projects
      where limits ? 'max_concurrent'
      limit 1
    )`);

// A probe for each turn. As an anti-join, Postgres would go through all turns under way for each queued turn, if there were few at the
// last ANALYZE. `is not true`: for `is null` Postgres expects so few rows that it reads and sorts the whole queue.
const IS_IDLE = `
  (
    select true
    from boxcar.turns a
    where a.agent_id = t.agent_id and a.status in ('dispatched', 'running', 'suspended')
    limit 1
  ) is not true`;

/** True when an earlier turn of the same agent is queued. A turn whose end was given up does not block others. */
const IS_BEHIND = `
  (
    select true
    from boxcar.turns o
    where o.agent_id = t.agent_id
      and o.status = 'queued'
      and o.id < t.id
      and ${lostCause('o.id', ['turn_ends'])} is null
    limit 1
  )`;

/** True unless the promotion of the turn failed recently: such a turn must not take the place of others. */
const IS_IN_ORDER = `
  (
    select true
    from boxcar.sweep_failures f
    where f.kind = 'turn_runs' and f.row_id = t.id and (f.is_dead or f.next_try_at > now())
    limit 1
  ) is not true`;

/**
 * Selects the turns that enter the window next. A project with fewer turns under way at this target precedes a project with more.
 * Projects with the same number take turns, starting after the project that was served last, so that a window smaller than the number
 * of projects serves all of them. For each project the statement reads at most as many turns as would give it the same number as the
 * others ($2 times that number when other projects did not use their share). So the work depends on the room, not on the length of the
 * queue.
 *
 * A project without a turn under way enters with one turn even when there is no room: its ring precedes those of projects with more
 * turns (`ring-priority.ts`). Two kinds of turns stay queued and take no room: turns that no live worker can read, and turns that wait
 * for the prompt cache of another turn (`warm-cache.ts`).
 *
 * The statement takes no locks of its own: the promoter holds the lock of the target, so no other promoter reads the same queue. A
 * submission may take a place of the room in the meantime. `PROMOTE` checks each turn again under its lock.
 */
export const CANDIDATES = statement(`
  with recursive /* promote.candidates */
  room as materialized (
    select
      greatest(
        ${WINDOW_FACTOR} * p.concurrency
          - (
            select count(*)
            from boxcar.turns t
            where t.status = 'dispatched' and t.worker_target = $1 and t.format <= p.newest
          ),
        0
      )::int as free,
      p.newest
    from (
      select coalesce(sum(w.concurrency), 0) as concurrency, max(w.schema_version) as newest
      from boxcar.workers w
      where w.lease_until > now() and w.targets @> array[$1]
    ) p
  ),
  waiting as (
    (
      select t.project_id
      from boxcar.turns t
      where t.status = 'queued' and t.worker_target = $1
      order by t.project_id
      limit 1
    )
    union all
    select (
      select t.project_id
      from boxcar.turns t
      where t.status = 'queued' and t.worker_target = $1 and t.project_id > w.project_id
      order by t.project_id
      limit 1
    )
    from waiting w
    where w.project_id is not null
  ),
  busy as materialized (
    select
      coalesce(jsonb_object_agg(c.project_id, c.here), '{}') as here,
      coalesce(jsonb_object_agg(c.project_id, c.active), '{}') as active,
      coalesce(jsonb_object_agg(c.project_id, c.waiting), '{}') as waiting
    from (
      select
        o.project_id, count(*) as active,
        count(*) filter (where o.worker_target = $1) as here,
        count(*) filter (where o.worker_target = $1 and o.is_waiting) as waiting
      from (
        select t.project_id, t.worker_target, true as is_waiting
        from boxcar.turns t
        where t.status = 'dispatched'
        union all
        select t.project_id, t.worker_target, false
        from boxcar.turns t
        where t.status = 'running'
      ) o
      group by o.project_id
    ) c
  ),
  wheel as materialized (
    select coalesce((
      select t.project_id
      from boxcar.turns t
      where t.status = 'dispatched' and t.worker_target = $1
      order by t.dispatched_at desc
      limit 1
    ), gen_random_uuid()) as stands_at
  ),
  open as materialized (
    select
      w.project_id,
      coalesce((b.here->>w.project_id::text)::int, 0) as here,
      coalesce((b.waiting->>w.project_id::text)::int, 0) as waiting,
      (p.limits->>'max_concurrent')::int - coalesce((b.active->>w.project_id::text)::int, 0) as allowed
    from waiting w
    join boxcar.projects p on p.id = w.project_id
    cross join busy b
  ),
  share as materialized (
    select
      o.project_id, o.here, o.waiting,
      greatest(
        least(
          r.free,
          greatest(ceil($2::float8 * (r.free + sum(o.here) over ()) / count(*) over ())::int - o.here, 1),
          coalesce(o.allowed, r.free)
        ),
        (o.here = 0 and r.newest is not null)::int
      ) as quota
    from open o
    cross join room r
    where o.allowed is null or o.allowed > 0
  ),
  ranked as (
    select
      c.id, c.agent_id, s.here = 0 and c.place = 1 as is_first,
      ${ringPriority('s.waiting', '(s.here + c.place)::int - 1')} as priority,
      row_number() over (order by s.here + c.place, s.project_id <= wheel.stands_at, s.project_id) as place
    from share s
    cross join wheel
    cross join lateral (
      select t.id, t.agent_id, row_number() over (order by t.priority desc, t.id) as place
      from boxcar.turns t
      where t.status = 'queued'
        and t.worker_target = $1
        and t.project_id = s.project_id
        and t.format <= (select newest from room)
        and ${isHeldBack('t')} is not true
        and ${IS_IDLE}
        and ${IS_IN_ORDER}
        and ${IS_BEHIND} is not true
      order by t.priority desc, t.id
      limit s.quota
    ) c
  )
  select
    r.id, r.agent_id, r.priority,
    (select free from room) as free
  from ranked r
  where r.place <= (select free from room) or r.is_first
  order by r.place`);

// Locked agents and turns are skipped and do not delay others: the process that holds the lock promotes them after its commit, or else
// the sweep does.
const LOCK_AGENTS = statement(`
  with /* promote.lock_agents */
  lk as materialized (
    select id
    from boxcar.agents
    where id = any ($1::uuid[])
    order by id
    for no key update skip locked
  )
  select a.id
  from boxcar.agents a
  where a.id = any ($1::uuid[]) and a.id not in (select lk.id from lk)`);

export const PROMOTE = statement(`
  with /* promote.promote */
  lk as (
    select t.id
    from boxcar.turns t
    where t.id = any ($1::uuid[]) and ${hasStatus('queued')}
    order by t.id
    for update skip locked
  )
  update boxcar.turns t
  set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from lk
  where t.id = lk.id and ${IS_IDLE}
  returning t.id as turn_id, t.epoch, t.worker_target`);

/**
 * The rounds in which promotion distributes the shares that projects did not use; in the last round each project may take all of the
 * room.
 */
const SHARES = [1, 8, 1_000_000];

type Candidate = Row<'turns', 'id' | 'agent_id'> & {
  /** The priority of its ring (`ring-priority.ts`). */
  readonly priority: number;
  readonly free: number;
};

/**
 * Fills the window of a target from its queue. Projects take turns; within a project, the order is by priority, then by age. Only the
 * oldest queued turn of an agent enters, and only if the agent has no turn under way. A project with `max_concurrent` gets no more
 * turns than it allows. An empty queue costs one statement.
 *
 * Only one promoter per target works at a time. The others wait and then look again. A promoter that left without this look could leave
 * a turn queued: the turn that it had just queued was not visible to the promoter before it, which looked earlier.
 */
export async function promote(pool: pg.Pool, workerTarget: string): Promise<readonly Ring[]> {
  const [queue] = await runRetrying<{ has_queued: boolean }>(pool, HAS_QUEUED, [workerTarget]);
  if (queue?.has_queued !== true) return [];
  try {
    return await transaction(pool, (tx) => fillWindow(tx, workerTarget, promoteAll));
  } catch (error) {
    if (isServerTrouble(error)) throw error;
  }
  // One row that cannot be written must not block the others.
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

const SAVEPOINT = statement('savepoint /* promote.savepoint */ one_turn');
const UNDO = statement('rollback to savepoint /* promote.undo */ one_turn');

/** Promotes each turn alone, and records failures in `failures` by turn id, as `code: message`. */
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
