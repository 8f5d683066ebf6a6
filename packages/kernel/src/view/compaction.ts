/**
 * What a compaction is and how a view reads it. A compaction is an ordinary anchor. The metadata of its card also say
 * which parts of the history before it are still shown, and how. Source: docs/reference/views.md, "Overflow".
 *
 * X1  In the view, the anchor is where it cuts: after the history that it leaves out, before the steps that it keeps.
 * X2  A kept step is kept whole. For a card that is referred to, the prompt shows a reference in place of its words.
 * X3  Omitted content is linked by the summary or by its reference. Nothing is copied, and nothing is lost.
 * X4  A context is shortened only for the turn that it belongs to. Another turn that receives the same cards sees them
 *     in full.
 * X5  A later handoff of this turn carries the compaction of its context over, because the context is shown after every
 *     anchor.
 */

import { type CardId, isJsonObject, type JsonObject, type JsonValue, tryParseId } from '../base/index.js';
import { CARD_TYPES, type Card, type CardContent, estimateTokens } from '../card/index.js';
import { renderBody } from '../render/render.js';
import type { TapeEntry } from '../tape/index.js';
import type { ContextCard, ViewRows } from './context.js';

/** The tool that reads content that a compaction has left out. */
export const EXPAND_TOOL = 'expand';

export interface Compaction {
  /** The first position before the anchor that is still shown; null when none is. */
  readonly keepFrom: number | null;
  /** Cards that are shown as references. */
  readonly references: readonly CardId[];
  /** Cards of the turn's context that are not shown. */
  readonly leftOut: readonly CardId[];
  /** The card that summarizes the content that is not shown at all; null when there is no such card. */
  readonly summary: CardId | null;
}

/** The form in which the metadata of the anchor's card store a compaction. */
export const compactionMetadata = ({ keepFrom, references, leftOut, summary }: Compaction): JsonObject => ({
  compaction: { v: 1, keep_from: keepFrom, references: [...references], left_out: [...leftOut], summary },
});

const idsOf = (value: JsonValue | undefined): readonly CardId[] =>
  (Array.isArray(value) ? value : []).flatMap((id) => idOf(id) ?? []);

const idOf = (value: JsonValue | undefined): CardId | null =>
  (typeof value === 'string' ? tryParseId<'card'>(value) : undefined) ?? null;

/** Reads the compaction from an anchor's card; undefined for every other anchor. */
export function readCompaction({ metadata }: Pick<Card, 'metadata'>): Compaction | undefined {
  const { compaction } = metadata;
  if (!isJsonObject(compaction) || compaction.v !== 1) return undefined;
  const { keep_from: from, references, left_out: leftOut, summary } = compaction;
  return {
    keepFrom: typeof from === 'number' ? from : null,
    references: idsOf(references),
    leftOut: idsOf(leftOut),
    summary: idOf(summary),
  };
}

/**
 * The metadata of a later anchor of the same turn, so that omitted parts of the turn's context stay omitted (X5).
 * Undefined when the context was not shortened.
 */
export function carryCompaction(from: Pick<Card, 'metadata'>): JsonObject | undefined {
  const { references = [], leftOut = [] } = readCompaction(from) ?? {};
  if (references.length + leftOut.length === 0) return undefined;
  return compactionMetadata({ keepFrom: null, references, leftOut, summary: null });
}

/** How many characters of its card a reference shows. */
const PREVIEW = 600;

/** The size of a card's rendered content, in bytes. */
export const bodyBytes = ({ content }: Pick<Card, 'content'>): number =>
  Buffer.byteLength(renderBody(content));

function referenceText(card: Card): string {
  const body = renderBody(card.content);
  const tokens = estimateTokens(Buffer.byteLength(body));
  const call = `${EXPAND_TOOL}(${JSON.stringify({ card_id: card.id })})`;
  const more = body.length > PREVIEW ? '…' : '';
  return `[${card.type}, about ${tokens} tokens, left out to make room; ${call} reads it] ${body.slice(0, PREVIEW).toWellFormed()}${more}`;
}

function referenceContent(card: Card): CardContent {
  const text = referenceText(card);
  if (card.content.kind !== 'tool_result') return { kind: 'text', text };
  const { kind, tool_call_id, name, status } = card.content;
  return { kind, tool_call_id, name, status, result: text };
}

/**
 * The card as a compacted prompt shows it: only the beginning of its content. An assistant card becomes a user card,
 * since no model wrote this text.
 */
export const toReference = (card: Card): Card => ({
  ...card,
  role: card.role === 'assistant' ? 'user' : card.role,
  content: referenceContent(card),
  isReference: true,
});

/**
 * Whether a card of a step may be shown as a reference. The other cards hold the step together, or are the question it
 * answers.
 */
export const mayBeReferred = ({ content, type }: Card): boolean =>
  content.kind !== 'tool_call' &&
  content.kind !== 'fields_schema' &&
  type !== CARD_TYPES.instruction &&
  type !== CARD_TYPES.parentPointer &&
  type !== CARD_TYPES.anchor &&
  type !== CARD_TYPES.thought;

/**
 * The same for a card of the turn's context. An inherited card qualifies, unless it is a parent pointer or a call of a
 * clone's source, which its results must follow. For the turn's own arguments the rule of {@link mayBeReferred}
 * applies, so its instruction and its result fields never qualify.
 */
export const mayBeReferredInContext = ({ card, rule, native }: ContextCard): boolean => {
  if (rule === 'parent' || card.type === CARD_TYPES.parentPointer) return false;
  if (rule === 'argument') return mayBeReferred(card);
  return native !== true || card.content.kind !== 'tool_call';
};

/**
 * Whether the turn may call `expand`. It may when its last anchor is a compaction, or when a context shows content that
 * a compaction had left out for the clone's source.
 */
export const mayExpand = (rows: Pick<ViewRows, 'entries' | 'lastAnchorPosition' | 'contexts'>): boolean =>
  compactionOf(rows) !== undefined ||
  [...rows.contexts.values()].some((cards) => cards.some(({ isExpandable }) => isExpandable === true));

function compactionOf({ entries, lastAnchorPosition }: Pick<ViewRows, 'entries' | 'lastAnchorPosition'>) {
  const anchor = entries.find(({ position, kind }) => position === lastAnchorPosition && kind === 'anchor');
  const compaction = anchor?.card == null ? undefined : readCompaction(anchor.card);
  return anchor === undefined || compaction === undefined ? undefined : { anchor, compaction };
}

/** The rows in the order that their last anchor asks for; the same rows when that anchor is not a compaction. */
export function placeCompaction(rows: ViewRows): ViewRows {
  const { entries, lastAnchorPosition } = rows;
  const found = compactionOf(rows);
  if (found === undefined) return rows;
  const { anchor, compaction } = found;
  const { keepFrom, references, summary } = compaction;
  const from = Math.min(keepFrom ?? lastAnchorPosition, lastAnchorPosition);
  const referred = new Set<string>(references);
  const refer = (entry: TapeEntry): TapeEntry =>
    entry.card !== null && referred.has(entry.card.id) ? { ...entry, card: toReference(entry.card) } : entry;
  const isSummary = ({ card, position }: TapeEntry): boolean =>
    summary !== null && card?.id === summary && position > lastAnchorPosition;
  return {
    ...rows,
    entries: [
      ...entries.filter(({ position }) => position < from),
      anchor,
      ...entries.filter(isSummary),
      ...entries
        .filter((entry) => entry !== anchor && entry.position >= from && !isSummary(entry))
        .map(refer),
    ],
    contexts: anchor.turnId === rows.turn.turnId ? placeContext(rows, compaction) : rows.contexts,
  };
}

/** X4: the compaction applies only to the context of the turn that it was made for. */
function placeContext({ turn, contexts }: ViewRows, compaction: Compaction): ViewRows['contexts'] {
  const referred = new Set<string>(compaction.references);
  const leftOut = new Set<string>(compaction.leftOut);
  const place = (one: ContextCard): ContextCard => {
    const { card } = one;
    if (leftOut.has(card.id)) return { ...one, card: { ...card, isLeftOut: true } };
    return referred.has(card.id) ? { ...one, card: toReference(card) } : one;
  };
  return new Map(
    [...contexts].map(([boxId, cards]) => [boxId, boxId === turn.contextBoxId ? cards.map(place) : cards]),
  );
}
