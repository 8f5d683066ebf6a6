/**
 * Circles of turns that wait for each other: an awaited turn stands in the queue of an agent whose turn in hand waits, by
 * whatever detour, for the one that awaits it, or turns of several runs collect each other. A turn waits for all of its calls, and a call
 * for all listed members of its batch, so one circle through one of them is enough.
 * Source: docs/reference/turns.md, "Circles".
 */
import type { AgentId, BatchId, ToolCallId, TurnId } from '../base/index.js';

export interface WaitingTurn {
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly agentName: string;
  /** Its open calls whose results are the ends of other turns. */
  readonly awaits: readonly {
    readonly toolCallId: ToolCallId;
    readonly name: string;
    readonly since: Date;
    /** The batch that the turn is of; each member that is waited for is listed. */
    readonly batchId: BatchId | null;
    readonly turnId: TurnId;
  }[];
  /** While it is queued: the turn its agent has in hand. */
  readonly behindTurnId: TurnId | null;
}

export interface WaitCycle {
  /** Each waits for the next, the last for the first. */
  readonly turns: readonly WaitingTurn[];
  /** The youngest wait in it: the one to give up. */
  readonly victim: WaitingTurn['awaits'][number] & { readonly waitingTurnId: TurnId };
}

type Wait = WaitCycle['victim'];
/** By which wait a turn was reached; undefined: by its place in a queue. */
type Path = readonly { readonly turn: WaitingTurn; readonly by: Wait | undefined }[];

const isYounger = (one: Wait, other: Wait): boolean =>
  one.since.getTime() === other.since.getTime() ? one.toolCallId > other.toolCallId : one.since > other.since;

/** Finds every circle that is left once the victims of the others have given up. */
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
    // By hand, not by recursion: a chain may be longer than the stack is deep.
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
  // Queues alone make no circle: a turn in hand is not queued.
  if (first === undefined) return undefined;
  return {
    turns: path.map(({ turn }) => turn),
    victim: others.reduce((youngest, wait) => (isYounger(wait, youngest) ? wait : youngest), first),
  };
}
