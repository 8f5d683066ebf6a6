/** The profile of turns that adapters and functions serve; made when the first of them comes. */
import { type ProjectId, parseProfile } from '@boxcar/kernel';
import {
  emptySubmission,
  findHandoffProfile,
  insertHandoffProfile,
  lockHandoffProfile,
  type ProfileRow,
  writeSubmission,
} from '@boxcar/store';
import { HANDOFF_TARGET } from '../core/index.js';
import type { HandlerTools } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { buildProfileCard } from '../profile/index.js';

const NAME = 'handoff';

/** Nothing of it is sent anywhere: what serves such a turn is not a model. */
const PROFILE = {
  ...parseProfile({ name: NAME, instructions: 'Serves handoffs.', model: 'scripted' }),
  worker_target: HANDOFF_TARGET,
};

export async function ensureHandoffProfile({ db, tx, ctx }: HandlerTools): Promise<ProfileRow> {
  const { projectId, source } = ctx;
  const known = await findHandoffProfile(db, projectId, NAME);
  if (known !== undefined) return known;
  await lockHandoffProfile(tx, projectId, NAME);
  const found = await findHandoffProfile(tx, projectId, NAME);
  if (found !== undefined) return found;
  const card = buildProfileCard(PROFILE, { projectId, authorId: source.agentId });
  const boxId = newId<'box'>();
  await writeSubmission(tx, {
    ...emptySubmission(),
    cards: [card],
    contextBoxes: [
      {
        id: boxId,
        projectId: projectId as ProjectId,
        ownerAgentId: source.agentId,
        makerAgentId: source.agentId,
        cardIds: [card.id],
        cardTokens: [card.tokenEstimate],
        segments: [{ rule: 'create_box', from: 1, to: 1, count: 1, tokens: card.tokenEstimate }],
        count: 1,
        tokens: card.tokenEstimate,
      },
    ],
  });
  await insertHandoffProfile(tx, {
    id: newId<'profile'>(),
    projectId,
    boxId,
    cardId: card.id,
    profile: PROFILE,
  });
  const made = await findHandoffProfile(tx, projectId, NAME);
  if (made === undefined) throw new Error('the profile of handoffs was not made');
  return made;
}
