/** Agents that are made and kept by name, apart from any turn. */
import type { AgentId, ProfileId, ProjectId } from '@boxcar/kernel';
import { type Queryable, run, statement } from './db.js';

const LOCK_AGENT_NAME = statement('select pg_advisory_xact_lock(hashtextextended($1, 8))');
const HAS_AGENT_NAME = statement('select id from boxcar.agents where project_id = $1 and name = $2');

/**
 * Takes a name for an agent that this transaction will write; whoever wants the same name waits for its end.
 *
 * @returns False when an agent has it already, the operator included.
 */
export async function takeAgentName(tx: Queryable, projectId: ProjectId, name: string): Promise<boolean> {
  await run(tx, LOCK_AGENT_NAME, [`${projectId}/${name}`]);
  // A statement of its own: the one that waited for the lock still sees what was before.
  return (await run(tx, HAS_AGENT_NAME, [projectId, name])).length === 0;
}

const MOVE_AGENT = statement('update boxcar.agents set profile_id = $2 where id = $1');

/** Makes later turns of an agent use this version of its profile; turns that exist keep the one they were accepted with. */
export async function moveAgent(tx: Queryable, agentId: AgentId, profileId: ProfileId): Promise<void> {
  await run(tx, MOVE_AGENT, [agentId, profileId]);
}
