/** The books of one provider, read and written under the lock of its row. Rules: providers.ts, B1 to B4. */
import {
  type Asking,
  DEFAULT_BREAKER_AFTER,
  PROBE_MS,
  type ProviderState,
  type TurnId,
  type WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, type Tx } from '../db/index.js';
import { notSetAside } from '../rows/index.js';

/** $1: the clock of tests. */
export const CLOCK = 'coalesce($1::timestamptz, clock_timestamp())';
/** True when a place `s` with its turn `t` is a call under way. */
export const IS_CALLING = `
  (
    t.status = 'running'
    and not s.is_kept
    and s.queued_at is null
    and s.epoch = t.epoch
    and t.holder_id in (select w.id from boxcar.workers w where w.lease_until > ${CLOCK})
  )`;
/** The turn was woken and has not called yet, so its position in line is known. Older builds write `is_kept` in place of `queued_at`. */
const IS_COMING = "((s.is_kept or s.queued_at is not null) and t.status in ('dispatched', 'running'))";
export const IS_KEPT = `(${IS_COMING} and s.taken_at > ${CLOCK} - interval '10 seconds')`;

const ms = (column: string): string => `(extract(epoch from ${column}) * 1000)::float8`;

// The time is taken after the wait for the lock: calls are paced from that time on.
const LOCK = statement(`
  with /* provider-books.lock */
  p as materialized (select * from boxcar.providers where name = $2 for update)
  select
    ${ms(CLOCK)} as now, max_concurrent, requests_per_minute,
    coalesce(breaker_after, ${DEFAULT_BREAKER_AFTER}) as breaker_after,
    ${ms('paced_until')} as paced_until, ${ms('open_until')} as open_until, ${ms('failing_since')} as failing_since,
    failures, openings
  from p`);

export interface LockedProvider extends pg.QueryResultRow {
  now: number;
  max_concurrent: number | null;
  requests_per_minute: number | null;
  breaker_after: number;
  paced_until: number | null;
  open_until: number | null;
  failing_since: number | null;
  failures: number;
  openings: number;
}

export const lock = async (
  tx: Tx,
  name: string,
  now: Date | undefined,
): Promise<LockedProvider | undefined> => (await run<LockedProvider>(tx, LOCK, [now ?? null, name]))[0];

// The first process that counts removes the places that no longer count, under the lock. So a turn that returns cannot revive such a
// place. The position of a turn that has not yet arrived remains.
const COUNT = statement(`
  with /* provider-books.count */
  s as materialized (
    select
      s.turn_id,
      s.is_probe and s.taken_at > ${CLOCK} - ${PROBE_MS} * interval '1 millisecond' as is_probe,
      coalesce(s.queued_at, s.taken_at) as queued_at, coalesce(${IS_CALLING}, false) as is_calling,
      coalesce(${IS_KEPT}, false) as is_kept,
      coalesce(${IS_COMING} and s.queued_at is not null, false) as is_coming
    from boxcar.provider_slots s
    left join boxcar.turns t on t.id = s.turn_id
    where s.provider = $2
  ),
  held as materialized (
    select x.turn_id
    from json_to_recordset($3) as x(turn_id uuid, epoch int, holder_id uuid)
    cross join lateral (select t.status, t.epoch, t.holder_id from boxcar.turns t where t.id = x.turn_id offset 0) t
    where t.status = 'running' and t.epoch = x.epoch and t.holder_id = x.holder_id
  ),
  absent as materialized (
    select s.turn_id, s.queued_at
    from s
    where s.is_kept and s.turn_id not in (select turn_id from held)
  ),
  line as materialized (
    select
      h.turn_id, coalesce(s.is_kept, false) as is_kept, coalesce(s.is_calling, false) as is_calling,
      case when s.is_kept or s.is_coming then s.queued_at end as queued_at
    from held h
    left join s on s.turn_id = h.turn_id
  ),
  gone as (
    delete from boxcar.provider_slots x
    using s
    where x.turn_id = s.turn_id and not (s.is_calling or s.is_kept or s.is_coming)
  )
  select
    (select count(*)::int from s where is_calling) as in_use,
    (select count(*)::int from absent) as kept,
    exists (select from s where is_calling and is_probe) as is_probing,
    (
      select coalesce(json_agg(json_build_object(
        'turnId', l.turn_id, 'isCalling', l.is_calling, 'hasPlace', l.is_kept, 'isNew', l.queued_at is null,
        'keptBefore', (
          select count(*)
          from absent a
          where l.queued_at is null or (a.queued_at, a.turn_id) < (l.queued_at, l.turn_id)
        ),
        'isBehind', l.queued_at is not null
          and exists (
            select from boxcar.waits w
            where w.provider = $2
              and (w.created_at, w.turn_id) < (l.queued_at, l.turn_id)
              and ${notSetAside('due_waits', 'w.turn_id', CLOCK)}
          )
      ) order by l.queued_at, l.turn_id), '[]')
      from line l
    ) as line,
    (
      select true
      from boxcar.waits w
      where w.provider = $2 and ${notSetAside('due_waits', 'w.turn_id', CLOCK)}
      limit 1
    ) is not null as has_waiting`);

/** A caller that holds its turn (B4). */
export interface LineMember extends Asking {
  readonly turnId: TurnId;
  /** True when the turn has a place of an earlier call. */
  readonly isCalling: boolean;
  /** True when the turn has not waited before. */
  readonly isNew: boolean;
}

export interface Books {
  readonly state: ProviderState;
  /** The callers in the order in which they arrived. Callers that have not waited are last, in no order. */
  readonly line: readonly LineMember[];
  readonly hasWaiting: boolean;
}

interface CountRow extends pg.QueryResultRow {
  in_use: number;
  kept: number;
  is_probing: boolean;
  line: LineMember[];
  has_waiting: boolean;
}

/** A separate statement, which begins after the row was locked. `state.kept` counts the places of turns that are not among the callers. */
export async function count(
  tx: Tx,
  name: string,
  of: { row: LockedProvider; now: Date | undefined; callers: readonly Caller[] },
): Promise<Books> {
  const { row, now, callers } = of;
  const [found] = await run<CountRow>(tx, COUNT, [now ?? null, name, JSON.stringify(callers.map(toRecord))]);
  const hasWaiting = found?.has_waiting ?? false;
  return {
    state: {
      now: row.now,
      maxConcurrent: row.max_concurrent,
      requestsPerMinute: row.requests_per_minute,
      breakerAfter: row.breaker_after,
      pacedUntil: row.paced_until,
      openUntil: row.open_until,
      failingSince: row.failing_since,
      failures: row.failures,
      openings: row.openings,
      inUse: found?.in_use ?? 0,
      kept: found?.kept ?? 0,
      isProbing: found?.is_probing ?? false,
    },
    line: (found?.line ?? []).map((member) => (member.isNew ? { ...member, isBehind: hasWaiting } : member)),
    hasWaiting,
  };
}

export const at = (n: string): string => `to_timestamp(${n}::float8 / 1000)`;
// A place is no longer kept after it was passed on to an earlier turn. $5 places are passed on, the last in line first. The provider's row
// is locked (`LOCK`), so no other process changes these places meanwhile.
const BOOK = statement(`
  with /* provider-books.book */
  passed as (
    update boxcar.provider_slots s
    set taken_at = '-infinity'
    from (
      select k.turn_id
      from boxcar.provider_slots k
      where k.provider = $2
        and k.queued_at is not null
        and k.taken_at > '-infinity'
        and k.turn_id not in (select x.turn_id from json_to_recordset($4) as x(turn_id uuid))
      order by k.queued_at desc, k.turn_id desc
      limit $5
    ) k
    where s.turn_id = k.turn_id
  ),
  placed as (
    insert into boxcar.provider_slots (turn_id, provider, epoch, is_kept, queued_at, is_probe, taken_at)
    select x.turn_id, $2, x.epoch, false, x.queued_at, x.is_probe, ${CLOCK}
    from json_to_recordset($4) as x(turn_id uuid, epoch int, queued_at timestamptz, is_probe boolean)
    on conflict (turn_id) do update
      set provider = excluded.provider,
        epoch = excluded.epoch,
        is_kept = false,
        queued_at = excluded.queued_at,
        is_probe = excluded.is_probe,
        taken_at = excluded.taken_at
  )
  update boxcar.providers
  set paced_until = ${at('$3')}
  where name = $2`);

interface Place {
  readonly turn_id: TurnId;
  readonly epoch: number;
  /** Null for a call. */
  readonly queued_at: string | null;
  readonly is_probe: boolean;
}

export async function book(
  tx: Tx,
  name: string,
  of: { now: Date | undefined; pacedUntil: number | null; places: readonly Place[]; passedOn?: number },
): Promise<void> {
  const { now = null, pacedUntil, places, passedOn = 0 } = of;
  await run(tx, BOOK, [now, name, pacedUntil, JSON.stringify(places), passedOn]);
}

/** A turn with an open step that is about to call its model. */
export interface Caller {
  readonly turnId: TurnId;
  readonly epoch: number;
  readonly holderId: WorkerId;
  readonly step: number;
  readonly attempt: number;
}

export const toRecord = ({ turnId, epoch, holderId, step, attempt }: Caller) => ({
  turn_id: turnId,
  epoch,
  holder_id: holderId,
  step,
  attempt,
});
