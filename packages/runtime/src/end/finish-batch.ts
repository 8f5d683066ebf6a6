/**
 * Ends a batch in a transaction of its own, after the commit that made the batch due. The process that saw that commit
 * or the sweep does it. Everything may run twice: the first process that finds the batch running under its lock wins.
 */
import {
  type BatchId,
  buildResults,
  decideJoin,
  type ErrorBody,
  type JoinedTurn,
  type JoinState,
  type JsonValue,
  KernelError,
  summaryLimit,
  type TurnId,
} from '@boxcar/kernel';
import {
  type BatchRow,
  type CallSettlement,
  closeBatch,
  endBatch,
  findRings,
  findUnendedMembers,
  findWantedMembers,
  type LockLimit,
  loadBatches,
  loadMembers,
  lockBatch,
  type MemberRow,
  type Queryable,
  type SettledTurns,
  settleCalls,
  transactWithin,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { deliverableOf } from '../lib/index.js';
import { fromCause } from './causes.js';
import { endAndAnnounce, endSubtrees } from './end-subtrees.js';
import { buildResult } from './ending.js';

/**
 * A decision to close is followed by a decision to finish. Members that changed hands meanwhile may need another round.
 */
const MAX_ROUNDS = 10;

type Options = LockLimit & { readonly now?: Date };

/** Members that have not ended. The end of the batch does not wait for spared and lost members. */
interface Left {
  /** Members of a canceled batch that another caller waits for. */
  readonly spared: readonly TurnId[];
  /** Members that could not be ended, with the cause: they count as failed. */
  readonly lost: ReadonlyMap<TurnId, string>;
  /** Members whose last attempt to end failed: the sweep tries again, and ends them or gives them up. */
  readonly pending: readonly TurnId[];
}

async function findLeft(
  db: Queryable,
  batch: Pick<BatchRow, 'id' | 'turn_id' | 'turn_ids' | 'closing'>,
): Promise<Left> {
  const unended = await findUnendedMembers(db, batch.turn_ids);
  const lost = new Map([...unended].flatMap(([id, { cause, isDead }]) => (isDead ? [[id, cause]] : [])));
  const pending = [...unended].flatMap(([id, { isDead }]) => (isDead ? [] : [id]));
  const wanted = batch.closing === 'cancel' ? await findWantedMembers(db, batch) : [];
  return { spared: wanted.filter((id) => !lost.has(id)), lost, pending };
}

const stateOf = (batch: BatchRow, { spared, lost }: Left): JoinState => ({
  kind: batch.kind,
  status: batch.status,
  closing: batch.closing,
  total: batch.turn_ids.length,
  remaining: batch.remaining,
  succeeded: batch.succeeded,
  failed: batch.failed,
  sparedCount: spared.length,
  lostCount: lost.size,
  minSuccess: batch.min_success,
  isFailFast: batch.fail_fast,
  isOverdue: batch.is_overdue,
});

function toJoined(turn: MemberRow, { lost }: Left): JoinedTurn {
  const cause = lost.get(turn.turn_id);
  return {
    turnId: turn.turn_id,
    agentId: turn.agent_id,
    outputBoxId: turn.output_box_id,
    status: cause === undefined ? turn.status : 'failed',
    deliverable: turn.beginning ?? deliverableOf(turn.content),
    error: cause === undefined ? turn.error : fromCause(cause, {}),
  };
}

/** Answers the waiting call, whatever the members' results. The answer has the status of the batch. */
function settlementOf(batch: BatchRow, answer: JsonValue): CallSettlement[] {
  if (batch.tool_call_id === null || batch.turn_id === null) return [];
  const call = {
    toolCallId: batch.tool_call_id,
    turnId: batch.turn_id,
    name: batch.primitive,
    projectId: batch.project_id,
  };
  return [buildResult(call, { status: 'success', result: answer }, { authorId: 'kernel' })];
}

/**
 * Ends the batch if its end is due. If an earlier try may have ended it, the waiting turn is rung again.
 *
 * @returns The turns to ring; undefined when the end is not due, or another process has ended the batch.
 */
function end(
  runtime: Pick<RuntimeCore, 'pool'>,
  seen: BatchRow,
  options: Options,
): Promise<SettledTurns | undefined> {
  return transactWithin(runtime.pool, options, async (tx, attempt) => {
    const [batch, members] = await Promise.all([
      lockBatch(tx, seen, { ...options, holdsErasures: seen.project_id }),
      // Read under the lock, so the counters of the batch match these members.
      loadMembers(tx, seen.turn_ids, summaryLimit(seen.turn_ids.length)),
    ]);
    if (batch === undefined) return undefined;
    if (attempt > 1 && batch.status !== 'running')
      return { rings: await findRings(tx, batch.turn_id === null ? [] : [batch.turn_id]), duplicates: [] };
    const left = await findLeft(tx, batch);
    const decision = decideJoin(stateOf(batch, left));
    if (decision.kind !== 'finish') return undefined;
    const { status, closing } = decision;
    const states = new Map(members.map((turn) => [turn.turn_id, turn]));
    const results = buildResults(
      batch.turn_ids.flatMap((turnId) => {
        const turn = states.get(turnId);
        return turn === undefined ? [] : [toJoined(turn, left)];
      }),
    );
    // The status comes first: a long answer may be shown only by its beginning.
    const answer = { status, batch_id: batch.id, results } as unknown as JsonValue;
    const settlements = settlementOf(batch, answer);
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

/**
 * Takes the next step of a batch: ends its members early, or ends the batch. Does nothing when no step is due.
 *
 * @param options.lockMs - If given, a lock that is not free within this time fails the whole step with `55P03`.
 */
export async function finishBatch(
  runtime: Pick<RuntimeCore, 'pool' | 'ring' | 'announceEnds' | 'log' | 'watcher' | 'wakeDoorJobsSoon'>,
  batchId: BatchId,
  options: Options = {},
): Promise<void> {
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const [batch] = await loadBatches(runtime.pool, [batchId], options);
    if (batch === undefined) return;
    const decision = decideJoin(stateOf(batch, await findLeft(runtime.pool, batch)));
    if (decision.kind === 'wait') return;
    if (decision.kind === 'close') {
      const { closing, memberStatus } = decision;
      await transactWithin(runtime.pool, options, (tx) => closeBatch(tx, batchId, closing));
      const left = await findLeft(runtime.pool, { ...batch, closing });
      const { run_id: runId } = batch;
      if (runId === null) continue;
      const isLeft = new Set([...left.spared, ...left.pending, ...left.lost.keys()]);
      const ended = await endAndAnnounce(runtime, options, (tx) =>
        endSubtrees(tx, {
          runId,
          rootTurnIds: batch.turn_ids.filter((id) => !isLeft.has(id)),
          // The batch does not end the turns that an already ended member has left.
          areRootsOpen: true,
          sparesWanted: closing === 'cancel',
          status: memberStatus,
          error: closedError(closing, batch),
        }),
      );
      // The batch is finished after the sweep has ended those members, or has given them up.
      if (left.pending.length + ended.unended.length > 0) return;
      continue;
    }
    const settled = await end(runtime, batch, options);
    // The batch changed between the read and the lock; the next round reads it again.
    if (settled === undefined) continue;
    runtime.ring(settled.rings);
    if (batch.tool_call_id !== null) return;
    runtime.watcher.hint([batchId]);
    runtime.wakeDoorJobsSoon([batchId]);
    return;
  }
}
