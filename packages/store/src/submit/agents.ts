/** Agents that are created and kept by name, apart from any turn. */
import { type AgentId, type ProfileId, type ProjectId, spellingsOf } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import { query } from '../query/query.js';
import type { Row } from '../schema/index.js';

const NAMES = statement(`
  select /* agents.names */ a.id::text as id, a.name
  from boxcar.agents a
  where a.project_id = $1 and a.id = any ($2::uuid[])`);

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Whether an author may be an agent. Other authors are tools, primitives and the kernel. */
export const mayBeAgent = (id: string): boolean => UUID.test(id);

/** The names of a project's agents by id. Ids that belong to no agent are left out. */
export async function loadAgentNames(
  db: Queryable,
  projectId: ProjectId,
  ids: Iterable<string | null>,
): Promise<ReadonlyMap<string, string>> {
  const agents = [...new Set(ids)].filter((id) => id !== null && mayBeAgent(id));
  if (agents.length === 0) return new Map();
  const rows = await run<Row<'agents', 'id' | 'name'>>(db, NAMES, [projectId, agents]);
  return new Map(rows.map((row) => [row.id, row.name]));
}

// The locks are taken one after the other, in the order of the array.
const LOCK_AGENT_NAMES = statement(`
  select /* agents.lock_agent_names */ count(pg_advisory_xact_lock(hashtextextended(u.key, 8)))
  from unnest($1::text[]) as u(key)`);
const HAVE_NAMES = statement(`
  select /* agents.have_names */
    x.name,
    exists (select from boxcar.agents a where a.project_id = $1 and a.name = any (x.spellings)) as is_taken,
    exists (
      select from boxcar.profiles p
      where p.project_id = $1 and p.name = any (x.spellings) and p.is_current
    )
    and not exists (select from boxcar.projects p where p.id = $1 and p.operator_agent_id = $3) as is_profile
  from json_to_recordset($2::json) as x(name text, spellings text[])`);

/**
 * `taken`: an agent, or the operator, already has the name. `profile`: the name belongs to a profile; only the operator may give such a
 * name to an agent.
 */
export type NameTaking = 'free' | 'taken' | 'profile';

/**
 * Takes names for agents that this transaction will write, in two statements. Another transaction that wants one of these names waits
 * for the end of this one. Callers that take several names together must all use the same order.
 */
export async function takeAgentNames(
  tx: Queryable,
  { projectId, makerId }: { readonly projectId: ProjectId; readonly makerId: AgentId },
  names: readonly string[],
): Promise<ReadonlyMap<string, NameTaking>> {
  await run(tx, LOCK_AGENT_NAMES, [names.map((name) => `${projectId}/${name}`)]);
  // A separate statement: the statement that waited for the lock still sees the state before the wait.
  const records = names.map((name) => ({ name, spellings: spellingsOf(name) }));
  const rows = await run<{ name: string; is_taken: boolean; is_profile: boolean }>(tx, HAVE_NAMES, [
    projectId,
    JSON.stringify(records),
    makerId,
  ]);
  return new Map(
    rows.map((row) => [row.name, row.is_taken ? 'taken' : row.is_profile ? 'profile' : 'free'] as const),
  );
}

/** `takeAgentNames` for one name. */
export async function takeAgentName(
  tx: Queryable,
  scope: { readonly projectId: ProjectId; readonly makerId: AgentId },
  name: string,
): Promise<NameTaking> {
  return (await takeAgentNames(tx, scope, [name])).get(name) ?? 'taken';
}

/**
 * Changes an agent. When the agent gets another version of its profile, later turns use that version. Existing turns keep the version
 * with which they were accepted.
 */
export async function changeAgent(
  tx: Queryable,
  agentId: AgentId,
  to: { readonly profileId?: ProfileId | undefined; readonly isShared?: boolean | undefined },
): Promise<void> {
  const { profileId, isShared } = to;
  await query(tx, 'agents.change_agent', ({ orm, tables: { agents }, eq, sql }) =>
    orm
      .update(agents)
      .set({
        profileId: sql`coalesce(${profileId ?? null}, ${agents.profileId})`,
        isShared: sql`coalesce(${isShared ?? null}, ${agents.isShared})`,
      })
      .where(eq(agents.id, agentId)),
  );
}
