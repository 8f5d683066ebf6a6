/**
 * Makes profiles the current versions of their names. One call applies all of its profiles or none, and the number of statements
 * does not depend on the number of profiles.
 */
import {
  buildCard,
  CARD_TYPES,
  type JsonValue,
  KernelError,
  type NewCard,
  type Profile,
  type ProjectId,
} from '@boxcar/kernel';
import {
  emptySubmission,
  findProfileHashes,
  insertProfiles,
  lockProfileNames,
  transaction,
  writeSubmission,
} from '@boxcar/store';
import type pg from 'pg';
import { newId } from '../lib/index.js';
import { findProject, type ProfileScope } from './profiles.js';

/** The outcome of applying one profile. */
export interface StoredVersion {
  readonly name: string;
  readonly version: number;
  readonly profile_id: string;
  readonly profile_box_id: string;
  /** False when the current version already had this content. */
  readonly changed: boolean;
  readonly change: 'new' | 'changed' | 'unchanged';
}

/** @throws KernelError `payload_too_large` for a profile that does not fit in a card. */
export const buildProfileCard = (
  profile: Profile,
  of: { readonly projectId: ProjectId; readonly authorId: string },
): NewCard =>
  buildCard(
    {
      type: CARD_TYPES.profile,
      role: 'system',
      content: { kind: 'json', data: profile as unknown as JsonValue },
      authorId: of.authorId,
    },
    { id: newId<'card'>(), projectId: of.projectId },
  );

/** Adds to an error about one of several profiles that profile's index and name. */
export function nameProfile(error: unknown, { index, input }: { index: number; input: unknown }): unknown {
  if (!(error instanceof KernelError)) return error;
  const given: unknown =
    typeof input === 'object' && input !== null && 'name' in input ? input.name : undefined;
  const isNamed = typeof given === 'string';
  return error.restate(`profiles.${index}${isNamed ? ` ('${given}')` : ''}: ${error.problem}`, {
    profile_index: index,
    ...(isNamed ? { profile_name: given } : {}),
  });
}

/** @throws KernelError `profile_invalid` when two profiles have the same name. */
export function checkNamesDiffer(profiles: readonly Profile[]): void {
  const first = new Map<string, number>();
  for (const [index, { name }] of profiles.entries()) {
    const other = first.get(name);
    if (other !== undefined)
      throw new KernelError('profile_invalid', {
        message: `profiles.${index} ('${name}'): has the name of profiles.${other}.`,
        details: { profile_index: index, profile_name: name, field: 'name' },
      });
    first.set(name, index);
  }
}

/**
 * Stores a new version of each profile whose content has changed, in one transaction and at most seven statements.
 *
 * @param profiles - Valid profiles with different names.
 * @returns One result per profile, in order.
 * @throws KernelError `not_found` for the project.
 */
export async function storeProfiles(
  pool: pg.Pool,
  profiles: readonly Profile[],
  options: ProfileScope,
): Promise<readonly StoredVersion[]> {
  const { projectId, operatorId } = await findProject(pool, options.projectId);
  const wanted = profiles.map((profile) => ({
    profile,
    card: buildProfileCard(profile, { projectId, authorId: operatorId }),
    boxId: newId<'box'>(),
    id: newId<'profile'>(),
  }));
  const names = profiles.map(({ name }) => name);
  return transaction(pool, async (tx) => {
    await lockProfileNames(tx, projectId, names);
    const current = await findProfileHashes(tx, projectId, names);
    const changed = wanted.filter(
      ({ profile, card }) => current.get(profile.name)?.contentHash !== card.contentHash,
    );
    const submission = emptySubmission();
    for (const { card, boxId } of changed) {
      submission.cards.push(card);
      submission.contextBoxes.push({
        id: boxId,
        projectId,
        ownerAgentId: operatorId,
        makerAgentId: operatorId,
        cardIds: [card.id],
        cardTokens: [card.tokenEstimate],
        segments: [{ rule: 'create_box', from: 1, to: 1, count: 1, tokens: card.tokenEstimate }],
        count: 1,
        tokens: card.tokenEstimate,
      });
    }
    if (changed.length > 0) await writeSubmission(tx, submission);
    const rows = changed.map(({ id, boxId, card, profile }) => ({
      id,
      boxId,
      cardId: card.id,
      profile,
    }));
    const versions =
      rows.length === 0 ? new Map<string, number>() : await insertProfiles(tx, projectId, rows);
    return wanted.map(({ profile: { name }, id, boxId }): StoredVersion => {
      const [version, before] = [versions.get(name), current.get(name)];
      if (version !== undefined) {
        const change = version === 1 ? 'new' : 'changed';
        return { name, version, profile_id: id, profile_box_id: boxId, changed: true, change };
      }
      if (before === undefined)
        throw new KernelError('internal_error', { message: `Profile '${name}' was not stored.` });
      return {
        name,
        version: before.version,
        profile_id: before.profileId,
        profile_box_id: before.boxId,
        changed: false,
        change: 'unchanged',
      };
    });
  });
}
