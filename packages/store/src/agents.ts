/** Agents that are made and kept by name, apart from any turn. */
import { type AgentId, type ProfileId, type ProjectId, spellingsOf } from '@boxcar/kernel';
import { type Queryable, run, statement } from './db.js';

const LOCK_AGENT_NAME = statement('select pg_advisory_xact_lock(hashtextextended($1, 8))');
const HAS_NAME = statement(`
  select exists (select from boxcar.agents where project_id = $1 and name = any ($2::text[])) as is_taken,
    exists (select from boxcar.profiles where project_id = $1 and name = any ($2::text[]) and is_current)
      and not exists (select from boxcar.projects where id = $1 and operator_agent_id = $3) as is_profile`);

/**
 * Takes a name for an agent that this transaction will write; whoever wants the same name waits for its end.
 *
 * @returns `taken` when an agent has it already, the operator included; `profile` when it is the name of a profile, which only the
 * operator gives to an agent.
 */
export async function takeAgentName(
  tx: Queryable,
  { projectId, makerId }: { readonly projectId: ProjectId; readonly makerId: AgentId },
  name: string,
): Promise<'free' | 'taken' | 'profile'> {
  await run(tx, LOCK_AGENT_NAME, [`${projectId}/${name}`]);
  // A statement of its own: the one that waited for the lock still sees what was before.
  const [row] = await run<{ is_taken: boolean; is_profile: boolean }>(tx, HAS_NAME, [
    projectId,
    spellingsOf(name),
    makerId,
  ]);
  if (row?.is_taken === true) return 'taken';
  return row?.is_profile === true ? 'profile' : 'free';
}

const CHANGE_AGENT = statement(
  'update boxcar.agents set profile_id = coalesce($2, profile_id), is_shared = coalesce($3, is_shared) where id = $1',
);

/**
 * Changes an agent. With another version of its profile, later turns use that version; turns that exist keep the one they were
 * accepted with.
 */
export async function changeAgent(
  tx: Queryable,
  agentId: AgentId,
  to: { readonly profileId?: ProfileId | undefined; readonly isShared?: boolean | undefined },
): Promise<void> {
  await run(tx, CHANGE_AGENT, [agentId, to.profileId ?? null, to.isShared ?? null]);
}
