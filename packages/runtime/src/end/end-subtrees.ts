/**
 * Ends turns together with all turns below them, in the caller's transaction. Cancel, the end of a batch and a spent
 * budget share this code.
 *
 * E1  The run is locked before its tree is read, so no turn is added below the tree meanwhile; a later submission is
 *     refused.
 * E2  Each turn ends by the statement that ends any turn. A completion that races has either won before or changes
 *     nothing.
 * E3  No call of an ended turn stays open. A call that an external worker has is checked at once; the other calls are
 *     settled here.
 * E4  The number of statements does not depend on the size of the tree.
 * E5  The end of a waiting turn also ends the turns that only this turn waits for, in the same transaction
 *     (`endWaiting`, `endHeld`).
 * E6  A turn whose end cannot be written is reported, and does not prevent the other ends (`end-locked.ts`).
 */
import { type ErrorBody, type FinalStatus, KernelError, type RunId, type TurnId } from '@boxcar/kernel';
import {
  type ClaimedTurn,
  type CommitOutcome,
  closeBatchesOf,
  commitAgain,
  type EndableTurn,
  findRings,
  type LockLimit,
  loadOpenCalls,
  lockAwaited,
  lockSubtrees,
  type OpenCallRow,
  type StepCommit,
  type Tx,
  transactWithin,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { closingOf, type EndedTurns, endLocked, NOTHING_ENDED } from './end-locked.js';
import { buildEnd, fallbackDeliverable } from './ending.js';

export interface EndSubtrees {
  readonly runId: RunId;
  /** Absent: every turn of the run, under all of its roots. */
  readonly rootTurnIds?: readonly TurnId[] | undefined;
  readonly status: Exclude<FinalStatus, 'success'>;
  /** The error of each turn that ends here; the id of the turn is added. */
  readonly error: ErrorBody;
  /** True: a root that has already ended is ignored, and the turns below it continue. */
  readonly areRootsOpen?: boolean;
  /** True: a turn below the roots continues if another caller waits for it. */
  readonly sparesWanted?: boolean;
  /** Turns that the transaction needs locked later: all turns must be locked at once. */
  readonly alsoLock?: readonly TurnId[];
}

/** The end of a turn by another process than its worker: no step, and a deliverable that states the error. */
function endFromOutside(
  turn: EndableTurn,
  { status, error }: Pick<EndSubtrees, 'status' | 'error'>,
): StepCommit & ReturnType<typeof buildEnd> {
  const withIds = { ...error, details: { ...error.details, turn_id: turn.turn_id } };
  const built = buildEnd(
    {
      turnId: turn.turn_id,
      projectId: turn.project_id,
      agentId: turn.agent_id,
      parentTurnId: turn.parent_turn_id,
      parentToolCallId: turn.parent_tool_call_id,
      isAwaited: turn.is_awaited,
      primitive: turn.primitive,
      contextBoxId: turn.context_box_id,
      outputBoxId: turn.output_box_id,
    },
    { status, deliverable: fallbackDeliverable(withIds, turn.step_count, null), error: withIds },
  );
  return {
    turnId: turn.turn_id,
    projectId: turn.project_id,
    agentId: turn.agent_id,
    epoch: turn.epoch,
    holderId: turn.holder_id,
    step: null,
    cards: built.cards,
    entries: built.entries,
    calls: [],
    emptyReplies: 0,
    results: [],
    end: built.end,
  };
}

/**
 * Ends the unfinished turns among and below `rootTurnIds`, or of the whole run. Changes nothing when all of them have
 * ended.
 */
export async function endSubtrees(tx: Tx, request: EndSubtrees): Promise<EndedTurns> {
  const turns = await lockSubtrees(tx, request.runId, request);
  if (turns.length === 0) return NOTHING_ENDED;
  return endLocked(
    tx,
    turns.map((turn) => endFromOutside(turn, request)),
  );
}

type OutsideEnding = Pick<EndSubtrees, 'status' | 'error'>;

/** The ends of turns whose waiting turn has ended. */
function endsOf(awaited: readonly EndableTurn[], waiting: TurnId, status: FinalStatus) {
  const error = new KernelError('canceled', {
    message: `Turn ${waiting}, which waited for this turn, has ended as ${status}.`,
    details: { waiting_turn_id: waiting },
  }).toJSON();
  return awaited.map((turn) => endFromOutside(turn, { status: 'canceled', error }));
}

/**
 * Ends one turn from outside: at its deadline, or because it cannot continue. The turns that only this turn waits for end
 * with it, and everything below them. Turns that it started without waiting continue. Changes nothing when the turn has
 * changed since it was read.
 */
export async function endWaiting(tx: Tx, turn: EndableTurn, ending: OutsideEnding): Promise<EndedTurns> {
  const awaited = await lockAwaited(tx, turn);
  if (awaited === undefined) return NOTHING_ENDED;
  const ends = [endFromOutside(turn, ending), ...endsOf(awaited, turn.turn_id, ending.status)];
  return endLocked(tx, ends, turn.turn_id);
}

/** An end by the worker that holds the turn. */
export interface HeldEnd {
  readonly outcome: CommitOutcome['outcome'];
  readonly ended: EndedTurns;
  /** The calls of the turn that were open. External workers may still have jobs for them. */
  readonly closed: readonly OpenCallRow[];
}

/**
 * `endWaiting` for the worker that holds the turn, with the results that belong to the end. The turn ends with its own
 * answer, so its open calls are answered first and its tape is complete. If an earlier try has committed, its outcome is
 * returned.
 */
export async function endHeld(
  tx: Tx,
  turn: ClaimedTurn,
  commit: StepCommit & ReturnType<typeof buildEnd>,
): Promise<HeldEnd> {
  const { turnId, end } = commit;
  const awaited = await lockAwaited(tx, {
    turn_id: turnId,
    run_id: turn.runId,
    epoch: commit.epoch,
    holder_id: commit.holderId,
    is_awaited: turn.isAwaited,
    parent_turn_id: turn.parentTurnId,
  });
  if (awaited === undefined) {
    const { outcomes, ...found } = await commitAgain([commit])(tx);
    return { outcome: outcomes[0]?.outcome ?? 'fenced', ended: { ...found, unended: [] }, closed: [] };
  }
  const answered = new Set(commit.results.map((result) => result.toolCallId));
  const closed = (await loadOpenCalls(tx, [turnId])).filter((call) => !answered.has(call.id));
  const own = { ...commit, results: [...commit.results, ...closed.map(closingOf)] };
  const ended = await endLocked(tx, [own, ...endsOf(awaited, turnId, end.status)], turnId);
  const dueBatchIds = [...ended.dueBatchIds, ...(await closeBatchesOf(tx, [turnId]))];
  return { outcome: 'committed', ended: { ...ended, dueBatchIds }, closed };
}

/**
 * Ends turns in one transaction and announces the ends. If an earlier try was committed and only its answer was lost,
 * the repetition finds nothing to end. The turns that the earlier try ended are then announced.
 *
 * @returns The ends of the last try.
 */
export async function endAndAnnounce(
  runtime: Pick<RuntimeCore, 'pool' | 'ring' | 'announceEnds' | 'log'>,
  limit: LockLimit,
  end: (tx: Tx) => Promise<EndedTurns>,
): Promise<EndedTurns> {
  const tries: EndedTurns[] = [];
  const ended = await transactWithin(runtime.pool, limit, async (tx) => {
    const ending = await end(tx);
    tries.push(ending);
    return ending;
  });
  announceEnds(runtime, ended);
  await announceTries(runtime, tries.slice(0, -1));
  return ended;
}

/** Announces the ends of earlier tries, whether they were committed or not. Only turns that are dispatched are rung. */
export async function announceTries(
  runtime: Pick<RuntimeCore, 'pool' | 'ring' | 'announceEnds'>,
  tries: readonly EndedTurns[],
): Promise<void> {
  for (const ends of tries) {
    runtime.ring(
      await findRings(
        runtime.pool,
        ends.rings.map(({ turnId }) => turnId),
      ),
    );
    runtime.announceEnds(ends);
  }
}

/**
 * After the commit: rings the turns that the ends have resumed, and notifies all waiting processes. These are only
 * hints.
 */
export function announceEnds(
  runtime: Pick<RuntimeCore, 'ring' | 'announceEnds' | 'log'>,
  ends: EndedTurns,
): void {
  for (const { turnId, error } of ends.unended)
    runtime.log('error', 'turn.not_ended', { turn_id: turnId, error: `${error.code}: ${error.message}` });
  runtime.ring(ends.rings);
  runtime.announceEnds(ends);
}
