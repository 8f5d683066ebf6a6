/**
 * The end of a batch: a transaction of its own, after the commit that made it due, by whoever saw that or by the sweep.
 * Everything may run twice: the first that finds it running under its lock wins.
 */
import {
  type BatchId,
  buildResults,
  decideJoin,
  type ErrorBody,
  type FinalBatchStatus,
  type JoinedTurn,
  type JoinState,
  type JsonValue,
  KernelError,
  summaryLimit,
} from '@boxcar/kernel';
import {
  type BatchRow,
  type CallSettlement,
  closeBatch,
  endBatch,
  loadBatches,
  loadMembers,
  lockBatch,
  type MemberRow,
  type SettledTurns,
  settleCalls,
  transaction,
} from '@boxcar/store';
import { deliverableOf } from '../deliverable.js';
import { announceEnds, endSubtrees } from '../end-subtrees.js';
import type { RuntimeCore } from '../runtime.js';
import { buildResult } from './ending.js';

/** A decision to close is followed by one to finish; members that changed hands meanwhile may need another round. */
const MAX_ROUNDS = 10;

type Clock = { readonly now?: Date };

const stateOf = (batch: BatchRow): JoinState => ({
  kind: batch.kind,
  status: batch.status,
  closing: batch.closing,
  total: batch.turn_ids.length,
  remaining: batch.remaining,
  succeeded: batch.succeeded,
  failed: batch.failed,
  minSuccess: batch.min_success,
  isFailFast: batch.fail_fast,
  isOverdue: batch.is_overdue,
});

const toJoined = (turn: MemberRow): JoinedTurn => ({
  turnId: turn.turn_id,
  agentId: turn.agent_id,
  outputBoxId: turn.output_box_id,
  status: turn.status,
  deliverable: turn.beginning ?? deliverableOf(turn.content),
  error: turn.error,
});

/** How the waiting call sees the end. A partial batch is an answer; the status inside says so. */
const CALL_STATUS: Readonly<Record<FinalBatchStatus, CallSettlement['status']>> = {
  success: 'success',
  partial: 'success',
  failed: 'failed',
  timeout: 'timeout',
  canceled: 'canceled',
};

function errorOf(batch: BatchRow, status: FinalBatchStatus): ErrorBody {
  const details = { batch_id: batch.id };
  if (status === 'timeout')
    return new KernelError('wait_timeout', {
      message: 'The batch did not end before its deadline.',
      details,
    }).toJSON();
  return new KernelError('batch_failed', {
    ...(status === 'canceled' ? { message: 'The batch was canceled.' } : {}),
    details,
  }).toJSON();
}

function settlementOf(batch: BatchRow, status: FinalBatchStatus, answer: JsonValue): CallSettlement[] {
  if (batch.tool_call_id === null || batch.turn_id === null) return [];
  const call = {
    toolCallId: batch.tool_call_id,
    turnId: batch.turn_id,
    name: batch.primitive,
    projectId: batch.project_id,
  };
  const callStatus = CALL_STATUS[status];
  const error = callStatus === 'success' ? {} : { error: errorOf(batch, status) };
  return [buildResult(call, { status: callStatus, result: answer, ...error }, { authorId: 'kernel' })];
}

/** @returns What it resumed; undefined when it is not to be ended, or somebody else has. */
function end(
  runtime: Pick<RuntimeCore, 'pool'>,
  seen: BatchRow,
  clock: Clock,
): Promise<SettledTurns | undefined> {
  return transaction(runtime.pool, async (tx) => {
    const [batch, members] = await Promise.all([
      lockBatch(tx, seen, clock),
      // Under the lock: the counters that are decided on are those of these very members.
      loadMembers(tx, seen.turn_ids, summaryLimit(seen.turn_ids.length)),
    ]);
    const decision = batch === undefined ? undefined : decideJoin(stateOf(batch));
    if (batch === undefined || decision?.kind !== 'finish') return undefined;
    const { status, closing } = decision;
    const states = new Map(members.map((turn) => [turn.turn_id, turn]));
    const results = buildResults(
      batch.turn_ids.flatMap((turnId) => {
        const turn = states.get(turnId);
        return turn === undefined ? [] : [toJoined(turn)];
      }),
    );
    const answer = { batch_id: batch.id, status, results } as unknown as JsonValue;
    const settlements = settlementOf(batch, status, answer);
    const [, settled] = await Promise.all([
      endBatch(tx, batch.id, {
        status,
        closing,
        answer: settlements.length === 0 ? answer : undefined,
      }),
      settleCalls(tx, settlements),
    ]);
    return settled;
  });
}

const closedError = (closing: string, batch: BatchRow): ErrorBody =>
  closing === 'deadline'
    ? new KernelError('deadline_exceeded', {
        message: 'The batch of the turn did not end before its deadline.',
        details: { batch_id: batch.id },
      }).toJSON()
    : new KernelError('batch_closed', { details: { batch_id: batch.id, closing } }).toJSON();

/** Does what is to be done about a batch: ends its members early, or the batch itself. Nothing when nothing is. */
export async function finishBatch(
  runtime: Pick<RuntimeCore, 'pool' | 'ring' | 'announceEnds' | 'watcher' | 'knockSoon'>,
  batchId: BatchId,
  clock: Clock = {},
): Promise<void> {
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const [batch] = await loadBatches(runtime.pool, [batchId], clock);
    if (batch === undefined) return;
    const decision = decideJoin(stateOf(batch));
    if (decision.kind === 'wait') return;
    if (decision.kind === 'close') {
      const { closing, memberStatus } = decision;
      await closeBatch(runtime.pool, batchId, closing);
      const { run_id: runId } = batch;
      if (runId === null) continue;
      const ended = await transaction(runtime.pool, (tx) =>
        endSubtrees(tx, {
          runId,
          rootTurnIds: batch.turn_ids,
          // What a member that is done has left to others is not the batch's to end.
          areRootsOpen: true,
          status: memberStatus,
          error: closedError(closing, batch),
        }),
      );
      announceEnds(runtime, ended);
      continue;
    }
    const settled = await end(runtime, batch, clock);
    // Undefined: it moved between the look and the lock; the next look tells what that means.
    if (settled === undefined) continue;
    runtime.ring(settled.rings);
    if (batch.tool_call_id !== null) return;
    runtime.watcher.hint([batchId]);
    runtime.knockSoon([batchId]);
    return;
  }
}
