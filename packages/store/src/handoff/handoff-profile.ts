/**
 * The profile of turns that adapters and functions serve. Each project has one, under version 0, which user profiles never have. It is
 * never the current version of its name, so it is in no list and cannot be reached by name.
 */
import type { BoxId, CardId, Profile, ProfileId, ProjectId } from '@boxcar/kernel';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import {
  lockProfileNames,
  PROFILE_COLUMNS,
  type ProfileDbRow,
  type ProfileRow,
  toProfileRow,
} from '../submit/index.js';

const FIND = statement(`
  select /* handoff-profile.find */ ${PROFILE_COLUMNS}
  from boxcar.profiles f
  where f.project_id = $1 and f.name = $2 and f.version = 0`);

export async function findHandoffProfile(
  db: Queryable,
  projectId: ProjectId,
  name: string,
): Promise<ProfileRow | undefined> {
  const [row] = await run<ProfileDbRow>(db, FIND, [projectId, name]);
  return row && toProfileRow(row);
}

const INSERT = statement(`
  insert /* handoff-profile.insert */ into boxcar.profiles (
    id, project_id, name, version, box_id, card_id, worker_target, max_steps, is_current
  )
  values ($1, $2, $3, 0, $4, $5, $6, $7, false)`);

/** Locks the name. The box and the card must be written in the same transaction before {@link insertHandoffProfile}. */
export const lockHandoffProfile = (tx: Tx, projectId: ProjectId, name: string): Promise<void> =>
  lockProfileNames(tx, projectId, [name]);

export async function insertHandoffProfile(
  tx: Tx,
  row: {
    readonly id: ProfileId;
    readonly projectId: ProjectId;
    readonly boxId: BoxId;
    readonly cardId: CardId;
    readonly profile: Pick<Profile, 'name' | 'worker_target' | 'limits'>;
  },
): Promise<void> {
  const { name, worker_target, limits } = row.profile;
  await run(tx, INSERT, [
    row.id,
    row.projectId,
    name,
    row.boxId,
    row.cardId,
    worker_target,
    limits.max_steps,
  ]);
}
