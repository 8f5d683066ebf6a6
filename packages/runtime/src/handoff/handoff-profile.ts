/** The profiles of turns that adapters and functions serve, and of chains. They are created when a project first needs them. */
import { type ProjectId, parseProfile } from '@boxcar/kernel';
import {
  emptySubmission,
  findHandoffProfile,
  insertHandoffProfile,
  lockHandoffProfile,
  type ProfileRow,
  writeSubmission,
} from '@boxcar/store';
import { CHAIN_TARGET, CHAIN_TOOL, HANDOFF_TARGET } from '../core/index.js';
import type { HandlerTools } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { buildProfileCard } from '../profile/index.js';

/** The scripted model that decides the next move of a chain. */
export const CHAIN_MODEL = 'scripted:handoff-chain';

const PROFILES = {
  /** This profile is never sent to a model, because no model serves such a turn. */
  handoff: {
    ...parseProfile({ name: 'handoff', instructions: 'Serves handoffs.', model: 'scripted' }),
    worker_target: HANDOFF_TARGET,
  },
  'handoff-chain': {
    ...parseProfile({
      name: 'handoff-chain',
      instructions: 'Hands on, one after the other.',
      model: CHAIN_MODEL,
      tools: [CHAIN_TOOL],
      repeatable: [CHAIN_TOOL],
      delegation_policy: { target_profiles: null },
      // Enough steps for each hop, its compensation, and the end. No model reads the prompts, so results of any length fit.
      limits: { max_steps: 120, context_tokens: 1e9 },
      model_settings: { max_output_tokens: 1 },
    }),
    worker_target: CHAIN_TARGET,
  },
};

export async function ensureHandoffProfile(
  { db, tx, ctx }: HandlerTools,
  name: keyof typeof PROFILES,
): Promise<ProfileRow> {
  const { projectId, source } = ctx;
  const known = await findHandoffProfile(db, projectId, name);
  if (known !== undefined) return known;
  await lockHandoffProfile(tx, projectId, name);
  const found = await findHandoffProfile(tx, projectId, name);
  if (found !== undefined) return found;
  const profile = PROFILES[name];
  const card = buildProfileCard(profile, { projectId, authorId: source.agentId });
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
    profile,
  });
  const made = await findHandoffProfile(tx, projectId, name);
  if (made === undefined) throw new Error('the profile of handoffs was not made');
  return made;
}
