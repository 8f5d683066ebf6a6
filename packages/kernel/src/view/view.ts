/**
 * The view: the messages that a model sees in its turn. A pure function from rows to messages; the same rows give the
 * same bytes.
 * Source: docs/reference/views.md.
 *
 * V1  Order: the profile's instructions · the state of the last anchor (none for the bootstrap anchor) · this turn's
 *     context, if its `turn.started` is before that anchor · the entries after the anchor in tape order, each
 *     `turn.started` replaced by its context: inherited cards, parent line, packed arguments, notice of few steps left.
 * V2  A card enters once, at its first place. `metadata.context === false` hides it. Only the card's role counts.
 * V3  A step (thought, calls, results of this agent) is one unit. It is placed where it began, and its results follow
 *     its calls directly, so that anything written meanwhile, even an anchor, comes after the results. If any part of a
 *     step is after the anchor, all of it is shown. An anchor written while calls are open therefore follows the step
 *     it cut: first that step, then the anchor's state, then this turn's context.
 * V4  Only the steps of this agent and of its clone source keep the form of calls and results. Earlier turns and clones
 *     keep it only for tools that this turn is offered. Other calls and results are quoted user text that names the
 *     author.
 * V5  A call without a result is answered by a fixed text. A result whose call is not shown before it is left out. No
 *     content is dropped for its status. A turn that ended before it began shows nothing. Entries of other turns added
 *     after this turn has begun are quoted at their place. An anchor is an assistant message; the anchor of another
 *     agent is quoted user text that names the author.
 * V6  Every prompt satisfies the strictest provider (see `checkMessages`). Fillers are fixed texts. `[context]`
 *     precedes a first assistant message. `[continue]` precedes a step's output that would follow assistant text. Once
 *     this turn has begun, `[continue]` also follows any assistant text where a prompt may have ended.
 * V7  Within a turn, prompt n is a prefix of prompt n + 1, element by element, until an anchor is written between them.
 *     The messages for an entry depend only on this turn's start and on earlier entries. An open step of this turn is
 *     never in a prompt.
 * V8  A compaction anchor is placed where it cuts (compaction.ts): its state, then this turn's context, then the
 *     summary and the steps that it keeps. Cards that it refers to show a reference in place of their words.
 * V9  A provider's attachment to an answer is in the message of that answer. It is shown only to this agent (also for
 *     the steps of its clone source) and only to the model that gave the answer. It is shown only with all calls of the
 *     answer, since signatures cover the whole answer. Otherwise it is left out, and the manifest gives the reason.
 */

import {
  type BoxId,
  isJsonObject,
  type JsonValue,
  KernelError,
  type TurnId,
  tryParseId,
} from '../base/index.js';
import type { Message } from '../card/index.js';
import { CARD_TYPES, type Card, estimateTokens, providerDataBytes } from '../card/index.js';
import { contextContract } from '../model/index.js';
import { CONTEXT_NOTICE, isBlank, parentOf } from '../render/render.js';
import { BOOTSTRAP_ANCHOR, type TapeEntry, TURN_STARTED } from '../tape/index.js';
import { EXPAND_TOOL, mayExpand, placeCompaction } from './compaction.js';
import { type ContextCard, instructionOf, toolsOf, type ViewRows, writeContextCards } from './context.js';
import { buildManifest, type MessageOrigin, type ViewManifest } from './manifest.js';
import {
  hasNoTurns,
  isResult,
  omit,
  type Placed,
  type Prompt,
  push,
  pushContinue,
  pushNotice,
  startPrompt,
  writeCard,
  writeStep,
} from './prompt.js';
import { findSteps, isSplitAt, placeOnTape, type TapeStep } from './steps.js';

/** The agents that a view of these rows may name: parents, and authors of its cards other than the reader. */
export function agentsIn({
  entries,
  contexts,
  turn,
}: Pick<ViewRows, 'entries' | 'contexts' | 'turn'>): ReadonlySet<string> {
  const ids = new Set<string>();
  const add = (card: Card): void => {
    ids.add(card.authorId);
    const parent = card.type === CARD_TYPES.parentPointer ? parentOf(card.content) : undefined;
    if (parent !== undefined) ids.add(parent);
  };
  for (const { card } of entries) if (card !== null) add(card);
  for (const cards of contexts.values()) for (const { card } of cards) add(card);
  ids.delete(turn.agentId);
  return ids;
}

export interface View {
  readonly messages: readonly Message[];
  /** The exact source of each message, by index, for `why` and for tests. The manifest is the form to store. */
  readonly origins: readonly MessageOrigin[];
  readonly manifest: ViewManifest;
  /** For the messages alone, without the tools. */
  readonly estimateTokens: number;
  /** Index of the first message of this turn: of its context, or of a step that the last anchor cut (V3). */
  readonly firstMessage: number;
  /**
   * Number of messages up to the end of this turn's inherited context, which siblings share; undefined when the view
   * shows no inherited cards.
   */
  readonly sharedMessages: number | undefined;
  /** Position of the turn's `turn.started` on the tape; undefined when the rows do not reach back that far. */
  readonly startPosition: number | undefined;
  readonly contextBoxId: BoxId;
  /** This turn's own instruction: text, or the JSON that was given. Null when its context has no instruction. */
  readonly instruction: JsonValue;
}

interface Writer {
  readonly rows: ViewRows;
  readonly prompt: Prompt;
  /** The step of each entry, by index of the entries. */
  readonly steps: readonly (TapeStep | undefined)[];
  readonly profileTools: ReadonlySet<string>;
  readonly begunTurns: Set<string>;
  /** True once this turn's context is written: from there on, prompts of this turn may end. */
  hasBegun: boolean;
  firstMessage: number | undefined;
  /** The step written last; undefined when the last item was not a step. */
  lastStep: TapeStep | undefined;
}

/** @throws KernelError `internal_error` when the rows lack the last anchor or a named context box. */
export function buildView(given: ViewRows): View {
  const rows = placeCompaction(given);
  const { turn, entries, lastAnchorPosition } = rows;
  const startPosition = startOf(turn.turnId, entries);
  const writer: Writer = {
    rows,
    prompt: startPrompt({ agentId: turn.agentId, model: rows.profile.model, names: rows.names }),
    steps: findSteps(entries, { ...turn, startPosition }),
    // `expand` is offered while it can read content that was left out.
    profileTools: new Set([...toolsOf(rows.profile), ...(mayExpand(rows) ? [EXPAND_TOOL] : [])]),
    begunTurns: new Set(),
    hasBegun: false,
    firstMessage: undefined,
    lastStep: undefined,
  };
  const { prompt } = writer;
  writeSystem(prompt, rows);
  const next = writeUntilAnchor(writer);
  if (startPosition <= lastAnchorPosition) writeContext(writer, { ...turn, stepsLeft: null });
  for (let at = next; at < entries.length; at += 1) writeEntry(writer, at);
  pushContinue(prompt);

  const { messages, origins, omissions } = prompt;
  const range = { anchor: lastAnchorPosition, head: given.entries.at(-1)?.position ?? lastAnchorPosition };
  return {
    messages,
    origins,
    manifest: buildManifest(range, origins, { omissions, names: prompt.shownNames }),
    estimateTokens: estimateMessages(messages),
    firstMessage: writer.firstMessage ?? messages.length,
    sharedMessages: findShared(origins, turn.contextBoxId),
    contextBoxId: turn.contextBoxId,
    startPosition: Number.isFinite(startPosition) ? startPosition : undefined,
    instruction: instructionOf(contextOf(rows, turn.contextBoxId)),
  };
}

function findShared(origins: readonly MessageOrigin[], boxId: BoxId): number | undefined {
  const last = origins.findLastIndex(
    ({ source }) => source.kind === 'context' && source.boxId === boxId && source.rule === 'inherited',
  );
  return last === -1 ? undefined : last + 1;
}

function writeSystem(prompt: Prompt, { profile, contextLimit }: ViewRows): void {
  const words = isBlank(profile.instructions) ? [] : [profile.instructions];
  const contract = contextLimit === undefined ? [] : [contextContract(contextLimit)];
  if (words.length + contract.length === 0) return;
  const source = { kind: 'profile', ...(contextLimit === undefined ? {} : { contextLimit }) } as const;
  push(prompt, { role: 'system', content: [...words, ...contract].join('\n\n') }, source, []);
}

/**
 * Writes the steps that the last anchor cut, then the anchor's state (V3). Returns the index of the first entry after
 * the anchor.
 */
function writeUntilAnchor(writer: Writer): number {
  const { prompt, steps } = writer;
  const { entries, lastAnchorPosition } = writer.rows;
  let at = 0;
  for (; at < entries.length; at += 1) {
    const entry = entries[at];
    if (entry === undefined || entry.position >= lastAnchorPosition) break;
    const step = steps[at];
    if (step !== undefined && isSplitAt(step, lastAnchorPosition)) {
      if (step.first !== entry.position) continue;
      if (step.turnId === writer.rows.turn.turnId) writer.firstMessage ??= prompt.messages.length;
      writeTapeStep(writer, step);
    } else if (entry.card !== null) omit(prompt, placeOnTape(entry, entry.card), 'before_anchor');
  }
  const anchor = entries[at];
  if (anchor?.position === lastAnchorPosition && anchor.kind === 'anchor') {
    writeAnchor(prompt, anchor);
    return at + 1;
  }
  if (lastAnchorPosition > 1) {
    throw new KernelError('internal_error', {
      message: `The rows of the view lack the last anchor, at position ${lastAnchorPosition}.`,
      details: { turnId: writer.rows.turn.turnId, lastAnchorPosition },
    });
  }
  return at;
}

function writeAnchor(prompt: Prompt, entry: TapeEntry): void {
  if (entry.card === null) return;
  const placed = placeOnTape(entry, entry.card);
  if (entry.position === 1 && entry.anchorName === BOOTSTRAP_ANCHOR) omit(prompt, placed, 'bootstrap');
  else writeCard(prompt, placed);
}

function writeEntry(writer: Writer, at: number): void {
  const { steps } = writer;
  const entry = writer.rows.entries[at];
  if (entry === undefined) return;
  if (entry.kind === 'event') writeEvent(writer, entry);
  if (entry.card === null) return;
  const step = steps[at];
  if (step !== undefined && step.first !== entry.position) return; // its step has written it
  closeBefore(writer, entry);
  const placed = placeOnTape(entry, entry.card);
  if (step !== undefined) writeTapeStep(writer, step);
  else writeLoneCard(writer, entry, placed);
  writer.lastStep = step;
}

/**
 * V7: once this turn has begun, a prompt may have ended after any assistant text, and then with `[continue]`. The
 * exception is the place between an answer without calls and the reminder committed with it, in the same step.
 */
function closeBefore({ prompt, hasBegun, lastStep }: Writer, entry: TapeEntry): void {
  const answer = lastStep?.calls.length === 0 ? lastStep : undefined;
  const isReminder = answer?.turnId === entry.turnId && answer?.number === entry.step;
  if (hasBegun && !isReminder) pushContinue(prompt);
}

function writeTapeStep({ prompt, profileTools, rows }: Writer, step: TapeStep): void {
  const isOwnTurn = step.turnId === rows.turn.turnId;
  writeStep(prompt, step, (name) => isOwnTurn || profileTools.has(name));
}

/** Writes a card outside any step. A result is written only when its call was shown before it (V5). */
function writeLoneCard({ prompt, begunTurns }: Writer, { turnId }: TapeEntry, placed: Placed): void {
  const isOrphan = isResult(placed) && !prompt.callers.has(placed.card.content.tool_call_id);
  const isUnasked = turnId !== null && !begunTurns.has(turnId) && endsWithoutStep(placed.card);
  if (isOrphan) omit(prompt, placed, 'orphan_result');
  else if (isUnasked) omit(prompt, placed, 'turn_not_begun');
  else writeCard(prompt, placed);
}

/**
 * Whether the kernel wrote this card for a turn that ended before its first step, for example by a cancel. No model
 * wrote it.
 */
function endsWithoutStep({ type, content, metadata }: Card): boolean {
  if (type !== CARD_TYPES.deliverable || metadata.status === 'success' || content.kind !== 'json')
    return false;
  return isJsonObject(content.data) && content.data.steps === 0;
}

function writeEvent(writer: Writer, { payload }: TapeEntry): void {
  const started = readTurnStarted(payload);
  if (started === undefined || writer.begunTurns.has(started.turnId)) return;
  const { turn } = writer.rows;
  const contextBoxId = started.turnId === turn.turnId ? turn.contextBoxId : started.contextBoxId;
  writeContext(writer, { ...started, contextBoxId });
}

interface TurnStarted {
  readonly turnId: TurnId;
  readonly contextBoxId: BoxId;
  readonly stepsLeft: number | null;
}

/** Reads the payload of a `turn.started` event; undefined for any other event. */
function readTurnStarted(payload: JsonValue | null): TurnStarted | undefined {
  if (!isJsonObject(payload) || payload.name !== TURN_STARTED || !isJsonObject(payload.data))
    return undefined;
  const { turn_id: turn, context_box_id: box, steps_left: stepsLeft } = payload.data;
  const turnId = typeof turn === 'string' ? tryParseId<'turn'>(turn) : undefined;
  const contextBoxId = typeof box === 'string' ? tryParseId<'box'>(box) : undefined;
  if (turnId === undefined || contextBoxId === undefined) return undefined;
  return { turnId, contextBoxId, stepsLeft: typeof stepsLeft === 'number' ? stepsLeft : null };
}

/** The position where a turn begins; negative infinity when its `turn.started` is not among the entries. */
function startOf(turnId: TurnId, entries: readonly TapeEntry[]): number {
  const start = entries.find(
    ({ kind, payload }) => kind === 'event' && readTurnStarted(payload)?.turnId === turnId,
  );
  return start?.position ?? Number.NEGATIVE_INFINITY;
}

function contextOf(rows: ViewRows, boxId: BoxId): readonly ContextCard[] {
  const context = rows.contexts.get(boxId);
  if (context !== undefined) return context;
  throw new KernelError('internal_error', {
    message: `The rows of the view lack the context box ${boxId}.`,
    details: { turnId: rows.turn.turnId, boxId },
  });
}

/** Writes the context of a turn where the turn begins. A prompt may end after this turn's own context. */
function writeContext(writer: Writer, started: TurnStarted): void {
  const { prompt, rows } = writer;
  const isOwnTurn = started.turnId === rows.turn.turnId;
  if (writer.hasBegun) pushContinue(prompt);
  if (isOwnTurn) writer.firstMessage ??= prompt.messages.length;
  writer.begunTurns.add(started.turnId);
  writer.lastStep = undefined;
  const { contextBoxId: boxId, stepsLeft } = started;
  const { profile } = rows;
  const cards = contextOf(rows, boxId);
  writeContextCards(prompt, { boxId, stepsLeft, cards, profile, tools: writer.profileTools });
  if (!isOwnTurn) return;
  writer.hasBegun = true;
  if (hasNoTurns(prompt)) pushNotice(prompt, CONTEXT_NOTICE, 'context');
}

/** The cost of a message beyond its words, in bytes; about four tokens. */
const MESSAGE_BYTES = 16;

export function estimateMessages(messages: readonly Message[]): number {
  let bytes = 0;
  for (const message of messages) {
    bytes += MESSAGE_BYTES + Buffer.byteLength(message.content);
    if (message.role !== 'assistant') continue;
    bytes += providerDataBytes(message.provider);
    for (const call of message.toolCalls ?? []) {
      bytes += MESSAGE_BYTES + call.name.length + Buffer.byteLength(JSON.stringify(call.arguments));
    }
  }
  return estimateTokens(bytes);
}
