/** Profiles for programs that manage them: lists, single versions, and their contents as stored. */
import {
  type AgentId,
  isJsonObject,
  type JsonObject,
  KernelError,
  type ProjectId,
  parseJsonValue,
  tryParseId,
} from '@boxcar/kernel';
import {
  findActor,
  listProfiles as listRows,
  loadStoredProfiles,
  type ProfileLine,
  type StoredProfile,
} from '@boxcar/store';
import type pg from 'pg';

export interface ProfileScope {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
}

/** A profile by name: its current version, or `version`. */
export interface ProfileRef {
  readonly name: string;
  readonly version?: number | undefined;
}

/** One version of a profile. */
export interface ProfileVersion extends Omit<StoredProfile, 'content'> {
  /** Its content as it was stored, including defaults. `applyProfile` accepts it. */
  readonly profile: JsonObject;
}

/** A project by id or name. @throws KernelError `not_found`; `bad_request` for text that is not a valid name. */
export async function findProject(
  pool: pg.Pool,
  project = 'default',
): Promise<{ readonly projectId: ProjectId; readonly operatorId: AgentId }> {
  parseJsonValue(project, 'project_id');
  const found = await findActor(pool, {
    project,
    projectId: tryParseId(project),
    agent: 'operator',
    agentId: undefined,
  });
  if (found !== undefined) return found;
  throw new KernelError('not_found', {
    message: `No project '${project}'.`,
    details: { project_id: project },
  });
}

/** The current profiles of a project, by name. Two statements. @throws KernelError `not_found` for the project. */
export async function listProfiles(
  pool: pg.Pool,
  options: ProfileScope & { readonly tag?: string | undefined } = {},
): Promise<readonly ProfileLine[]> {
  if (options.tag !== undefined) parseJsonValue(options.tag, 'tag');
  const { projectId } = await findProject(pool, options.projectId);
  return listRows(pool, projectId, options);
}

function checkRef({ name, version }: ProfileRef): void {
  if (typeof name !== 'string' || name === '')
    throw new KernelError('bad_request', { message: 'name: is missing.', details: { field: 'name' } });
  parseJsonValue(name, 'name');
  if (version !== undefined && !(Number.isInteger(version) && version > 0 && version < 2 ** 31))
    throw new KernelError('bad_request', {
      message: `version: '${String(version)}' is not a version of a profile; versions begin at 1.`,
      details: { field: 'version' },
    });
}

/**
 * Versions of profiles, in the order of the request. Versions that do not exist are left out. Two statements for any number of
 * versions.
 *
 * @throws KernelError `not_found` for the project, `bad_request` for a version that is not a whole number from 1.
 */
export async function findProfileVersions(
  pool: pg.Pool,
  refs: readonly ProfileRef[],
  options: ProfileScope = {},
): Promise<readonly ProfileVersion[]> {
  for (const ref of refs) checkRef(ref);
  const { projectId } = await findProject(pool, options.projectId);
  if (refs.length === 0) return [];
  const rows = await loadStoredProfiles(
    pool,
    projectId,
    refs.map(({ name, version }) => ({ name: name.trim(), version: version ?? null })),
  );
  return rows.flatMap(({ content, ...row }) => (isJsonObject(content) ? [{ ...row, profile: content }] : []));
}

/** One version of a profile, by default the current one. @throws KernelError `not_found`. */
export async function getProfile(
  pool: pg.Pool,
  name: string,
  options: ProfileScope & { readonly version?: number | undefined } = {},
): Promise<ProfileVersion> {
  const { version, projectId } = options;
  const [found] = await findProfileVersions(pool, [{ name, version }], { projectId });
  if (found !== undefined) return found;
  throw profileNotFound({ name, version }, projectId);
}

/** @param project - The project as the caller gave it. */
export const profileNotFound = ({ name, version }: ProfileRef, project = 'default'): KernelError =>
  new KernelError('not_found', {
    message: `No profile '${name}'${version === undefined ? '' : ` version ${version}`} in project '${project}'.`,
    details: {
      profile_name: name,
      ...(version === undefined ? {} : { profile_version: version }),
      project_id: project,
    },
  });
