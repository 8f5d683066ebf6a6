/** Finds the cards that form steps before anything is written, so that each step can be written where it began. */

import type { AgentId, TurnId } from '../base/index.js';
import type { Card } from '../card/index.js';
import type { TapeEntry } from '../tape/index.js';
import {
  type CallCard,
  isCall,
  isResult,
  isThought,
  type Placed,
  type ResultCard,
  type Step,
} from './prompt.js';

interface OpenStep extends Step {
  readonly calls: OpenCall[];
}

interface OpenCall {
  readonly step: OpenStep;
  readonly call: Placed<CallCard>;
  result: Placed<ResultCard> | undefined;
}

/** A step on the tape: its turn, its number, and the positions of its first and last entry. */
export interface TapeStep extends Step {
  readonly turnId: TurnId;
  readonly number: number;
  readonly first: number;
  readonly last: number;
}

interface OpenTapeStep extends OpenStep, Omit<TapeStep, 'calls' | 'last'> {
  last: number;
}

/** The calls that may still be answered, by id; the later of two calls with the same id wins. */
type OpenCalls = Map<string, OpenCall>;

function addCall(openCalls: OpenCalls, step: OpenStep, call: Placed<CallCard>): void {
  const open: OpenCall = { step, call, result: undefined };
  step.calls.push(open);
  openCalls.set(call.card.content.tool_call_id, open);
}

/**
 * Answers the call that the result names. False when no such call is open, or when the open call belongs to another
 * step.
 */
function addResult(openCalls: OpenCalls, result: Placed<ResultCard>, step?: OpenStep): boolean {
  const open = openCalls.get(result.card.content.tool_call_id);
  if (open === undefined || open.result !== undefined) return false;
  if (step !== undefined && open.step !== step) return false;
  open.result = result;
  return true;
}

export const placeOnTape = ({ position, anchorName }: TapeEntry, card: Card): Placed => ({
  card,
  source: { kind: 'tape', from: position, to: position },
  ...(anchorName === null ? {} : { anchorName }),
});

/** True when an anchor at this position was written while the step's calls were open. */
export const isSplitAt = (step: TapeStep, position: number): boolean =>
  step.first < position && position < step.last;

/**
 * Finds the steps of this agent: for each entry its step, or undefined when it belongs to no step. A result belongs to
 * the step whose turn and number it carries. Entries that other turns add at or after `startPosition`, where the
 * reading turn began, belong to no step. A step of theirs may still be open, and messages that this turn has read must
 * not change (V5, V7).
 */
export function findSteps(
  entries: readonly TapeEntry[],
  reader: { readonly turnId: TurnId; readonly agentId: AgentId; readonly startPosition: number },
): readonly (TapeStep | undefined)[] {
  const steps = new Map<string, OpenTapeStep>();
  const openCalls: OpenCalls = new Map();
  return entries.map((entry) => {
    const { card, position, turnId, step: number } = entry;
    if (card === null || turnId === null || number === null) return undefined;
    if (turnId !== reader.turnId && position >= reader.startPosition) return undefined;
    const placed = placeOnTape(entry, card);
    const key = `${turnId}:${number}`;
    const known = steps.get(key);
    if (isResult(placed)) {
      const isAnswer = known !== undefined && addResult(openCalls, placed, known);
      return isAnswer ? extend(known, position) : undefined;
    }
    if (card.authorId !== reader.agentId) return undefined;
    const thought = known === undefined && isThought(placed) ? placed : undefined;
    if (thought === undefined && !isCall(placed)) return undefined;
    const step = known ?? {
      turnId,
      number,
      first: position,
      last: position,
      thought,
      calls: [],
    };
    steps.set(key, step);
    if (isCall(placed)) addCall(openCalls, step, placed);
    return extend(step, position);
  });
}

function extend(step: OpenTapeStep, position: number): TapeStep {
  step.last = position;
  return step;
}

/** A thought, or a call with a provider's attachment: an answer begins with such a card. */
const beginsAnswer = (placed: Placed): boolean => !isCall(placed) || placed.card.providerData !== undefined;

/**
 * Finds the steps of a clone's source among its inherited cards: a thought, the calls that follow it, and their results
 * wherever they are. Calls without a thought also form a step. The other cards stay between the steps.
 */
export function groupInherited(cards: readonly Placed[]): readonly (Placed | Step)[] {
  const items: (Placed | Step)[] = [];
  const openCalls: OpenCalls = new Map();
  let current: OpenStep | undefined;
  for (const placed of cards) {
    const isNative = placed.isNative === true;
    if (isNative && (isCall(placed) || isThought(placed))) {
      if (current === undefined || beginsAnswer(placed)) {
        current = { thought: isCall(placed) ? undefined : placed, calls: [] };
        items.push(current);
      }
      if (isCall(placed)) addCall(openCalls, current, placed);
      continue;
    }
    current = undefined;
    const isAnswer = isNative && isResult(placed) && addResult(openCalls, placed);
    if (!isAnswer) items.push(placed);
  }
  return items;
}
