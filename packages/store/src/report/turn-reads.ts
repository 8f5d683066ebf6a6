/**
 * Turns and runs for readers with limited rights: an agent sees its own turns and the turns that it has requested; the operator sees all.
 */
import type { AgentId, BoxId, ProjectId, RunId, TurnId, TurnStatus } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';
import { readsAll } from '../rows/index.js';

interface Reader {
  readonly projectId: ProjectId;
  readonly actorId: AgentId;
}

/** A turn, and the box of its context. */
export interface ReadableContext extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly agent: string;
  readonly status: TurnStatus;
  readonly context_box_id: BoxId;
}

const CONTEXT = statement(`
  select /* turn-reads.context */ t.id as turn_id, t.run_id, a.name as agent, t.status, t.context_box_id
  from boxcar.turns t
  join boxcar.agents a on a.id = t.agent_id
  join boxcar.boxes b on b.id = t.context_box_id
  join boxcar.projects p on p.id = t.project_id
  where t.id = $1 and t.project_id = $2 and (t.agent_id = $3 or ${readsAll('$3')})`);

/** Undefined when the turn does not exist, or the reader may not read its context. One statement. */
export async function findReadableContext(
  pool: pg.Pool,
  turnId: TurnId,
  { projectId, actorId }: Reader,
): Promise<ReadableContext | undefined> {
  const [row] = await runRetrying<ReadableContext>(pool, CONTEXT, [turnId, projectId, actorId]);
  return row;
}

// The external requester of a turn is stored as the maker of its context, which is made with the turn. An earlier box that a turn was
// given is not a sign of the requester.
const SEEN = statement(`
  select /* turn-reads.seen */ 1 as seen
  from boxcar.turns t
  join boxcar.boxes b on b.id = t.context_box_id
  join boxcar.projects p on p.id = t.project_id
  where t.id = $1
    and t.project_id = $2
    and (
      p.operator_agent_id = $3
      or t.agent_id = $3
      or t.told_agent_id = $3
      or (select q.agent_id from boxcar.turns q where q.id = t.parent_turn_id) = $3
      or (t.parent_turn_id is null and b.maker_agent_id = $3 and b.created_at = t.created_at)
    )`);

/** Whether the reader may know the end of a turn: the turn is its own, or it has requested the turn. One statement. */
export async function seesTurn(
  pool: pg.Pool,
  turnId: TurnId,
  { projectId, actorId }: Reader,
): Promise<boolean> {
  const rows = await runRetrying<{ readonly seen: number }>(pool, SEEN, [turnId, projectId, actorId]);
  return rows.length > 0;
}

export interface RunTurn extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly parent_turn_id: TurnId | null;
  readonly status: TurnStatus;
  readonly agent: string;
  readonly profile: string;
  readonly primitive: string;
  readonly steps: number;
  readonly error_code: string | null;
  readonly created_at: Date;
  readonly ended_at: Date | null;
}

export interface RunPage {
  /** In the order in which they were made. */
  readonly turns: readonly RunTurn[];
  /** The id after which the next page begins; null at the end. */
  readonly next: TurnId | null;
}

const TURNS = statement(`
  select /* turn-reads.run */ t.id as turn_id, t.parent_turn_id, t.status, a.name as agent, f.name as profile,
    t.primitive, t.step_count as steps, t.error->>'code' as error_code, t.created_at, t.ended_at
  from boxcar.turns t
  join boxcar.agents a on a.id = t.agent_id
  join boxcar.profiles f on f.id = t.profile_id
  join boxcar.projects p on p.id = t.project_id
  where t.run_id = $1
    and t.project_id = $2
    and ($4::uuid is null or t.id > $4)
    and (
      p.operator_agent_id = $3
      or t.agent_id = $3
      or (select q.agent_id from boxcar.turns q where q.id = t.parent_turn_id) = $3
    )
  order by t.id
  limit $5`);

/** A page of the turns of a run that the reader may see; empty when it may not see any. One statement. */
export async function readRunTurns(
  pool: pg.Pool,
  runId: RunId,
  {
    projectId,
    actorId,
    after,
    limit,
  }: Reader & { readonly after?: TurnId | undefined; readonly limit: number },
): Promise<RunPage> {
  const rows = await runRetrying<RunTurn>(pool, TURNS, [runId, projectId, actorId, after ?? null, limit + 1]);
  const turns = rows.slice(0, limit);
  return { turns, next: rows.length > limit ? (turns.at(-1)?.turn_id ?? null) : null };
}
