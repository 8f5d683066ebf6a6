/** Which cards form steps: found once, before anything is written, so that each step can be written where it began. */
import type { Card } from './card.js';
import type { AgentId, TurnId } from './ids.js';
import type { TapeEntry } from './tape.js';
import {
  type CallCard,
  isCall,
  isResult,
  isThought,
  type Placed,
  type ResultCard,
  type Step,
} from './view-prompt.js';

interface OpenCall {
  readonly call: Placed<CallCard>;
  result: Placed<ResultCard> | undefined;
}

interface OpenStep extends Step {
  readonly calls: OpenCall[];
  readonly openCalls: Map<string, OpenCall>;
}

/** A step on the tape: whose it is, its number, and the positions of its first and last entry. */
export interface TapeStep extends Step {
  readonly turnId: TurnId;
  readonly number: number;
  readonly first: number;
  readonly last: number;
}

interface OpenTapeStep extends OpenStep, Omit<TapeStep, 'calls' | 'last'> {
  last: number;
}

export const placeOnTape = ({ position }: TapeEntry, card: Card): Placed => ({
  card,
  source: { kind: 'tape', from: position, to: position },
});

/** True when an anchor at this position was written while the step's calls were open. */
export const isSplitAt = (step: TapeStep, position: number): boolean =>
  step.first < position && position < step.last;

/**
 * Finds the steps of this agent: for each entry the step it belongs to, undefined when it stands alone. A result belongs
 * to the step whose turn and number it carries. Entries that other turns add from `startPosition` on, where the turn that
 * reads began, belong to none: a step of theirs may still be open, and what this turn has read must not change (V5, V7).
 */
export function findSteps(
  entries: readonly TapeEntry[],
  reader: { readonly turnId: TurnId; readonly agentId: AgentId; readonly startPosition: number },
): readonly (TapeStep | undefined)[] {
  const steps = new Map<string, OpenTapeStep>();
  return entries.map((entry) => {
    const { card, position, turnId, step: number } = entry;
    if (card === null || turnId === null || number === null) return undefined;
    if (turnId !== reader.turnId && position >= reader.startPosition) return undefined;
    const placed = placeOnTape(entry, card);
    const key = `${turnId}:${number}`;
    const known = steps.get(key);
    if (isResult(placed))
      return known !== undefined && addResult(known, placed) ? extend(known, position) : undefined;
    if (card.authorId !== reader.agentId) return undefined;
    const hasThought = known === undefined && isThought(placed);
    if (!isCall(placed) && !hasThought) return undefined;
    const step = known ?? {
      ...{ turnId, number, first: position, last: position },
      ...{ thought: hasThought ? placed : undefined, calls: [], openCalls: new Map() },
    };
    steps.set(key, step);
    if (isCall(placed)) addCall(step, placed);
    return extend(step, position);
  });
}

function extend(step: OpenTapeStep, position: number): TapeStep {
  step.last = position;
  return step;
}

function addCall(step: OpenStep, call: Placed<CallCard>): void {
  const open: OpenCall = { call, result: undefined };
  step.calls.push(open);
  step.openCalls.set(call.card.content.tool_call_id, open);
}

/** Answers the call that the result names; false when the step has none that still waits. */
function addResult(step: OpenStep, result: Placed<ResultCard>): boolean {
  const open = step.openCalls.get(result.card.content.tool_call_id);
  if (open === undefined || open.result !== undefined) return false;
  open.result = result;
  return true;
}

export type ContextItem =
  | { readonly kind: 'card'; readonly placed: Placed }
  | { readonly kind: 'step'; readonly step: Step };

/** The steps of a clone's source among its inherited cards: a thought, the calls behind it, results wherever they are. */
export function groupInherited(
  cards: readonly { readonly placed: Placed; readonly isNative: boolean }[],
): readonly ContextItem[] {
  const items: ContextItem[] = [];
  const stepOfCall = new Map<string, OpenStep>();
  let current: OpenStep | undefined;
  const begin = (thought: Placed | undefined): OpenStep => {
    const step: OpenStep = { thought, calls: [], openCalls: new Map() };
    items.push({ kind: 'step', step });
    return step;
  };
  for (const { placed, isNative } of cards) {
    if (isNative && isCall(placed)) {
      current ??= begin(undefined);
      addCall(current, placed);
      stepOfCall.set(placed.card.content.tool_call_id, current);
    } else if (isNative && isThought(placed)) {
      current = begin(placed);
    } else {
      current = undefined;
      const step =
        isNative && isResult(placed) ? stepOfCall.get(placed.card.content.tool_call_id) : undefined;
      const isAnswer = step !== undefined && isResult(placed) && addResult(step, placed);
      if (!isAnswer) items.push({ kind: 'card', placed });
    }
  }
  return items;
}
