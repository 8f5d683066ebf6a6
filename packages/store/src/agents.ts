/** Agents that are made and kept by name, apart from any turn. */
import { type AgentId, type ProfileId, type ProjectId, spellingsOf } from '@boxcar/kernel';
import { type Queryable, run, statement } from './db.js';

const NAMES = statement(
  'select a.id::text as id, a.name from boxcar.agents a where a.project_id = $1 and a.id = any ($2::uuid[])',
);

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Whether an author may be an agent: others are tools, primitives and the kernel. */
export const mayBeAgent = (id: string): boolean => UUID.test(id);

/** The names of a project's agents by id; ids that are of no agent are left out. */
export async function loadAgentNames(
  db: Queryable,
  projectId: ProjectId,
  ids: Iterable<string | null>,
): Promise<ReadonlyMap<string, string>> {
  const agents = [...new Set(ids)].filter((id) => id !== null && mayBeAgent(id));
  if (agents.length === 0) return new Map();
  const rows = await run<{ id: string; name: string }>(db, NAMES, [projectId, agents]);
  return new Map(rows.map((row) => [row.id, row.name]));
}

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
