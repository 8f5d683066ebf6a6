/**
 * The handoff that the kernel makes by itself when a prompt is too long: an anchor that is a compaction, its event, the
 * summary of the omitted cards, and the event of the interrupted step. Source: docs/reference/views.md, "Overflow".
 */

import type { CardId, JsonObject, ProjectId } from '../base/index.js';
import { buildCard, CARD_TYPES, type NewCard } from '../card/index.js';
import type { TapeEntry } from '../tape/index.js';
import type { ViewRows } from '../view/index.js';
import { compactionMetadata } from '../view/index.js';
import type { CompactionPlan } from './compaction-plan.js';
import { AUTO_HANDOFF_ANCHOR, AUTO_HANDOFF_REASON } from './overflow.js';

/** The facts in the anchor's state: the cause and the effect of the compaction. */
export interface AutoHandoffFacts {
  /** The cause, in the words of the provider or of the estimate. */
  readonly error: string;
  readonly tokensBefore: number;
  readonly tokensAfter: number;
  readonly limitTokens: number;
}

/** An entry to append. */
export type AutoHandoffEntry =
  | { readonly kind: 'anchor'; readonly card: NewCard; readonly anchorName: string }
  | { readonly kind: 'message'; readonly card: NewCard }
  | { readonly kind: 'event'; readonly payload: JsonObject };

const MAX_ERROR = 500;

function stateOf(plan: CompactionPlan, facts: AutoHandoffFacts, summary: CardId | null): JsonObject {
  return {
    reason: AUTO_HANDOFF_REASON,
    error: facts.error.slice(0, MAX_ERROR).toWellFormed(),
    tokens_before: facts.tokensBefore,
    tokens_after: facts.tokensAfter,
    limit_tokens: facts.limitTokens,
    kept_steps: plan.keptSteps,
    summarized_cards: plan.summarized.length,
    referenced_cards: plan.references.length,
    summary_card_id: summary,
  };
}

/** The entries to append to the tape, in order. */
export function draftAutoHandoff(
  plan: CompactionPlan,
  facts: AutoHandoffFacts,
  of: {
    readonly projectId: ProjectId;
    readonly anchorId: CardId;
    readonly summaryId: CardId;
    readonly step: number;
    readonly elapsedMs: number;
  },
): readonly AutoHandoffEntry[] {
  const { digest, summarized, tasks, keepFrom, references, leftOut } = plan;
  const summary = digest === undefined ? null : of.summaryId;
  const state = stateOf(plan, facts, summary);
  const limit = Number.POSITIVE_INFINITY;
  const anchor = buildCard(
    {
      type: CARD_TYPES.anchor,
      role: 'assistant',
      content: { kind: 'json', data: state },
      metadata: {
        name: AUTO_HANDOFF_ANCHOR,
        ...compactionMetadata({ keepFrom, references, leftOut, summary }),
      },
      authorId: 'kernel',
    },
    { id: of.anchorId, projectId: of.projectId },
    limit,
  );
  const event = (name: string, data: JsonObject): AutoHandoffEntry => ({
    kind: 'event',
    payload: { name, data },
  });
  const entries: AutoHandoffEntry[] = [
    { kind: 'anchor', card: anchor, anchorName: AUTO_HANDOFF_ANCHOR },
    // Only the anchor's card holds the state.
    event('handoff', { name: AUTO_HANDOFF_ANCHOR }),
  ];
  if (digest !== undefined) {
    const card = buildCard(
      {
        type: CARD_TYPES.summary,
        role: 'user',
        content: { kind: 'text', text: digest },
        metadata: { role: 'user', summarizes: [...new Set([...tasks, ...summarized])] },
        authorId: 'kernel',
      },
      { id: of.summaryId, projectId: of.projectId },
      limit,
    );
    entries.push({ kind: 'message', card });
  }
  const { step, elapsedMs } = of;
  entries.push(
    event('loop.step', { step, elapsed_ms: elapsedMs, status: 'auto_handoff', error: state.error ?? null }),
  );
  return entries;
}

/** The view's rows after these entries are appended, as the store will load them. */
export function appendAutoHandoff(
  rows: ViewRows,
  plan: CompactionPlan,
  drafts: readonly AutoHandoffEntry[],
): ViewRows {
  const head = rows.entries.at(-1)?.position ?? rows.lastAnchorPosition;
  const lastAnchorPosition = head + 1;
  const appended = drafts.map(
    (draft, index): TapeEntry => ({
      position: head + 1 + index,
      kind: draft.kind,
      card: draft.kind === 'event' ? null : draft.card,
      payload: draft.kind === 'event' ? draft.payload : null,
      anchorName: draft.kind === 'anchor' ? draft.anchorName : null,
      turnId: rows.turn.turnId,
      step: null,
    }),
  );
  const from = plan.keepFrom ?? lastAnchorPosition;
  const entries = [...rows.entries.filter(({ position }) => position >= from), ...appended];
  return { ...rows, entries, lastAnchorPosition };
}
