/**
 * Finds circles of turns that wait for each other. Either an awaited turn is queued for an agent whose current turn
 * waits, directly or indirectly, for the turn that awaits it. Or turns of several runs collect each other.
 *
 * A turn waits for all of its calls, and a call for all listed members of its batch. A circle through any of them
 * therefore blocks the turn.
 * Source: docs/reference/turns.md, "Circles".
 */
import type { AgentId, BatchId, ToolCallId, TurnId } from '../base/index.js';

export interface WaitingTurn {
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly agentName: string;
  /** The turn's open calls whose results are the ends of other turns. */
  readonly awaits: readonly {
    readonly toolCallId: ToolCallId;
    readonly name: string;
    readonly since: Date;
    /** The batch of the awaited turn; every awaited member of a batch is listed. */
    readonly batchId: BatchId | null;
    readonly turnId: TurnId;
  }[];
  /** For a queued turn: the current turn of its agent. */
  readonly behindTurnId: TurnId | null;
}

export interface WaitCycle {
  /** Each turn waits for the next, and the last for the first. */
  readonly turns: readonly WaitingTurn[];
  /** The youngest wait in the circle, which is given up. */
  readonly victim: WaitingTurn['awaits'][number] & { readonly waitingTurnId: TurnId };
}

type Wait = WaitCycle['victim'];
/** The turns of a path, each with the wait that leads to it; undefined for a step that follows a place in a queue. */
type Path = readonly { readonly turn: WaitingTurn; readonly by: Wait | undefined }[];

const isYounger = (one: Wait, other: Wait): boolean =>
  one.since.getTime() === other.since.getTime() ? one.toolCallId > other.toolCallId : one.since > other.since;

/** Finds all circles: after each circle it treats the victim as given up, and searches the remaining waits. */
export function findWaitCycles(turns: readonly WaitingTurn[]): readonly WaitCycle[] {
  const byId = new Map(turns.map((turn) => [turn.turnId, turn]));
  const givenUp = new Set<ToolCallId>();
  const cycles: WaitCycle[] = [];
  for (;;) {
    const cycle = findOne(byId, givenUp);
    if (cycle === undefined) return cycles;
    givenUp.add(cycle.victim.toolCallId);
    cycles.push(cycle);
  }
}

function findOne(
  byId: ReadonlyMap<TurnId, WaitingTurn>,
  givenUp: ReadonlySet<ToolCallId>,
): WaitCycle | undefined {
  const done = new Set<TurnId>();
  const stepsFrom = (turn: WaitingTurn): { turnId: TurnId; by: Wait | undefined }[] => [
    ...turn.awaits
      .filter((wait) => !givenUp.has(wait.toolCallId))
      .map((wait) => ({ turnId: wait.turnId, by: { ...wait, waitingTurnId: turn.turnId } })),
    ...(turn.behindTurnId === null ? [] : [{ turnId: turn.behindTurnId, by: undefined }]),
  ];
  for (const start of byId.values()) {
    // An explicit stack instead of recursion, because a chain may be longer than the stack is deep.
    const path: { turn: WaitingTurn; by: Wait | undefined; next: ReturnType<typeof stepsFrom> }[] = [];
    const onPath = new Map<TurnId, number>();
    const enter = (turn: WaitingTurn, by: Wait | undefined): void => {
      onPath.set(turn.turnId, path.length);
      path.push({ turn, by, next: stepsFrom(turn) });
    };
    if (!done.has(start.turnId)) enter(start, undefined);
    for (let top = path.at(-1); top !== undefined; top = path.at(-1)) {
      const step = top.next.pop();
      if (step === undefined) {
        path.pop();
        onPath.delete(top.turn.turnId);
        done.add(top.turn.turnId);
        continue;
      }
      const from = onPath.get(step.turnId);
      if (from !== undefined) return toCycle(path.slice(from), step.by);
      const turn = byId.get(step.turnId);
      if (turn !== undefined && !done.has(step.turnId)) enter(turn, step.by);
    }
  }
  return undefined;
}

/** @param closing - The wait that leads from the last turn back to the first. */
function toCycle(path: Path, closing: Wait | undefined): WaitCycle | undefined {
  const waits = [...path.slice(1).map(({ by }) => by), closing].filter((wait) => wait !== undefined);
  const [first, ...others] = waits;
  // Queues alone form no circle: the current turn of an agent is not queued.
  if (first === undefined) return undefined;
  return {
    turns: path.map(({ turn }) => turn),
    victim: others.reduce((youngest, wait) => (isYounger(wait, youngest) ? wait : youngest), first),
  };
}
