/**
 * What a compaction is and how a view reads it. It is an anchor like any other that says besides, in its card's metadata,
 * what of the history in front of it is still shown, and how. Source: docs/reference/views.md, "Overflow".
 *
 * X1  The anchor stands where it cuts: behind the history that it leaves out, in front of the steps that it keeps.
 * X2  A kept step is kept whole; of a card that is referred to, the prompt shows a reference in place of its words.
 * X3  What is left out is linked: by the summary, or by its reference. Nothing is copied, and nothing is lost.
 * X4  A context is shown in part only to the turn it belongs to: what another turn is given anew, it sees.
 * X5  A handoff that this turn makes afterwards says it again: its context is shown behind every anchor.
 */

import { type CardId, isJsonObject, type JsonObject, type JsonValue, tryParseId } from '../base/index.js';
import { CARD_TYPES, type Card, type CardContent, estimateTokens } from '../card/index.js';
import { renderBody } from '../render/render.js';
import type { TapeEntry } from '../tape/index.js';
import type { ContextCard, ViewRows } from './context.js';

/** Brings back what a compaction has left out. */
export const EXPAND_TOOL = 'expand';

export interface Compaction {
  /** The first position in front of the anchor that is still shown; null: none. */
  readonly keepFrom: number | null;
  /** Cards that are shown as references. */
  readonly references: readonly CardId[];
  /** Cards of the turn's context that are not shown. */
  readonly leftOut: readonly CardId[];
  /** The card that stands for what is not shown at all; null when there is nothing of that kind. */
  readonly summary: CardId | null;
}

/** As the metadata of the anchor's card hold it. */
export const compactionMetadata = ({ keepFrom, references, leftOut, summary }: Compaction): JsonObject => ({
  compaction: { v: 1, keep_from: keepFrom, references: [...references], left_out: [...leftOut], summary },
});

const idsOf = (value: JsonValue | undefined): readonly CardId[] =>
  (Array.isArray(value) ? value : []).flatMap((id) => idOf(id) ?? []);

const idOf = (value: JsonValue | undefined): CardId | null =>
  (typeof value === 'string' ? tryParseId<'card'>(value) : undefined) ?? null;

/** Reads it off an anchor's card; undefined for every other anchor. */
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
 * The metadata of another anchor that the same turn writes later, so that what was left out of its context stays so (X5);
 * undefined when its context was left as it is.
 */
export function carryCompaction(from: Pick<Card, 'metadata'>): JsonObject | undefined {
  const { references = [], leftOut = [] } = readCompaction(from) ?? {};
  if (references.length + leftOut.length === 0) return undefined;
  return compactionMetadata({ keepFrom: null, references, leftOut, summary: null });
}

/** How much of its words a reference shows. */
const PREVIEW = 600;

/** What a card says, in bytes. */
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

/** The card as a compacted prompt shows it: the same card, of which only the beginning is told. No model has said that. */
export const toReference = (card: Card): Card => ({
  ...card,
  role: card.role === 'assistant' ? 'user' : card.role,
  content: referenceContent(card),
  isReference: true,
});

/** Whether a card of a step may be shown as a reference: others hold the step together, or are what it was asked. */
export const mayBeReferred = ({ content, type }: Card): boolean =>
  content.kind !== 'tool_call' &&
  content.kind !== 'fields_schema' &&
  type !== CARD_TYPES.instruction &&
  type !== CARD_TYPES.parentPointer &&
  type !== CARD_TYPES.anchor &&
  type !== CARD_TYPES.thought;

/**
 * The same of a card of the turn's context. Of what was inherited, everything but the calls of a clone's source, which
 * their results have to follow; of the turn's own arguments, what neither says nor binds what it is to do.
 */
export const mayBeReferredInContext = ({ card, rule, native }: ContextCard): boolean => {
  if (rule === 'parent' || card.type === CARD_TYPES.parentPointer) return false;
  if (rule === 'argument') return mayBeReferred(card);
  return native !== true || card.content.kind !== 'tool_call';
};

/** Whether the turn may `expand`: its last anchor is a compaction, or a context shows what a compaction has left out for whom it was cloned from. */
export const mayExpand = (rows: Pick<ViewRows, 'entries' | 'lastAnchorPosition' | 'contexts'>): boolean =>
  compactionOf(rows) !== undefined ||
  [...rows.contexts.values()].some((cards) => cards.some(({ isExpandable }) => isExpandable === true));

function compactionOf({ entries, lastAnchorPosition }: Pick<ViewRows, 'entries' | 'lastAnchorPosition'>) {
  const anchor = entries.find(({ position, kind }) => position === lastAnchorPosition && kind === 'anchor');
  const compaction = anchor?.card == null ? undefined : readCompaction(anchor.card);
  return anchor === undefined || compaction === undefined ? undefined : { anchor, compaction };
}

/** The rows as their last anchor wants them read; the same rows when it is no compaction. */
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

/** X4: what the compaction says of a context is said of the turn's that it was made for. */
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
