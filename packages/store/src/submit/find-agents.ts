/** Agents by id or name, with their profiles. */

import { type AgentId, agentNamesOf, type BoxId, type ProjectId, type RunId } from '@boxcar/kernel';
import type { LoadBoxesOptions } from '../box/index.js';
import { type Queryable, run, statement } from '../db/index.js';
import type { Row } from '../schema/index.js';
import { PROFILE_COLUMNS, type ProfileDbRow, type ProfileRow, toProfileRow } from './profile-versions.js';

const FIND_ACTOR = statement(`
  select /* find-agents.find_actor */ p.id as project_id, p.operator_agent_id, a.id as agent_id, a.name as agent_name,
    p.archived_at is not null as is_archived
  from boxcar.projects p
  left join boxcar.agents a on a.project_id = p.id and (a.id = $3 or a.name = any ($4::text[]))
  where p.id = $1 or p.name = $2
  order by (p.id = $1) desc, (a.id = $3) desc, array_position($4::text[], a.name)
  limit 1`);

/**
 * A project and one of its agents, each by id or name. Undefined when the project does not exist; `agentId` is null when the agent does
 * not exist.
 */
export async function findActor(
  db: Queryable,
  ref: {
    readonly project: string;
    readonly projectId: ProjectId | undefined;
    readonly agent: string;
    readonly agentId: AgentId | undefined;
  },
): Promise<
  | {
      readonly projectId: ProjectId;
      readonly operatorId: AgentId;
      readonly agentId: AgentId | null;
      readonly agentName: string | null;
      readonly isArchived: boolean;
    }
  | undefined
> {
  const [row] = await run<{
    project_id: ProjectId;
    operator_agent_id: AgentId;
    agent_id: AgentId | null;
    agent_name: string | null;
    is_archived: boolean;
  }>(db, FIND_ACTOR, [ref.projectId ?? null, ref.project, ref.agentId ?? null, agentNamesOf(ref.agent)]);
  return (
    row && {
      projectId: row.project_id,
      operatorId: row.operator_agent_id,
      agentId: row.agent_id,
      agentName: row.agent_name,
      isArchived: row.is_archived,
    }
  );
}

export interface AgentRow {
  readonly agentId: AgentId;
  readonly name: string;
  readonly tapeBoxId: BoxId;
  /** The profile version with which the agent was made. An agent keeps its version. */
  readonly profile: ProfileRow;
  /** The agent that made this agent. */
  readonly ownerAgentId: AgentId | null;
  /** True when the operator made the agent. */
  readonly isOperatorMade: boolean;
  /** True when any agent whose policy reaches the agent's profile may give it turns. */
  readonly isShared: boolean;
  /** True when the actor may append to the agent's tape without a time limit. */
  readonly mayAppend: boolean;
}

type AgentDbRow = ProfileDbRow &
  Row<'agents', 'owner_agent_id' | 'is_shared', { agent_id: 'id'; agent_name: 'name' }> & {
    readonly tape_box_id: BoxId;
    readonly is_operator_made: boolean;
    readonly may_append: boolean;
  };

const agentColumns = (actor: string): string => `
  a.id as agent_id, a.name as agent_name, a.tape_box_id, a.owner_agent_id, a.is_shared,
  coalesce(
    a.owner_agent_id = (select o.operator_agent_id from boxcar.projects o where o.id = a.project_id),
    true
  ) as is_operator_made,
  exists (
    select from boxcar.grants g
    where g.agent_id = ${actor}
      and g.box_id = a.tape_box_id
      and g.mode = 'append'
      and g.expires_at is null
  ) as may_append,
  ${PROFILE_COLUMNS}`;

const toAgentRow = (row: AgentDbRow): AgentRow => ({
  agentId: row.agent_id,
  name: row.agent_name,
  tapeBoxId: row.tape_box_id,
  profile: toProfileRow(row),
  ownerAgentId: row.owner_agent_id,
  isOperatorMade: row.is_operator_made,
  isShared: row.is_shared === true,
  mayAppend: row.may_append,
});

const FIND_AGENT = statement(`
  select /* find-agents.find_agent */ ${agentColumns('$4')}
  from boxcar.agents a
  join boxcar.profiles f on f.id = a.profile_id
  where a.project_id = $1 and (a.id = $2 or a.name = any ($3::text[]))
  order by (a.id = $2) desc, array_position($3::text[], a.name)
  limit 1`);

/** An agent by id or name, with its profile. The operator is never found, because it has no profile. */
export async function findAgent(
  db: Queryable,
  { projectId, actorId }: LoadBoxesOptions,
  ref: { readonly id: AgentId | undefined; readonly name: string },
): Promise<AgentRow | undefined> {
  const [row] = await run<AgentDbRow>(db, FIND_AGENT, [
    projectId,
    ref.id ?? null,
    agentNamesOf(ref.name),
    actorId,
  ]);
  return row && toAgentRow(row);
}

// `no key update`, so that other transactions can write rows that refer to the agents (grants, turns of other agents) in the meantime.
const LOCK_AGENTS = statement(`
  with /* find-agents.lock_agents */
  r as (select id from boxcar.runs where id = $2 for no key update)
  select a.id, a.tape_box_id
  from boxcar.agents a
  where a.id = any ($1::uuid[]) and ($2::uuid is null or (select count(*) from r) > 0)
  order by a.id
  for no key update of a`);

/**
 * Serializes the decisions whether turns of agents are queued or dispatched. The agents are locked by id. When turns are added below
 * another turn, the lock of their run is taken first.
 *
 * @returns The tapes of the agents that exist and have a tape.
 */
export async function lockAgents(
  tx: Queryable,
  agentIds: readonly AgentId[],
  runId: RunId | null = null,
): Promise<ReadonlyMap<AgentId, BoxId>> {
  const rows = await run<{ id: AgentId; tape_box_id: BoxId | null }>(tx, LOCK_AGENTS, [agentIds, runId]);
  return new Map(rows.flatMap((row) => (row.tape_box_id === null ? [] : [[row.id, row.tape_box_id]])));
}

const FIND_AGENTS = statement(`
  select /* find-agents.find_agents */ ${agentColumns('$4')}
  from boxcar.agents a
  join boxcar.profiles f on f.id = a.profile_id
  where a.project_id = $1 and (a.id = any ($2::uuid[]) or a.name = any ($3::text[]))`);

/** Agents by ids and names, in no order. Missing agents are left out. */
export async function findAgents(
  db: Queryable,
  { projectId, actorId }: LoadBoxesOptions,
  refs: { readonly ids: readonly AgentId[]; readonly names: readonly string[] },
): Promise<readonly AgentRow[]> {
  return (
    await run<AgentDbRow>(db, FIND_AGENTS, [projectId, refs.ids, refs.names.flatMap(agentNamesOf), actorId])
  ).map(toAgentRow);
}
