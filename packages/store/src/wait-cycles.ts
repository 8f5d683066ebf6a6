/** Waits that may be circles: what the sweep reads, for `findWaitCycles` of the kernel to judge. */
import type { ProjectId, ToolCallId, TurnId, WaitingTurn } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from './db.js';
import { notSetAside } from './dead-letters.js';
import type { SweepClock } from './sweep.js';

/** Younger waits are left alone: what is a circle now is one then, and nearly all waits are over by then. */
const OLD = "interval '5 seconds'";
/** Turns read in one pass. */
const READ_LIMIT = 5_000;

/** An awaited turn has stood in a queue for long. Oldest first, so the first look at the index decides. */
export const longWait = (now: string): string =>
  `q.status = 'queued' and q.is_awaited and q.created_at <= ${now} - ${OLD}`;

// Where a circle passes from one run to another it passes through the queue of an agent: there it is looked for. What a turn
// waits for stands in two places: the statement that follows the waits, and the one that lists them.
const READ = statement(`
  with recursive queued as (
    select q.id, q.agent_id from boxcar.turns q where ${longWait('coalesce($1::timestamptz, now())')} and q.id > $2 order by q.id limit $3
  ),
  walk as (
    select distinct h.id from queued cross join lateral (
      select x.id from boxcar.turns x where x.agent_id = queued.agent_id and x.status = 'suspended' offset 0) h
    union
    select n.id from walk w cross join lateral (
      (select c.id from boxcar.tool_calls k join boxcar.turns c on c.parent_tool_call_id = k.id and c.is_awaited
       where k.turn_id = w.id and k.status = 'pending' and c.ended_at is null offset 0)
      union all
      (select h.id from boxcar.turns q join boxcar.turns h on h.agent_id = q.agent_id and h.status in ('dispatched', 'running', 'suspended')
       where q.id = w.id and q.status = 'queued' offset 0)) n
  ),
  found as materialized (select id from walk limit ${READ_LIMIT})
  select (select coalesce(max(id::text), '') from queued) as last_id, (select count(*)::int from queued) as n,
    (select coalesce(json_agg(json_build_object('turn_id', t.id, 'agent_id', t.agent_id, 'agent', t.agent, 'project_id', t.project_id, 'awaits', t.awaits, 'behind', t.behind)), '[]') from (
      select t.id, t.agent_id, t.project_id, (select a.name from boxcar.agents a where a.id = t.agent_id) as agent,
        (select coalesce(json_agg(json_build_object('call_id', k.id, 'name', k.name, 'since', k.created_at, 'turn_id', c.id)), '[]')
         from boxcar.tool_calls k join boxcar.turns c on c.parent_tool_call_id = k.id and c.is_awaited
         where k.turn_id = t.id and k.status = 'pending' and c.ended_at is null and ${notSetAside('wait_cycles', 'k.id')}) as awaits,
        (select h.id from boxcar.turns h where t.status = 'queued' and h.agent_id = t.agent_id and h.status in ('dispatched', 'running', 'suspended')) as behind
      from found f cross join lateral (select x.* from boxcar.turns x where x.id = f.id offset 0) t) t) as turns`);

interface ReadRow extends pg.QueryResultRow {
  readonly last_id: TurnId | '';
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
      readonly turn_id: TurnId;
    }[];
    readonly behind: TurnId | null;
  }[];
}

const FROM_THE_START = '00000000-0000-0000-0000-000000000000';

/**
 * Turns that have waited long, and what they wait for, to the end of each chain.
 *
 * @param options.after - Where the last look ended, so that many waits are gone through a part at a time.
 * @param options.limit - Queued turns to start from.
 * @returns The turns, and where to go on; undefined: from the start.
 */
export async function loadLongWaits(
  pool: pg.Pool,
  options: SweepClock & { readonly after?: TurnId | undefined; readonly limit: number },
): Promise<{
  readonly turns: readonly (WaitingTurn & { readonly projectId: ProjectId })[];
  readonly next: TurnId | undefined;
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
        turnId: wait.turn_id,
      })),
      behindTurnId: turn.behind,
    })),
    next: row.n < options.limit || row.last_id === '' ? undefined : row.last_id,
  };
}
