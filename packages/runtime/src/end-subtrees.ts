/**
 * Ends turns together with all that is below them, in the caller's transaction: what cancel, the end of a batch and a spent
 * budget share.
 *
 * E1  The run is locked before its tree is read, so no turn is filed below the tree meanwhile; who files one later is refused.
 * E2  Each turn ends by the statement that ends any turn, so a completion that races has either won before or finds nothing.
 * E3  No call of an ended turn stays open: one that a worker outside has is looked after at once, the others are settled here.
 * E4  The number of statements does not depend on the size of the tree.
 */
import { type ErrorBody, type FinalStatus, KernelError, type RunId, type TurnId } from '@boxcar/kernel';
import {
  type CommitResult,
  commitWithin,
  type EndableTurn,
  hastenLooksWithin,
  loadOpenCalls,
  lockSubtrees,
  notifyCanceled,
  type StepCommit,
  settleCalls,
  type Tx,
} from '@boxcar/store';
import type { RuntimeCore } from './runtime.js';
import { buildEnd, buildResult, fallbackDeliverable } from './worker/ending.js';

export interface EndSubtrees {
  readonly runId: RunId;
  readonly rootTurnIds: readonly TurnId[];
  readonly status: Exclude<FinalStatus, 'success'>;
  /** What each of them ends with; the id of its turn is added. */
  readonly error: ErrorBody;
  /** True: a root that has ended already is none, and what it has left behind goes on. */
  readonly areRootsOpen?: boolean;
  /** Turns that the transaction will lock later anyway: turns are locked all at once. */
  readonly alsoLock?: readonly TurnId[];
}

/** What is to be told after the commit, by `announceEnds`. */
export type EndedTurns = Pick<
  CommitResult,
  'endedTurnIds' | 'doorTurnIds' | 'backlogTargets' | 'dueBatchIds' | 'noticeTurnIds' | 'rings'
>;

/** The end of a turn by others than its worker: no step, and a deliverable that says what became of it. */
export function endFromOutside(
  turn: EndableTurn,
  { status, error }: Pick<EndSubtrees, 'status' | 'error'>,
): StepCommit {
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
    hasParent: turn.parent_turn_id !== null,
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

/** Nobody waits for these answers any more; what its worker brings later is evidence. */
async function closeCalls(tx: Tx, turnIds: readonly TurnId[]): Promise<void> {
  const calls = await loadOpenCalls(tx, turnIds);
  const settlements = calls
    .filter((call) => call.route !== 'queue')
    .map((call) =>
      buildResult(
        { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: call.project_id },
        {
          status: 'canceled',
          error: new KernelError('turn_ended', {
            message: 'The turn of this call has ended.',
            details: { turn_id: call.turn_id, tool_call_id: call.id },
          }).toJSON(),
        },
        { authorId: 'kernel' },
      ),
    );
  if (settlements.length > 0) await settleCalls(tx, settlements);
  // The job of a call at a worker outside is taken away by whoever can reach its queue.
  if (settlements.length < calls.length) await hastenLooksWithin(tx, turnIds);
}

/** Ends the unfinished turns among and below `rootTurnIds`; nothing is changed when there are none. */
export async function endSubtrees(tx: Tx, request: EndSubtrees): Promise<EndedTurns> {
  const turns = await lockSubtrees(tx, request.runId, request);
  if (turns.length === 0)
    return {
      endedTurnIds: [],
      doorTurnIds: [],
      backlogTargets: [],
      dueBatchIds: [],
      noticeTurnIds: [],
      rings: [],
    };
  const result = await commitWithin(turns.map((turn) => endFromOutside(turn, request)))(tx);
  await closeCalls(tx, result.endedTurnIds);
  await notifyCanceled(
    tx,
    turns.flatMap((turn) => (turn.holder_id === null ? [] : [turn.turn_id])),
  );
  return result;
}

/** After the commit: rings whom the ends have resumed, and lets everybody know. Hints only. */
export function announceEnds(runtime: Pick<RuntimeCore, 'ring' | 'announceEnds'>, ends: EndedTurns): void {
  runtime.ring(ends.rings);
  runtime.announceEnds(ends);
}
