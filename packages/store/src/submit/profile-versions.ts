/** Finds versions of profiles by name or number, and creates them. */
import {
  type BoxId,
  type Profile,
  type ProfileId,
  type ProjectId,
  selectorOfView,
  spellingsOf,
  startOfView,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

/** The facts about a profile that delegation needs. */
export interface ProfileRow {
  readonly profileId: ProfileId;
  readonly name: string;
  readonly version: number;
  readonly boxId: BoxId;
  readonly tags: readonly string[];
  readonly workerTarget: string;
  readonly maxSteps: number;
  /** True when the profile's turns have their own token limit. */
  readonly isCapped: boolean;
  /** True when views of the profile's turns show the whole tape. */
  readonly isFullView: boolean;
  /** The selector that makes the prompts of the profile's turns. */
  readonly selector: string | null;
}

export interface ProfileDbRow extends pg.QueryResultRow {
  profile_id: ProfileId;
  name: string;
  version: number;
  box_id: BoxId;
  tags: string[];
  worker_target: string;
  max_steps: number;
  is_capped: boolean;
  is_full_view: boolean;
  selector: string | null;
}

export const PROFILE_COLUMNS = `
  f.id as profile_id, f.name, f.version, f.box_id, f.tags, f.worker_target, f.max_steps,
  f.max_tokens is not null as is_capped, f.view is not null as is_full_view, f.selector`;

export const toProfileRow = (row: ProfileDbRow): ProfileRow => ({
  profileId: row.profile_id,
  name: row.name,
  version: row.version,
  boxId: row.box_id,
  tags: row.tags,
  workerTarget: row.worker_target,
  maxSteps: row.max_steps,
  isCapped: row.is_capped,
  isFullView: row.is_full_view,
  selector: row.selector,
});

const FIND_PROFILES = statement(`
  select /* profile-versions.find_profiles */ ${PROFILE_COLUMNS}
  from boxcar.profiles f
  where f.project_id = $1 and f.name = any ($2::text[]) and f.is_current`);

/** Finds the stored value for each given name, in any spelling of the name. */
export function byGivenName<T>(
  names: readonly string[],
  stored: ReadonlyMap<string, T>,
  spellings: (name: string) => readonly string[] = spellingsOf,
): ReadonlyMap<string, T> {
  return new Map(
    names.flatMap((name) => {
      const found = spellings(name)
        .map((spelling) => stored.get(spelling))
        .find((value) => value !== undefined);
      return found === undefined ? [] : [[name, found] as const];
    }),
  );
}

/** The current versions of profiles by their names. */
export async function findProfiles(
  db: Queryable,
  projectId: ProjectId,
  names: readonly string[],
): Promise<ReadonlyMap<string, ProfileRow>> {
  const rows = await run<ProfileDbRow>(db, FIND_PROFILES, [projectId, names.flatMap(spellingsOf)]);
  const stored = new Map(rows.map((row) => [row.name, toProfileRow(row)]));
  return byGivenName(names, stored);
}

const FIND_VERSION = statement(`
  select /* profile-versions.find_version */ ${PROFILE_COLUMNS}
  from boxcar.profiles f
  where f.project_id = $1 and f.name = $2 and f.version = $3`);

/** One version of a profile, current or not. */
export async function findProfileVersion(
  db: Queryable,
  projectId: ProjectId,
  ref: { readonly name: string; readonly version: number },
): Promise<ProfileRow | undefined> {
  const [row] = await run<ProfileDbRow>(db, FIND_VERSION, [projectId, ref.name, ref.version]);
  return row === undefined ? undefined : toProfileRow(row);
}

const HAS_PROFILE = statement(
  'select /* profile-versions.has_profile */ id from boxcar.profiles where id = $1 and project_id = $2',
);

/** Whether the project has this version of a profile. */
export async function hasProfile(
  db: Queryable,
  profileId: ProfileId,
  projectId: ProjectId,
): Promise<boolean> {
  return (await run(db, HAS_PROFILE, [profileId, projectId])).length > 0;
}

// The old versions lose `is_current` first: only one version of a name is current. The caller holds the locks of the names
// (`lockProfileNames`), so of two writes of one name the second waits and sees the version of the first. Without these locks, the unique
// indexes would refuse it.
const INSERT_PROFILES = statement(`
  with /* profile-versions.insert_profiles */
  wanted as materialized (
    select x.*
    from json_to_recordset($2) as x(
      id uuid, name text, box_id uuid, card_id uuid, tags text[], worker_target text, max_steps int,
      max_tokens bigint, view text, selector text
    )
  ),
  latest as materialized (
    select
      w.name,
      (select max(p.version) from boxcar.profiles p where p.project_id = $1 and p.name = w.name) as version
    from wanted w
  ),
  old as (
    update boxcar.profiles
    set is_current = false
    where project_id = $1 and name = any (array(select name from wanted)) and is_current
    returning version
  )
  insert into boxcar.profiles (
    id, project_id, name, version, box_id, card_id, tags, worker_target, max_steps, max_tokens, view, selector,
    is_current
  )
  select w.id, $1, w.name, coalesce(l.version, 0) + 1, w.box_id, w.card_id, w.tags, w.worker_target, w.max_steps,
    w.max_tokens, w.view, w.selector, true
  from wanted w
  join latest l on l.name = w.name
  cross join (select count(*) from old) after_old
  returning name, version`);

export interface NewProfile {
  readonly id: ProfileId;
  readonly boxId: BoxId;
  readonly cardId: string;
  readonly profile: Profile;
}

/**
 * Makes profiles the current versions of their names, in one statement. Their boxes and cards must be written in the same transaction.
 *
 * @param profiles - Each must have a different name.
 * @returns The new version of each name.
 */
export async function insertProfiles(
  tx: Queryable,
  projectId: ProjectId,
  profiles: readonly NewProfile[],
): Promise<ReadonlyMap<string, number>> {
  const records = profiles.map(({ id, boxId, cardId, profile }) => ({
    id,
    name: profile.name,
    box_id: boxId,
    card_id: cardId,
    tags: profile.tags,
    worker_target: profile.worker_target,
    max_steps: profile.limits.max_steps,
    max_tokens: profile.limits.tokens ?? null,
    view: startOfView(profile.view) === 'full' ? 'full' : null,
    selector: selectorOfView(profile.view),
  }));
  const rows = await run<{ name: string; version: number }>(tx, INSERT_PROFILES, [
    projectId,
    JSON.stringify(records),
  ]);
  return new Map(rows.map((row) => [row.name, row.version]));
}

const CURRENT_PROFILES = statement(`
  select /* profile-versions.current_profiles */ ${PROFILE_COLUMNS}, encode(c.content_hash, 'hex') as content_hash
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  where f.project_id = $1 and f.name = any ($2::text[]) and f.is_current`);

/** The current versions of these names with the hash of their content, which decide whether a change makes a new version. */
export async function findProfileHashes(
  db: Queryable,
  projectId: ProjectId,
  names: readonly string[],
): Promise<ReadonlyMap<string, ProfileRow & { readonly contentHash: string }>> {
  const rows = await run<ProfileDbRow & { content_hash: string }>(db, CURRENT_PROFILES, [projectId, names]);
  return new Map(rows.map((row) => [row.name, { ...toProfileRow(row), contentHash: row.content_hash }]));
}

const LOCK_PROFILE_NAMES = statement(`
  select /* profile-versions.lock_profile_names */ pg_advisory_xact_lock(hashtextextended(n, 7))
  from unnest($1::text[]) as n`);

/** Serializes changes to the versions of profile names until the transaction ends. All callers lock the names in the same order. */
export async function lockProfileNames(
  tx: Queryable,
  projectId: ProjectId,
  names: readonly string[],
): Promise<void> {
  await run(tx, LOCK_PROFILE_NAMES, [names.map((name) => `${projectId}/${name}`).toSorted()]);
}
