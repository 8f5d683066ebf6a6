/** The tool that brings back what a compaction has left out of a prompt. Source: docs/views.md, "Overflow". */
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
  renderBody,
  type TurnId,
} from '@boxcar/kernel';
import { findCompactionReader, loadCards } from '@boxcar/store';
import type pg from 'pg';
import { z } from 'zod';
import type { Tool } from './tool.js';

/** Of one answer, at most and of the window: it must not be what makes the next prompt too long. */
const PAGE_CHARACTERS = 16_384;
const PAGE_SHARE = 1 / 8;
const CHARACTERS_PER_TOKEN = 3;

const pageOf = (profile: Profile): number =>
  Math.min(
    PAGE_CHARACTERS,
    Math.floor(contextLimitsOf(profile).limitTokens * PAGE_SHARE * CHARACTERS_PER_TOKEN),
  );

const expandSchema = z.strictObject({
  card_id: z.string().describe('The id of a card, or of a summary: that reads the cards it stands for.'),
  from: z
    .number()
    .int()
    .min(0)
    .optional()
    .describe('Where to go on: next_from of the answer before. Characters of a card, cards of a summary.'),
});

const headOf = (card: Card): JsonObject => ({ card_id: card.id, type: card.type, author_id: card.authorId });

interface Page {
  readonly from: number;
  /** Characters. */
  readonly page: number;
}

/** A part of a card's words, cut between characters. */
function readCard(card: Card, { from, page }: Page): JsonObject {
  const body = renderBody(card.content);
  const text = body.slice(from, from + page).toWellFormed();
  const next = from + page;
  return { ...headOf(card), text, ...(next < body.length ? { next_from: next } : {}) };
}

const summarizedBy = ({ metadata }: Card): readonly CardId[] =>
  Array.isArray(metadata.summarizes) ? (metadata.summarizes as CardId[]) : [];

/** As many cards as one answer holds; of one that is larger the beginning, and the rest by its own id. */
function readSummary(
  summary: Card,
  cards: ReadonlyMap<CardId, Card>,
  { ids, from, page }: Page & { readonly ids: readonly CardId[] },
): JsonObject {
  const read: JsonObject[] = [];
  let room = page;
  let at = from;
  for (; at < ids.length; at += 1) {
    const card = cards.get(ids[at] as CardId);
    if (card === undefined) continue;
    const body = renderBody(card.content);
    if (read.length > 0 && body.length > room) break;
    const text = body.slice(0, page).toWellFormed();
    read.push({
      ...headOf(card),
      text,
      ...(body.length > page ? { next_from: page } : {}),
    });
    room -= text.length;
    if (room <= 0) {
      at += 1;
      break;
    }
  }
  return {
    ...headOf(summary),
    card_count: ids.length,
    cards: read,
    ...(at < ids.length ? { next_from: at } : {}),
  };
}

/** Cards that are read for one answer: what does not fit is not shown anyway. */
const MAX_READ = 200;

async function expand(
  pool: pg.Pool,
  { card_id, from = 0 }: z.infer<typeof expandSchema>,
  of: { readonly turnId: TurnId; readonly projectId: ProjectId },
): Promise<JsonObject> {
  const cardId = parseId<'card'>(card_id, 'card_id');
  const reader = await findCompactionReader(pool, of.turnId, { cardId, anchorName: AUTO_HANDOFF_ANCHOR });
  const card = reader !== undefined ? (await loadCards(pool, [cardId], of.projectId)).get(cardId) : undefined;
  if (card === undefined || reader === undefined)
    throw new KernelError('not_found', {
      message: `No card ${cardId} was left out of this conversation.`,
      details: { card_id: cardId },
    });
  const ids = summarizedBy(card);
  const page = pageOf(reader);
  if (ids.length === 0) return readCard(card, { from, page });
  return readSummary(card, await loadCards(pool, ids.slice(from, from + MAX_READ), of.projectId), {
    ids: ids.slice(0, from + MAX_READ),
    from,
    page,
  });
}

export const expandTool = (pool: pg.Pool): Tool<z.infer<typeof expandSchema>> => ({
  name: EXPAND_TOOL,
  description:
    'Reads a card that was left out of this conversation to make room, or the cards that a summary stands for.',
  input: expandSchema,
  isReadOnly: true,
  run: (input, context) => expand(pool, input, context),
});
