/** Reads waits that may form cycles. `findWaitCycles` of the kernel decides. */
import type { BatchId, ProjectId, ToolCallId, TurnId, WaitingTurn } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';
import { notSetAside } from '../rows/index.js';
import type { SweepClock } from '../turn/index.js';

/** Younger waits are left alone: a cycle still exists after this time, and nearly all other waits are over by then. */
const OLD = "interval '5 seconds'";
/** Turns read in one pass. */
const READ_LIMIT = 5_000;

const HAND = "('dispatched', 'running', 'suspended')";

/** True for an awaited turn that has been queued for long. The oldest is first, so the first index entry decides. */
const longWait = (now: string): string =>
  `q.status = 'queued' and (q.is_awaited or q.batch_ids is not null) and q.created_at <= ${now} - ${OLD}`;
/** True for a batch through which a turn has waited for other turns for long. */
const longCollect = (now: string): string =>
  `b.status = 'running' and b.kind = 'collect' and b.tool_call_id is not null and b.created_at <= ${now} - ${OLD}`;

/** True when there are long waits to look at. */
export const hasLongWaits = (now: string): string => `
  (
    exists (select from boxcar.turns q where ${longWait(now)})
    or exists (select from boxcar.batches b where ${longCollect(now)})
  )`;

// Only members that wait themselves. A batch that can succeed without its waiting members has none: enough other members may still
// reach `min_success`. A turn that only waits for its window always gets to run.
const BLOCKED_MEMBERS = `
  select c.id
  from boxcar.batches b
  cross join lateral unnest(b.turn_ids) as u(id)
  cross join lateral (
    select x.id, x.agent_id, x.status
    from boxcar.turns x
    where x.id = u.id and x.ended_at is null
    offset 0
  ) c
  where b.id = k.batch_id
    and b.status = 'running'
    and b.closing is null
    and (b.min_success is null or b.remaining <= b.min_success - b.succeeded)
    and case c.status
      when 'suspended' then exists (
        select from boxcar.tool_calls o
        where o.turn_id = c.id and o.status = 'pending' and o.route = 'primitive'
      )
      when 'queued' then exists (select from boxcar.turns h where h.agent_id = c.agent_id and h.status in ${HAND})
      else false
    end`;

/** The turns that the open calls of turn `turn` wait for, with these calls. */
const awaited = (turn: string): string => `
  select k.id as call_id, k.name, k.created_at as since, null::uuid as batch_id, c.id as turn_id
  from boxcar.tool_calls k
  join boxcar.turns c on c.parent_tool_call_id = k.id and c.is_awaited
  where k.turn_id = ${turn} and k.status = 'pending' and c.ended_at is null
  union all
  select k.id, k.name, k.created_at, k.batch_id, m.id
  from boxcar.tool_calls k
  cross join lateral (${BLOCKED_MEMBERS} offset 0) m
  where k.turn_id = ${turn} and k.status = 'pending' and k.batch_id is not null`;

// A cycle leaves the tree of its run through the queue of an agent, or through a turn that is collected. So the search starts at these
// two places. The ids of both kinds of starts rise with time, and the search goes through them together. No row is locked: a wait may end
// after this read. The answer that gives up a wait locks its call, and does nothing when the call has been answered.
const READ = statement(`
  with recursive /* wait-cycles.read */
  starts as (
    select s.id, s.waiter_id
    from (
      (
        select q.id, h.id as waiter_id
        from boxcar.turns q
        left join lateral (
          select x.id
          from boxcar.turns x
          where x.agent_id = q.agent_id and x.status = 'suspended'
          offset 0
        ) h on true
        where ${longWait('coalesce($1::timestamptz, now())')} and q.id > $2
        order by q.id
        limit $3
      )
      union all
      (
        select b.id, b.turn_id
        from boxcar.batches b
        where ${longCollect('coalesce($1::timestamptz, now())')} and b.id > $2
        order by b.id
        limit $3
      )
    ) s
    order by s.id
    limit $3
  ),
  walk as (
    select s.waiter_id as id
    from starts s
    where s.waiter_id is not null
    union
    select n.id
    from walk w
    cross join lateral (
      (
        select a.turn_id as id
        from (${awaited('w.id')}) a
        offset 0
      )
      union all
      (
        select h.id
        from boxcar.turns q
        join boxcar.turns h on h.agent_id = q.agent_id and h.status in ${HAND}
        where q.id = w.id and q.status = 'queued'
        offset 0
      )
    ) n
  ),
  found as materialized (select id from walk limit ${READ_LIMIT})
  select
    (select coalesce(max(id::text), '') from starts) as last_id,
    (select count(*)::int from starts) as n,
    (
      select coalesce(json_agg(json_build_object(
        'turn_id', t.id, 'agent_id', t.agent_id, 'agent', t.agent, 'project_id', t.project_id, 'awaits', t.awaits,
        'behind', t.behind
      )), '[]')
      from (
        select
          t.id, t.agent_id, t.project_id,
          (select a.name from boxcar.agents a where a.id = t.agent_id) as agent,
          (
            select coalesce(json_agg(json_build_object(
              'call_id', a.call_id, 'name', a.name, 'since', a.since, 'batch_id', a.batch_id, 'turn_id', a.turn_id
            )), '[]')
            from (${awaited('t.id')}) a
            where ${notSetAside('wait_cycles', 'a.call_id')}
          ) as awaits,
          (
            select h.id
            from boxcar.turns h
            where t.status = 'queued' and h.agent_id = t.agent_id and h.status in ${HAND}
          ) as behind
        from found f
        cross join lateral (select x.* from boxcar.turns x where x.id = f.id offset 0) t
      ) t
    ) as turns`);

interface ReadRow extends pg.QueryResultRow {
  readonly last_id: string;
  readonly n: number;
  readonly turns: readonly {
    readonly turn_id: TurnId;
    readonly agent_id: WaitingTurn['agentId'];
    readonly agent: string;
    readonly project_id: ProjectId;
    readonly awaits: readonly {
      readonly call_id: ToolCallId;
      readonly name: string;
      readonly since: string;
      readonly batch_id: BatchId | null;
      readonly turn_id: TurnId;
    }[];
    readonly behind: TurnId | null;
  }[];
}

const FROM_THE_START = '00000000-0000-0000-0000-000000000000';

/**
 * Loads turns that have waited long and the turns that they wait for, to the end of each chain.
 *
 * @param options.after - The end of the last look, so that many waits are searched in parts.
 * @param options.limit - The number of queued turns and batches to start from.
 * @returns The turns, and the place where the next look continues; undefined when it begins again at the start.
 */
export async function loadLongWaits(
  pool: pg.Pool,
  options: SweepClock & { readonly after?: string | undefined; readonly limit: number },
): Promise<{
  readonly turns: readonly (WaitingTurn & { readonly projectId: ProjectId })[];
  readonly next: string | undefined;
}> {
  const [row] = await runRetrying<ReadRow>(pool, READ, [
    options.now ?? null,
    options.after ?? FROM_THE_START,
    options.limit,
  ]);
  if (row === undefined) return { turns: [], next: undefined };
  return {
    turns: row.turns.map((turn) => ({
      turnId: turn.turn_id,
      projectId: turn.project_id,
      agentId: turn.agent_id,
      agentName: turn.agent,
      awaits: turn.awaits.map((wait) => ({
        toolCallId: wait.call_id,
        name: wait.name,
        since: new Date(wait.since),
        batchId: wait.batch_id,
        turnId: wait.turn_id,
      })),
      behindTurnId: turn.behind,
    })),
    next: row.n < options.limit || row.last_id === '' ? undefined : row.last_id,
  };
}
