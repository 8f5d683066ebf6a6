/** Profiles as people and programs manage them: lists, single versions, and their contents. Delegation reads `profile-versions.ts`. */
import type { BoxId, JsonValue, ProfileId, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { query } from '../query/query.js';

/** The current version of a profile, as a list shows it. */
export interface ProfileLine extends pg.QueryResultRow {
  readonly name: string;
  readonly version: number;
  readonly description: string | null;
  readonly model: string;
  readonly tags: readonly string[];
  readonly worker_target: string;
  /** The number of agents, of any version. */
  readonly agents: number;
  /** The number of agents that still have an older version. */
  readonly agents_behind: number;
  readonly applied_at: Date;
  readonly profile_id: ProfileId;
  readonly profile_box_id: BoxId;
}

// Takes no locks. Agents are counted first, then their versions are looked up by key: an agent that changes its version meanwhile counts
// with its old version, because the whole list is of one snapshot.
const LIST_PROFILES = statement(`
  with /* profiles.list_profiles */
  counted as (
    select a.profile_id, count(*)::int as agents
    from boxcar.agents a
    where a.project_id = $1 and a.profile_id is not null
    group by a.profile_id
  ),
  by_name as (
    select
      f.name, sum(n.agents)::int as agents,
      coalesce(sum(n.agents) filter (where not f.is_current), 0)::int as behind
    from counted n
    cross join lateral (select p.name, p.is_current from boxcar.profiles p where p.id = n.profile_id offset 0) f
    group by f.name
  )
  select
    f.name, f.version,
    c.content->'data'->>'description' as description,
    coalesce(c.content->'data'->>'model', '') as model,
    f.tags, f.worker_target, coalesce(n.agents, 0) as agents, coalesce(n.behind, 0) as agents_behind,
    f.created_at as applied_at, f.id as profile_id, f.box_id as profile_box_id
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  left join by_name n on n.name = f.name
  where f.project_id = $1 and f.is_current and ($2::text is null or $2 = any (f.tags))
  order by f.name`);

/** The current profiles of a project by name, or only those with a tag. One statement, which also counts the project's agents. */
export function listProfiles(
  db: Queryable,
  projectId: ProjectId,
  options: { readonly tag?: string | undefined } = {},
): Promise<ProfileLine[]> {
  return run<ProfileLine>(db, LIST_PROFILES, [projectId, options.tag ?? null]);
}

/** One stored version with its content. */
export interface StoredProfile extends pg.QueryResultRow {
  readonly name: string;
  readonly version: number;
  readonly is_current: boolean;
  /** The newest version of this name. */
  readonly latest_version: number;
  readonly applied_at: Date;
  readonly profile_id: ProfileId;
  readonly profile_box_id: BoxId;
  /** The content as it was parsed when the profile was applied; null after erasure. */
  readonly content: JsonValue | null;
}

const LOAD_PROFILES = statement(`
  select /* profiles.load_profiles */
    f.name, f.version, f.is_current, f.created_at as applied_at, f.id as profile_id, f.box_id as profile_box_id,
    (
      select max(o.version)
      from boxcar.profiles o
      where o.project_id = f.project_id and o.name = f.name
    ) as latest_version,
    c.content->'data' as content
  from unnest($2::text[], $3::int[]) with ordinality as w(name, version, n)
  cross join lateral (
    select *
    from boxcar.profiles p
    where p.project_id = $1
      and p.name = w.name
      and case when w.version is null then p.is_current else p.version = w.version end
    offset 0
  ) f
  join boxcar.cards c on c.id = f.card_id
  order by w.n`);

/** The named versions (null = the current one) that exist, in the order of the request. One statement. */
export function loadStoredProfiles(
  db: Queryable,
  projectId: ProjectId,
  refs: readonly { readonly name: string; readonly version: number | null }[],
): Promise<StoredProfile[]> {
  return run<StoredProfile>(db, LOAD_PROFILES, [
    projectId,
    refs.map((ref) => ref.name),
    refs.map((ref) => ref.version),
  ]);
}

/** All versions of a profile; empty when the profile does not exist. */
export const findVersionIds = async (
  db: Queryable,
  projectId: ProjectId,
  name: string,
): Promise<readonly ProfileId[]> =>
  (
    await query(db, 'profiles.find_version_ids', ({ orm, tables: { profiles }, and, eq }) =>
      orm
        .select({ id: profiles.id })
        .from(profiles)
        .where(and(eq(profiles.projectId, projectId), eq(profiles.name, name))),
    )
  ).map(({ id }) => id);
