import type { ProjectId, Ring, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';
import { hasStatus, type SweepClock, toRing } from '../turn/index.js';
import { FIRST_ID, NOW, RINGABLE } from './sweep.js';

const STALE = `t.status = 'dispatched' and t.dispatched_at < ${NOW} - $2 * interval '1 millisecond'`;
const RING =
  't.id, t.epoch, t.worker_target, t.project_id, t.dispatched_at, t.priority, t.format, t.step_count';
const AS_RING = 't.id as turn_id, t.epoch, t.worker_target, t.project_id';
const CAN_RING = `t.format <= t.oldest_build and ${RINGABLE}`;

// Two kinds of turns are passed over. Turns of a target without a worker wait with or without a ring. Turns that some workers of a target
// cannot read might meet such a worker again and again, so the other workers look for these turns in the rows. `looked` reads one page of
// the index, and the page is filtered afterwards. No row is locked: a turn may be claimed after this read, so `RING_AGAIN` checks its epoch
// again under its lock.
const STALE_RINGS = statement(`
  with recursive /* stale-rings.stale_rings */
  targets as (
    (
      select t.worker_target
      from boxcar.turns t
      where t.status = 'dispatched'
      order by t.worker_target
      limit 1
    )
    union all
    select (
      select t.worker_target
      from boxcar.turns t
      where t.status = 'dispatched' and t.worker_target > g.worker_target
      order by t.worker_target
      limit 1
    )
    from targets g
    where g.worker_target is not null
  ),
  served as materialized (
    select g.worker_target, w.oldest_build
    from targets g
    cross join lateral (
      select min(w.schema_version) as oldest_build
      from boxcar.workers w
      where w.lease_until > ${NOW} and w.targets @> array[g.worker_target]
    ) w
    where w.oldest_build is not null
  ),
  running as materialized (
    select distinct o.worker_target, o.project_id
    from (
      select t.worker_target, t.project_id
      from boxcar.turns t
      where t.status = 'running'
      order by t.holder_id
      offset 0
    ) o
  ),
  heads as materialized (
    select h.*
    from served g
    cross join lateral (
      select ${AS_RING}, t.dispatched_at
      from (
        select ${RING}, g.oldest_build
        from boxcar.turns t
        where ${STALE} and t.worker_target = g.worker_target
        order by t.dispatched_at, t.id
        limit $3
      ) t
      where ${CAN_RING}
      order by t.dispatched_at, t.id
      limit 1
    ) h
    order by h.dispatched_at
    limit $3
  ),
  looked as materialized (
    select l.*
    from (
      select *
      from served
      where served.worker_target >= $4
      order by served.worker_target
      offset 0
    ) g
    cross join lateral (
      select ${RING}, g.oldest_build
      from boxcar.turns t
      where ${STALE}
        and t.worker_target = g.worker_target
        and t.dispatched_at >= case when g.worker_target = $4 then $5 else '-infinity' end::timestamptz
        and (g.worker_target > $4 or (t.dispatched_at, -t.priority, t.id) > ($5::timestamptz, $6::int, $7::uuid))
      order by t.dispatched_at, -t.priority, t.id
      limit $3
    ) l
    order by g.worker_target, l.dispatched_at, -l.priority, l.id
    limit $3
  ),
  page as (
    select
      ${AS_RING},
      row_number() over (order by t.worker_target, t.dispatched_at, -t.priority, t.id) as n,
      row_number() over (partition by t.worker_target, t.project_id order by t.dispatched_at, -t.priority, t.id) = 1
      and not (t.worker_target = $4 and t.project_id = any ($8::uuid[]))
      and (t.worker_target, t.project_id) not in (
        select running.worker_target, running.project_id
        from running
      ) as is_next
    from looked t
    where ${CAN_RING}
  ),
  rings as (
    select h.turn_id, h.epoch, h.worker_target, h.project_id, true as is_next, 0 as n, h.dispatched_at
    from heads h
    union all
    select p.turn_id, p.epoch, p.worker_target, p.project_id, p.is_next, p.n, null
    from page p
    where p.turn_id not in (select heads.turn_id from heads)
  )
  select
    (select coalesce(json_agg(r order by r.n, r.dispatched_at), '[]') from rings r) as rings,
    (
      select json_build_object(
        'worker_target', t.worker_target, 'dispatched_at', t.dispatched_at::text, 'priority', -t.priority,
        'turn_id', t.id,
        'project_ids', (
          select coalesce(json_agg(distinct p.project_id), '[]')
          from page p
          where p.worker_target = t.worker_target
        )
      )
      from looked t
      where (select count(*) from looked) >= $3
      order by t.worker_target desc, t.dispatched_at desc, -t.priority desc, t.id desc
      limit 1
    ) as next`);

/** A ring that may be lost. */
export interface StaleRing extends Ring {
  /** True for the oldest ring of its target, or of a project without a running turn: other rings may no longer pass it. */
  readonly isNext: boolean;
}

/** Where a search for stale rings ended. The next search begins there. */
export interface RingPlace {
  readonly workerTarget: string;
  readonly dispatchedAt: string;
  readonly priority: number;
  readonly turnId: TurnId;
  /** The projects whose rings at this target the search has met: their oldest ring is before this place. */
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
 * Finds turns that were dispatched a while ago and are not claimed, although all live workers can read them: their ring may be lost.
 * Returns the oldest ring of each target, then `limit` rings after a place.
 *
 * @returns `next`: the start of the next search; absent when this search has seen the last ring.
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

// No worker has begun a call that has the epoch at which its turn was dispatched. This must stay true at the new epoch.
const UNBEGUN = "k.status = 'pending' and k.epoch = lk.epoch and k.retry = 'never' and k.route = 'function'";
// The race is with claims, and with answers to the calls of a turn. Turns are locked by id, then their calls. A locked turn is skipped, and
// so is a turn with a locked call: every call must get the new epoch together with its turn.
const RING_AGAIN = statement(`
  with /* stale-rings.ring_again */
  want as (select * from json_to_recordset($1) as w(turn_id uuid, epoch int)),
  lk as (
    select t.id, t.epoch, t.pending_calls
    from boxcar.turns t
    join want w on w.turn_id = t.id and w.epoch = t.epoch
    where ${hasStatus('dispatched')}
    order by t.id
    for update of t skip locked
  ),
  unbegun as materialized (
    select k.id, k.turn_id
    from lk
    join boxcar.tool_calls k on k.turn_id = lk.id and ${UNBEGUN}
    where lk.pending_calls > 0
    for update of k skip locked
  ),
  free as (
    select lk.id, lk.epoch
    from lk
    where lk.pending_calls = 0
      or not exists (
        select from boxcar.tool_calls k
        where k.turn_id = lk.id and ${UNBEGUN} and k.id not in (select unbegun.id from unbegun)
      )
  ),
  moved as (
    update boxcar.tool_calls k
    set epoch = free.epoch + 1
    from free, unbegun
    where unbegun.turn_id = free.id and k.id = unbegun.id
  )
  update boxcar.turns t
  set epoch = t.epoch + 1, dispatched_at = now()
  from free
  where t.id = free.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

/**
 * Raises the epoch of dispatched turns, so that the new rings have unused job ids. A turn that is locked, or that has a locked call, is
 * left to the next sweep.
 */
export async function ringAgain(pool: pg.Pool, rings: readonly Ring[]): Promise<readonly Ring[]> {
  const wanted = rings.map((ring) => ({ turn_id: ring.turnId, epoch: ring.epoch }));
  return (await runRetrying<Parameters<typeof toRing>[0]>(pool, RING_AGAIN, [JSON.stringify(wanted)])).map(
    toRing,
  );
}
