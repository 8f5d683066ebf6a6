/**
 * The tool that shows a model the cards that a compaction has left out of its prompt. Source: docs/reference/views.md,
 * "Overflow".
 */
import {
  AUTO_HANDOFF_ANCHOR,
  type Card,
  type CardId,
  contextLimitsOf,
  EXPAND_TOOL,
  type JsonObject,
  KernelError,
  type Profile,
  type ProjectId,
  parseId,
  readCardPage,
  readSummaryPage,
  type TurnId,
} from '@boxcar/kernel';
import { findCompactionLink, loadCards } from '@boxcar/store';
import type pg from 'pg';
import { z } from 'zod';
import type { Tool } from './tool.js';

/**
 * The size of one answer: a maximum in bytes, and a maximum share of the window. An answer must not make the next prompt too
 * long.
 */
const PAGE_BYTES = 16_384;
const PAGE_SHARE = 1 / 8;
const BYTES_PER_TOKEN = 3;

const pageOf = (profile: Profile): number =>
  Math.min(PAGE_BYTES, Math.floor(contextLimitsOf(profile).limitTokens * PAGE_SHARE * BYTES_PER_TOKEN));

const expandSchema = z.strictObject({
  card_id: z
    .string()
    .describe('The id of a card, or of a summary: then the cards that it replaces are read.'),
  from: z
    .number()
    .int()
    .min(0)
    .optional()
    .describe(
      'Where to continue: next_from of the previous answer. Counts characters of a card, or cards of a summary.',
    ),
});

const idsOf = ({ metadata }: Card): readonly CardId[] =>
  Array.isArray(metadata.summarizes) ? (metadata.summarizes as CardId[]) : [];

/** Maximum cards that are read for one answer. An answer has no room for more, even when each card is as small as possible. */
const MAX_READ = 200;

async function expand(
  pool: pg.Pool,
  { card_id, from = 0 }: z.infer<typeof expandSchema>,
  of: { readonly turnId: TurnId; readonly projectId: ProjectId },
): Promise<JsonObject> {
  const cardId = parseId<'card'>(card_id, 'card_id');
  const link = await findCompactionLink(pool, of.turnId, { cardId, anchorName: AUTO_HANDOFF_ANCHOR });
  const card = link === undefined ? undefined : (await loadCards(pool, [cardId], of.projectId)).get(cardId);
  if (card === undefined || link === undefined)
    throw new KernelError('not_found', {
      message: `No card ${cardId} was left out of this conversation.`,
      details: { card_id: cardId },
    });
  const page = { from, maxBytes: pageOf(link.profile) };
  // Any agent can write that a card summarizes others, so only the kernel's own summaries give access to the summarized cards.
  if (!link.isSummary) return readCardPage(card, page);
  const ids = idsOf(card);
  const cards = await loadCards(pool, ids.slice(from, from + MAX_READ), of.projectId);
  return readSummaryPage(card, { ...page, ids, cards });
}

export const expandTool = (pool: pg.Pool): Tool<z.infer<typeof expandSchema>> => ({
  name: EXPAND_TOOL,
  description:
    'Reads a card that was left out of this conversation to make room, or the cards that a summary replaces.',
  input: expandSchema,
  isReadOnly: true,
  run: (input, context) => expand(pool, input, context),
});
