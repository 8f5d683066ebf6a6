/** The agents of sessions by name. They are made on first use, with new tapes or with the existing tapes of their names. */
import type { AgentId, BoxId, ProfileId, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, type Tx } from '../db/index.js';
import { createTapes } from './tapes.js';

const FIND = statement(`
  select /* session-agents.find */ b.id, b.tape_name
  from boxcar.boxes b
  where b.project_id = $1
    and b.kind = 'tape'
    and b.tape_name = any ($2::text[])
    and b.archived_at is null`);

// A tape that was made or imported by name belongs to the agent that did so, and the maker of the new agent may read all of it afterwards.
// So a tape is not given away when another agent, including the operator, owns it, or when an agent already writes to it. The names are
// locked by the caller; the tapes are locked here, by id, before their owners are compared.
const ADOPT = statement(`
  with /* session-agents.adopt */
  x as materialized (
    select x.*
    from json_to_recordset($3::json) as x(box_id uuid, agent_id uuid, name text, profile_id uuid, is_fresh boolean)
  ),
  tape as materialized (
    select
      b.id,
      b.archived_at is null
      and b.fork_status is null
      and coalesce(b.owner_agent_id = $2, p.operator_agent_id = $2)
      and not exists (select from boxcar.agents a where a.id = b.owner_agent_id and a.tape_box_id = b.id) as is_free
    from boxcar.boxes b
    join boxcar.projects p on p.id = b.project_id
    where b.id = any (array(select x.box_id from x))
    order by b.id
    for no key update of b
  ),
  moved as (
    update boxcar.boxes b
    set owner_agent_id = x.agent_id,
      maker_agent_id = case when x.is_fresh then x.agent_id else b.maker_agent_id end
    from tape
    join x on x.box_id = tape.id
    where b.id = tape.id and tape.is_free
    returning b.id, x.agent_id, x.name, x.profile_id
  )
  insert into boxcar.agents (id, project_id, name, profile_id, owner_agent_id, tape_box_id)
  select moved.agent_id, $1, moved.name, moved.profile_id, $2, moved.id
  from moved
  returning id`);

export interface SessionAgent {
  readonly agentId: AgentId;
  readonly name: string;
  readonly profileId: ProfileId;
  /** The id of its tape, if its name does not have a tape yet. */
  readonly boxId: BoxId;
}

/**
 * Makes agents that write to the tapes of their names from then on, under the locks of these names (`takeAgentNames`), in three
 * statements. Missing tapes are made.
 *
 * @returns By name, the tape that was not given because another agent has it.
 */
export async function makeSessionAgents(
  tx: Tx,
  { projectId, makerId }: { readonly projectId: ProjectId; readonly makerId: AgentId },
  agents: readonly SessionAgent[],
): Promise<ReadonlyMap<string, BoxId | null>> {
  // An agent cannot own a tape before the agent exists, so the maker owns the new tapes first.
  await createTapes(tx, { projectId, actorId: makerId }, agents);
  const found = await run<pg.QueryResultRow & { id: BoxId; tape_name: string }>(tx, FIND, [
    projectId,
    agents.map(({ name }) => name),
  ]);
  const tapes = new Map(found.map((row) => [row.tape_name, row.id]));
  const records = agents.map(({ agentId, name, profileId, boxId }) => ({
    box_id: tapes.get(name) ?? null,
    agent_id: agentId,
    name,
    profile_id: profileId,
    is_fresh: tapes.get(name) === boxId,
  }));
  const made = await run<pg.QueryResultRow & { id: AgentId }>(tx, ADOPT, [
    projectId,
    makerId,
    JSON.stringify(records),
  ]);
  const given = new Set(made.map(({ id }) => id));
  return new Map(
    agents.flatMap(({ agentId, name }) =>
      given.has(agentId) ? [] : [[name, tapes.get(name) ?? null] as const],
    ),
  );
}
