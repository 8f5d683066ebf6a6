/** The data for `boxcar why-stuck`: a turn, and every turn for which it waits, directly or indirectly. One statement. */
import type { TurnId, WaitFacts } from '@boxcar/kernel';
import { WINDOW_FACTOR } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import { lostCause } from '../rows/index.js';
import { heldBackUntil, isHeldBack } from '../turn/index.js';
import { isWorker } from '../work/index.js';

const READ_LIMIT = 1_000;
const AHEAD_LIMIT = 1_000;
const HAND = "('dispatched', 'running', 'suspended')";
/** The number of members of a batch that are followed. */
const MEMBERS = 5;
const WAITING_LIMIT = 1_000;

/** A few members of batch `b` that have not ended. Members in different states are chosen first. */
const OPEN_MEMBERS = `
  select s.id
  from (
    select m.id, row_number() over (partition by m.status, m.worker_target, z.kind, z.provider order by m.id) as place
    from unnest(b.turn_ids) as u(id)
    cross join lateral (
      select x.id, x.status, x.worker_target
      from boxcar.turns x
      where x.id = u.id and x.ended_at is null
      offset 0
    ) m
    left join lateral (
      select x.kind, x.provider
      from boxcar.waits x
      where m.status = 'suspended' and x.turn_id = m.id
      offset 0
    ) z on true
  ) s
  order by s.place, s.id
  limit ${MEMBERS}`;

// Takes no locks: all facts are of one snapshot, so no wait is shown together with the turn that has just ended it.
// `walk` follows the waits of a turn; `calls` and `behind_turn_id` below list them. A new kind of wait must be added to both.
const FACTS = statement(`
  with recursive /* stuck.facts */
  walk as (
    select t.id
    from boxcar.turns t
    where t.id = $1
    union
    select n.id
    from walk w
    cross join lateral (
      (
        select c.id
        from boxcar.tool_calls k
        join boxcar.turns c on c.parent_tool_call_id = k.id and c.is_awaited
        where k.turn_id = w.id and k.status = 'pending'
        offset 0
      )
      union all
      (
        select m.id
        from boxcar.tool_calls k
        join boxcar.batches b on b.id = k.batch_id and b.status = 'running'
        cross join lateral (${OPEN_MEMBERS}) m
        where k.turn_id = w.id and k.status = 'pending'
        offset 0
      )
      union all
      (
        select b.id
        from boxcar.turns q
        cross join lateral (
          select x.id
          from boxcar.turns x
          where x.agent_id = q.agent_id and (x.status in ${HAND} or (x.status = 'queued' and x.id < q.id))
          order by x.status = 'queued', x.id
          limit 1
          offset 0
        ) b
        where q.id = w.id and q.status = 'queued'
        offset 0
      )
    ) n
  ),
  read as (select id from walk limit ${READ_LIMIT + 1}),
  found as materialized (select id, row_number() over () as n from read),
  pools as materialized (
    select
      g.worker_target,
      (
        select count(*)::int
        from boxcar.workers w
        where w.lease_until > now() and w.targets @> array[g.worker_target]
      ) as live,
      (
        select coalesce(sum(w.concurrency), 0)::int * ${WINDOW_FACTOR}
        from boxcar.workers w
        where w.lease_until > now() and w.targets @> array[g.worker_target]
      ) as size,
      (
        select max(w.schema_version)
        from boxcar.workers w
        where w.lease_until > now() and w.targets @> array[g.worker_target]
      ) as newest,
      (
        select count(*)::int
        from (
          select from boxcar.turns d
          where d.status = 'dispatched' and d.worker_target = g.worker_target
          limit 100000
        ) d
      ) as dispatched
    from (
      select distinct t.worker_target
      from found f
      cross join lateral (select x.worker_target from boxcar.turns x where x.id = f.id offset 0) t
    ) g
  ),
  limited as materialized (
    select
      j.id, j.name,
      (j.limits->>'max_concurrent')::int as max_concurrent,
      (
        select count(*)::int
        from boxcar.turns o
        where o.status in ('dispatched', 'running') and o.project_id = j.id
      ) as active
    from (
      select distinct t.project_id
      from found f
      cross join lateral (
        select x.project_id
        from boxcar.turns x
        where x.id = f.id and x.status = 'queued'
        offset 0
      ) t
    ) g
    join boxcar.projects j on j.id = g.project_id
    where j.limits ? 'max_concurrent'
  )
  select
    now() as at,
    (select count(*)::int from boxcar.workers w where w.lease_until > now() and ${isWorker('w')}) as live_workers,
    (select count(*) > ${READ_LIMIT} from found) as has_more,
    (
      select coalesce(json_agg(json_build_object(
        'turn_id', t.id, 'run_id', t.run_id, 'agent_id', t.agent_id,
        'agent', (select a.name from boxcar.agents a where a.id = t.agent_id),
        'profile', (select f.name || '@' || f.version from boxcar.profiles f where f.id = t.profile_id),
        'status', t.status, 'worker_target', t.worker_target, 'created_at', t.created_at,
        'dispatched_at', t.dispatched_at, 'deadline_at', t.deadline_at, 'ended_at', t.ended_at,
        'step_opened_at', (
          select s.opened_at
          from boxcar.steps s
          where s.turn_id = t.id and s.committed_at is null and t.status = 'running'
          order by s.step desc, s.attempt desc
          limit 1
        ),
        'holder', case
          when t.holder_id is not null then (
            select json_build_object(
              'worker_id', t.holder_id, 'hostname', w.info->>'hostname', 'pid', (w.info->>'pid')::int,
              'lease_until', w.lease_until,
              'is_alive', coalesce(w.lease_until > now(), false)
            )
            from (select 1) one
            left join boxcar.workers w on w.id = t.holder_id
          )
        end,
        'calls', (
          select coalesce(json_agg(json_build_object(
            'tool_call_id', k.id, 'name', k.name, 'route', k.route, 'target', k.target, 'created_at', k.created_at,
            'deadline_at', k.deadline_at,
            'awaited_turn_id', (
              select c.id
              from boxcar.turns c
              where c.parent_tool_call_id = k.id and c.is_awaited
              limit 1
            ),
            'batch', (
              select json_build_object(
                'batch_id', b.id, 'kind', b.kind, 'status', b.status, 'closing', b.closing,
                'total', cardinality(b.turn_ids), 'remaining', b.remaining, 'succeeded', b.succeeded,
                'min_success', b.min_success, 'is_due', b.is_due, 'created_at', b.created_at,
                'deadline_at', b.deadline_at,
                'open_turn_ids', array(select m.id from (${OPEN_MEMBERS}) m)
              )
              from boxcar.batches b
              where b.id = k.batch_id
            ),
            'approval', (
              select json_build_object('ticket_id', a.id, 'created_at', a.created_at, 'expires_at', a.expires_at)
              from boxcar.approvals a
              where a.tool_call_id = k.id and a.status = 'pending' and a.voided_at is null
              limit 1
            ),
            'given_up', (
              select f.last_error
              from boxcar.sweep_failures f
              where (
                  (f.kind in ('overdue_calls', 'wait_cycles') and f.row_id = k.id)
                  or (f.kind = 'due_batches' and f.row_id = k.batch_id)
                )
                and f.is_dead
            )
          ) order by k.step, k.ordinal), '[]')
          from boxcar.tool_calls k
          where k.turn_id = t.id and k.status = 'pending'
        ),
        'wait', (
          select json_build_object(
            'kind', z.kind, 'created_at', z.created_at, 'due_at', z.due_at, 'detail', z.detail,
            'provider', case
              when z.provider is not null then (
                select json_build_object(
                  'name', z.provider, 'open_until', p.open_until, 'failures', coalesce(p.failures, 0),
                  'max_concurrent', p.max_concurrent, 'requests_per_minute', p.requests_per_minute,
                  'waiting', (
                    select count(*)
                    from (select from boxcar.waits o where o.provider = z.provider limit ${WAITING_LIMIT}) o
                  )
                )
                from (select 1) one
                left join boxcar.providers p on p.name = z.provider
              )
            end,
            'selector', case
              when z.kind = 'selector' then (
                select json_build_object(
                  'name', t.selector, 'version', t.selector_version,
                  'workers', coalesce(json_agg(json_build_object(
                    'worker_id', w.id, 'hostname', w.info->>'hostname', 'pid', (w.info->>'pid')::int
                  ) order by w.id) filter (where w.id is not null), '[]')
                )
                from (select 1) one
                left join boxcar.workers w
                  on w.lease_until > now()
                  and w.targets @> array[t.worker_target]
                  and case
                    when t.selector_version is null then w.info->'selectors' ? t.selector
                    else w.info->'selectors'->t.selector ? t.selector_version
                  end
              )
            end
          )
          from boxcar.waits z
          where t.status = 'suspended' and z.turn_id = t.id
        ),
        'project', case
          when t.status = 'queued' then (
            select json_build_object('name', j.name, 'max_concurrent', j.max_concurrent, 'active', j.active)
            from limited j
            where j.id = t.project_id
          )
        end,
        'held', case
          when t.status = 'queued' and ${isHeldBack('t')}
            then json_build_object('turn_id', t.warm_turn_id, 'until', ${heldBackUntil('t')})
        end,
        'behind_turn_id', b.id,
        'ahead', case
          when t.status = 'queued' and b.id is null then (
            select count(*)
            from (
              select from boxcar.turns o
              where o.status = 'queued'
                and o.worker_target = t.worker_target
                and o.project_id = t.project_id
                and (o.priority > t.priority or (o.priority = t.priority and o.id < t.id))
              limit ${AHEAD_LIMIT}
            ) o
          )
        end,
        'live_workers', p.live, 'window', p.size, 'dispatched', p.dispatched, 'format', t.format,
        'newest_build', p.newest,
        'given_up', (
          select string_agg(f.kind || ': ' || f.last_error, '; ')
          from boxcar.sweep_failures f
          where f.kind in ('dead_leases', 'overdue_turns', 'due_waits', 'lost_rings', 'turn_runs', 'turn_ends')
            and f.row_id = t.id
            and f.is_dead
            and t.ended_at is null
        )
      ) order by f.id <> $1, f.n), '[]')
      from (select * from found limit ${READ_LIMIT}) f
      cross join lateral (select x.* from boxcar.turns x where x.id = f.id offset 0) t
      cross join lateral (select x.* from pools x where x.worker_target = t.worker_target offset 0) p
      left join lateral (
        select x.id
        from boxcar.turns x
        where t.status = 'queued'
          and x.agent_id = t.agent_id
          and (
            x.status in ${HAND}
            or (x.status = 'queued' and x.id < t.id and ${lostCause('x.id', ['turn_ends'])} is null)
          )
        order by x.status = 'queued', x.id
        limit 1
        offset 0
      ) b on true
    ) as turns`);

const TIME = /(?:^|_)(?:at|until)$/;

/** Postgres writes the times of its JSON in the time zone of the session; all other code here compares and shows ISO 8601 in UTC. */
function inUtc(value: unknown, key = ''): unknown {
  if (typeof value === 'string') return TIME.test(key) ? new Date(value).toISOString() : value;
  if (Array.isArray(value)) return value.map((item) => inUtc(item));
  // The details of a wait are passed on unread.
  if (typeof value !== 'object' || value === null || key === 'detail') return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, inUtc(member, name)]));
}

/** The waits of a turn, and the waits of those turns, to the end of every chain. */
export async function loadWaitFacts(db: Queryable, turnId: TurnId): Promise<WaitFacts> {
  const [row] = await run<Omit<WaitFacts, 'at'> & { at: Date }>(db, FACTS, [turnId]);
  if (row === undefined) throw new Error('the server gave no answer');
  return { ...row, turns: inUtc(row.turns) as WaitFacts['turns'], at: row.at.toISOString() };
}
