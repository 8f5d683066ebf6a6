/**
 * The preview of a packing: the cards of a planned context with the cost of each card, and the first prompt made from these
 * cards.
 */
import { givenNames, type HandoverNotice, KernelError, type NewId, renderBody } from '@boxcar/kernel';
import { loadAgentNames, loadCards, loadProfiles, type Queryable } from '@boxcar/store';
import type { PlannedContext, ResolvedSpec } from './plan.js';
import { askedIn, type Line, linesOf, withAsked } from './preview-lines.js';
import { Counter, promptNotices, toPrompt } from './preview-prompt.js';
import type { PackPreview, PreviewCard, PreviewOptions, PreviewSum } from './preview-types.js';
import type { Selectors } from './selectors.js';

const sumOf = (cards: readonly PreviewCard[]): PreviewSum => ({
  cards: cards.length,
  tokens: cards.reduce<number | null>(
    (sum, card) => (sum === null || card.tokens === null ? null : sum + card.tokens),
    cards.some((card) => card.tokens === null) ? null : 0,
  ),
  estimated_tokens: cards.reduce((sum, card) => sum + card.estimated_tokens, 0),
  size_bytes: cards.reduce((sum, card) => sum + card.size_bytes, 0),
});

async function toCard({ card, of, isNew, reason }: Line, counter: Counter): Promise<PreviewCard> {
  return {
    card_id: card === undefined || isNew ? 'new' : card.id,
    type: card?.type ?? 'unknown',
    role: card?.role ?? null,
    author_id: card?.authorId ?? 'unknown',
    rule: of.rule,
    argument: of.argument ?? null,
    source: of.source ?? null,
    position: of.source === undefined ? null : of.position,
    tokens: card === undefined ? 0 : await counter.count(renderBody(card.content)),
    estimated_tokens: of.tokens,
    size_bytes: card?.sizeBytes ?? 0,
    is_kept: reason === undefined,
    reason: reason ?? null,
  };
}

/** Describes a plan. Three statements: the contents of its cards, the profile, and the names of agents. */
export async function previewPlan(
  db: Queryable,
  plan: PlannedContext<ResolvedSpec>,
  options: PreviewOptions & {
    readonly newId: NewId;
    readonly notices: readonly HandoverNotice[];
    readonly selectors: Selectors | undefined;
  },
): Promise<PackPreview> {
  const { spec, draft, packing } = plan;
  const stored = await loadCards(
    db,
    [...new Set([...draft.inheritedIds, ...askedIn(draft)])],
    spec.projectId,
  );
  const profile = (await loadProfiles(db, [spec.profile.profileId])).get(spec.profile.profileId);
  if (profile === undefined)
    throw new KernelError('internal_error', {
      message: `Profile ${spec.profile.profileId} has no row.`,
      details: { profile_id: spec.profile.profileId },
    });
  const counter = new Counter(options.countTokens, profile.model);
  const lines = linesOf(plan, stored);
  const cards: PreviewCard[] = [];
  for (const line of lines) cards.push(await toCard(line, counter));
  const prompt = await toPrompt(lines, {
    profile,
    counter,
    newId: options.newId,
    selectors: options.selectors,
    arrange: (all) => withAsked(all, draft, stored),
    namesOf: async (ids) => givenNames(await loadAgentNames(db, spec.projectId, ids)),
  });
  return {
    profile: {
      name: spec.profile.name,
      version: spec.profile.version,
      box_id: spec.profile.boxId,
      model: profile.model,
    },
    budget:
      draft.budget === undefined
        ? null
        : {
            budget_tokens: draft.budget.tokens,
            budget_strategy: draft.budget.strategy,
            estimated_tokens: draft.tokens,
            is_exceeded: draft.tokens > draft.budget.tokens,
          },
    cards,
    kept: sumOf(cards.filter((card) => card.is_kept)),
    cut: sumOf(cards.filter((card) => !card.is_kept)),
    segments: packing.box.segments,
    prompt,
    notices: [...options.notices, ...promptNotices(prompt, profile)],
  };
}
