/**
 * Decides which parts of a prompt that is too long a compaction keeps. Pure: the same rows and target give the same
 * plan.
 * Source: docs/reference/views.md, "Overflow".
 *
 * P1  The instruction, the result fields and the parent line stay unchanged.
 * P2  Inherited cards of the turn's context become references until the context fits: the largest first, and the oldest
 *     of equally large cards. Packed arguments other than the instruction follow only after them.
 * P3  The newest steps of the turn's own history stay, whole and without a gap. Large results in them become
 *     references. A call and its result are never separated.
 * P4  A single summary links all other cards that the prompt showed, and names the newest of them. No model is called.
 * P5  Every compaction writes a summary, even if only for the task. The summary, and each later summary, holds the
 *     tasks of this turn and of turns that are no longer shown, so that later turns know them.
 */

import type { BoxId, CardId } from '../base/index.js';
import { agentLabel, isJsonObject, type JsonValue } from '../base/index.js';
import { CARD_TYPES, type Card, estimateTokens, providerDataBytes } from '../card/index.js';
import { renderBody } from '../render/render.js';
import { BOOTSTRAP_ANCHOR, type TapeEntry, TURN_STARTED } from '../tape/index.js';
import type { ContextCard, ViewRows } from '../view/index.js';
import {
  bodyBytes,
  EXPAND_TOOL,
  findSteps,
  isHidden,
  mayBeReferred,
  mayBeReferredInContext,
  toReference,
} from '../view/index.js';

export interface CompactionPlan {
  /** The first position of the tape before the anchor that is still shown; null when none is. */
  readonly keepFrom: number | null;
  /** The number of kept steps of the turn. */
  readonly keptSteps: number;
  readonly references: readonly CardId[];
  /** Cards of the turn's context that are not shown. */
  readonly leftOut: readonly CardId[];
  /** The ids of the summarized cards, in the order in which the prompt showed them. */
  readonly summarized: readonly CardId[];
  /** The instructions whose text is in the summary, in the order of their turns. */
  readonly tasks: readonly CardId[];
  /** The text of the summary; undefined when there is neither a task nor a card to summarize. */
  readonly digest: string | undefined;
}

/**
 * A result above this size becomes a reference. In a small window the threshold is smaller: a fraction of the target.
 */
const SPILL_TOKENS = 4_096;
/** The most that the context may use of the target, so that steps find room after it. */
const CONTEXT_SHARE = 3 / 4;
/** The most that a single result, or all lines of the digest, may use of the target. */
const PART = 1 / 8;
/** The overhead of each message. */
const MESSAGE_TOKENS = 4;
const LINE_PREVIEW = 200;
/** How many characters of an anchor a line shows: its author chose what should be remembered. */
const ANCHOR_PREVIEW = 2_000;

const costOf = (card: Card): number =>
  isHidden(card)
    ? 0
    : MESSAGE_TOKENS + estimateTokens(bodyBytes(card) + providerDataBytes(card.providerData));
const savingOf = (card: Card): number => costOf(card) - costOf(toReference(card));

interface ContextPlan {
  readonly references: readonly CardId[];
  /** The omitted cards in the order of the context. */
  readonly leftOut: readonly Card[];
  /** The estimated tokens of the remaining context. */
  readonly tokens: number;
}

/** P1, P2: decides which cards of the context become references or are left out. */
function planContext(context: readonly ContextCard[], tokens: number): ContextPlan {
  const costs = new Map(context.map(({ card }) => [card.id, costOf(card)]));
  let total = sumOf(costs.values());
  const candidates = context
    .map((one, index) => ({ ...one, index, saving: mayBeReferredInContext(one) ? savingOf(one.card) : 0 }))
    .filter(({ saving }) => saving > 0)
    .sort(
      (a, b) =>
        Number(a.rule === 'argument') - Number(b.rule === 'argument') ||
        b.saving - a.saving ||
        a.index - b.index,
    );
  const referred = new Set<CardId>();
  for (const { card, saving } of candidates) {
    if (total <= tokens) break;
    referred.add(card.id);
    costs.set(card.id, costOf(card) - saving);
    total -= saving;
  }
  const leftOut = new Set<CardId>();
  const results = resultsByCall(context);
  for (const { card } of context.filter(({ rule }) => rule === 'inherited')) {
    if (total <= tokens) break;
    const { content } = card;
    const answers = content.kind === 'tool_call' ? (results.get(content.tool_call_id) ?? []) : [];
    for (const { id } of [card, ...answers]) {
      if (leftOut.has(id)) continue;
      leftOut.add(id);
      total -= costs.get(id) ?? 0;
    }
  }
  return {
    references: [...referred].filter((id) => !leftOut.has(id)),
    leftOut: context.flatMap(({ card }) => (leftOut.has(card.id) && !isHidden(card) ? [card] : [])),
    tokens: total,
  };
}

const sumOf = (values: Iterable<number>): number => [...values].reduce((sum, value) => sum + value, 0);

/** The inherited results of a context, by the call that they answer. */
function resultsByCall(context: readonly ContextCard[]): ReadonlyMap<string, readonly Card[]> {
  const results = new Map<string, Card[]>();
  for (const { card, rule } of context) {
    if (rule !== 'inherited' || card.content.kind !== 'tool_result') continue;
    const { tool_call_id: callId } = card.content;
    results.set(callId, [...(results.get(callId) ?? []), card]);
  }
  return results;
}

/** Entries that stay or go together: a step with all entries between its first and its last. */
interface Unit {
  readonly entries: readonly TapeEntry[];
  readonly steps: number;
}

function unitsOf(rows: ViewRows, from: number): readonly Unit[] {
  const steps = findSteps(rows.entries, { ...rows.turn, startPosition: from });
  const units: { entries: TapeEntry[]; steps: number; last: number }[] = [];
  for (const [index, entry] of rows.entries.entries()) {
    if (entry.position <= from) continue;
    const step = steps[index];
    // A step that an earlier anchor has cut began before `from`.
    if (step !== undefined && step.first <= from) continue;
    const last = Math.max(step?.last ?? 0, entry.position);
    const isFirst = step?.first === entry.position;
    const open = units.at(-1);
    if (open !== undefined && entry.position <= open.last) {
      open.entries.push(entry);
      open.last = Math.max(open.last, last);
      open.steps += isFirst ? 1 : 0;
    } else units.push({ entries: [entry], steps: isFirst ? 1 : 0, last });
  }
  return units;
}

/** P3: the newest units that fit, and those of their cards that become references. */
function keepUnits(
  units: readonly Unit[],
  { tokens, spillAbove }: { readonly tokens: number; readonly spillAbove: number },
): { kept: readonly Unit[]; spilled: Card[] } {
  const kept: Unit[] = [];
  const spilled: Card[] = [];
  let left = tokens;
  for (const unit of units.toReversed()) {
    const cards = unit.entries.flatMap(({ card }) => card ?? []);
    const large = cards.filter(
      (card) => mayBeReferred(card) && costOf(card) > spillAbove && savingOf(card) > 0,
    );
    const cost = cards.reduce(
      (sum, card) => sum + costOf(large.includes(card) ? toReference(card) : card),
      0,
    );
    if (cost > left) break;
    left -= cost;
    kept.unshift(unit);
    spilled.unshift(...large);
  }
  return { kept, spilled };
}

function startedBy(payload: JsonValue | null): { turnId: string; boxId: BoxId } | undefined {
  if (!isJsonObject(payload) || payload.name !== TURN_STARTED || !isJsonObject(payload.data))
    return undefined;
  const { turn_id: turnId, context_box_id: boxId } = payload.data;
  return { turnId: String(turnId), boxId: boxId as BoxId };
}

/** P4: the cards that the prompt no longer shows, in the prompt's order. */
function droppedCards(
  rows: ViewRows,
  { kept, leftOut }: { readonly kept: ReadonlySet<TapeEntry>; readonly leftOut: readonly Card[] },
): readonly Card[] {
  const own = rows.contexts.get(rows.turn.contextBoxId) ?? [];
  const shown = new Set<CardId>(own.map(({ card }) => card.id));
  for (const { card } of kept) if (card !== null) shown.add(card.id);
  const dropped: Card[] = [...leftOut];
  const add = (card: Card): void => {
    if (isHidden(card) || shown.has(card.id)) return;
    shown.add(card.id);
    dropped.push(card);
  };
  for (const entry of rows.entries) {
    if (kept.has(entry) || entry.anchorName === BOOTSTRAP_ANCHOR) continue;
    if (entry.card !== null) add(entry.card);
    const started = entry.kind === 'event' ? startedBy(entry.payload) : undefined;
    if (started === undefined || started.turnId === rows.turn.turnId) continue;
    for (const { card } of rows.contexts.get(started.boxId) ?? []) add(card);
  }
  return dropped;
}

function digestLine(card: Card, names: ReadonlyMap<string, string>): string {
  const words = renderBody(card.content).replace(/\s+/g, ' ').trim();
  const preview = words.slice(0, card.type === CARD_TYPES.anchor ? ANCHOR_PREVIEW : LINE_PREVIEW);
  return `\n- ${card.type} by ${agentLabel(card.authorId, names) ?? card.authorId}: ${JSON.stringify(preview.toWellFormed())} (card ${card.id})`;
}

const TASK = '\n- the task was: ';
const EARLIER_TASK = '\n- an earlier task was: ';

/** A task for the summary. `cardId`: its instruction, if the prompt shows or showed it. */
interface Task {
  readonly words: string;
  readonly cardId: CardId | null;
}

function instructionsOf(context: readonly ContextCard[]): readonly Task[] {
  const task = context.find(({ card, rule }) => rule === 'argument' && card.type === CARD_TYPES.instruction);
  if (task === undefined || isHidden(task.card)) return [];
  const words = renderBody(task.card.content).replace(/\s+/g, ' ').trim();
  return [{ words: JSON.stringify(words.slice(0, ANCHOR_PREVIEW).toWellFormed()), cardId: task.card.id }];
}

/** The tasks in the summary of an earlier compaction. */
function tasksIn({ type, authorId, content }: Card): readonly Task[] {
  if (type !== CARD_TYPES.summary || authorId !== 'kernel' || content.kind !== 'text') return [];
  return content.text.split('\n').flatMap((line) => {
    const start = [EARLIER_TASK, TASK].find((mark) => `\n${line}`.startsWith(mark));
    return start === undefined ? [] : [{ words: line.slice(start.length - 1), cardId: null }];
  });
}

/** P5: the tasks of turns that the prompt no longer shows, oldest first. */
function earlierTasks(rows: ViewRows, dropped: ReadonlySet<CardId>): readonly Task[] {
  return rows.entries.flatMap(({ card, kind, payload }) => {
    if (card !== null) return dropped.has(card.id) ? tasksIn(card) : [];
    const started = kind === 'event' ? startedBy(payload) : undefined;
    if (started === undefined || started.turnId === rows.turn.turnId) return [];
    return instructionsOf(rows.contexts.get(started.boxId) ?? []).filter(
      ({ cardId }) => cardId !== null && dropped.has(cardId),
    );
  });
}

/** The lines of the tasks: this turn's own task, and the newest earlier tasks that fit. */
function writeTasks(
  own: readonly Task[],
  { earlier, tokens }: { readonly earlier: readonly Task[]; readonly tokens: number },
): { readonly text: string; readonly cardIds: readonly CardId[] } {
  const lines = own.map(({ words, cardId }) => ({ line: `${TASK}${shorten(words, tokens * 4)}`, cardId }));
  let left = tokens - sumOf(lines.map(({ line }) => estimateTokens(Buffer.byteLength(line))));
  for (const { words, cardId } of earlier.toReversed()) {
    const line = `${EARLIER_TASK}${words}`;
    left -= estimateTokens(Buffer.byteLength(line));
    if (left < 0) break;
    lines.unshift({ line, cardId });
  }
  return {
    text: lines.map(({ line }) => line).join(''),
    cardIds: lines.flatMap(({ cardId }) => cardId ?? []),
  };
}

/** A JSON string with at most `length` characters of its content. */
const shorten = (text: string, length: number): string =>
  text.length - 2 <= length
    ? text
    : JSON.stringify((JSON.parse(text) as string).slice(0, length).toWellFormed());

/** The tasks and the newest lines that fit. All cards are linked, with or without a line. */
function writeDigest(
  cards: readonly Card[],
  {
    tasks,
    summaryId,
    tokens,
    names = new Map(),
  }: {
    readonly tasks: ReturnType<typeof writeTasks>;
    readonly summaryId: CardId;
    readonly tokens: number;
    readonly names?: ReadonlyMap<string, string> | undefined;
  },
): string {
  const call = `${EXPAND_TOOL}(${JSON.stringify({ card_id: summaryId })})`;
  if (cards.length === 0)
    return `[The conversation before this was shortened to make room; ${call} reads what was asked in full]${tasks.text}`;
  const lines: string[] = [];
  const written = new Set<CardId>(tasks.cardIds);
  let left = tokens - estimateTokens(Buffer.byteLength(tasks.text));
  for (const card of cards.toReversed()) {
    if (written.has(card.id)) continue;
    const line = digestLine(card, names);
    left -= estimateTokens(Buffer.byteLength(line));
    if (left < 0) break;
    lines.unshift(line);
    written.add(card.id);
  }
  const without = cards.filter(({ id }) => !written.has(id)).length;
  const head = `[Summary of ${cards.length} earlier cards, left out to make room; ${call} reads them all, with the id of one of them that one]`;
  return `${head}${tasks.text}${without === 0 ? '' : `\n- ${without} earlier ones`}${lines.join('')}`;
}

/** The position after which the turn's own entries begin: the turn's start or the last anchor, whichever is later. */
function ownFrom({ turn, entries, lastAnchorPosition }: ViewRows): number {
  const start = entries.find(
    ({ kind, payload }) => kind === 'event' && startedBy(payload)?.turnId === turn.turnId,
  );
  return Math.max(start?.position ?? 0, lastAnchorPosition);
}

/**
 * Plans a compaction of the prompt that these rows give.
 *
 * @param options.tokens - The most tokens that the messages may have, in the kernel's estimate; instructions and tools
 * are not included.
 * @param options.summaryId - The id that the summary will have.
 */
export function planCompaction(
  rows: ViewRows,
  options: { readonly tokens: number; readonly summaryId: CardId },
): CompactionPlan {
  const { tokens, summaryId } = options;
  const own = rows.contexts.get(rows.turn.contextBoxId) ?? [];
  const context = planContext(own, Math.floor(tokens * CONTEXT_SHARE));
  const part = Math.floor(tokens * PART);
  const { kept, spilled } = keepUnits(unitsOf(rows, ownFrom(rows)), {
    tokens: tokens - context.tokens - part,
    spillAbove: Math.min(SPILL_TOKENS, part),
  });
  const keptEntries = new Set(kept.flatMap((unit) => unit.entries));
  const dropped = droppedCards(rows, { kept: keptEntries, leftOut: context.leftOut });
  const tasks = writeTasks(instructionsOf(own), {
    earlier: earlierTasks(rows, new Set(dropped.map(({ id }) => id))),
    tokens: Math.floor(part / 2),
  });
  return {
    keepFrom: kept[0]?.entries[0]?.position ?? null,
    keptSteps: kept.reduce((sum, unit) => sum + unit.steps, 0),
    references: [...new Set([...context.references, ...spilled.map(({ id }) => id)])],
    leftOut: context.leftOut.map(({ id }) => id),
    summarized: dropped.map(({ id }) => id),
    tasks: tasks.cardIds,
    digest:
      dropped.length === 0 && tasks.text === ''
        ? undefined
        : writeDigest(dropped, { tasks, summaryId, tokens: part, names: rows.names }),
  };
}
