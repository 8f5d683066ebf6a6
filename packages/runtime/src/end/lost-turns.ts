/** Part of the sweep: answers calls and batches that wait for a turn that could not be ended, so that their turns continue. */
import type { ProjectId } from '@boxcar/kernel';
import { findLostBatches, findLostCalls, type LockLimit, recordResults, type SweepKind } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { fromCause } from './causes.js';
import { buildResult } from './ending.js';
import { finishBatch } from './finish-batch.js';

/** How a sweep handles its rows. */
export interface RowHandling {
  /** Handles the rows in sequence. A locked row is left to the next pass; a row that cannot be handled is set aside. */
  each<R extends { readonly id: string; readonly project_id: ProjectId }>(
    kind: SweepKind,
    rows: readonly R[],
    work: (row: R, limit: LockLimit) => Promise<void>,
  ): Promise<void>;
}

type Clock = { readonly now?: Date; readonly limit: number };

/** Answers the calls as failed with the cause, and continues batches without the members that could not be ended. */
export async function answerForLost(
  runtime: RuntimeCore,
  clock: Clock,
  handling: RowHandling,
): Promise<void> {
  const calls = await findLostCalls(runtime.pool, clock);
  await handling.each('overdue_calls', calls, async (call, limit) => {
    const settlement = buildResult(
      { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: call.project_id },
      { status: 'failed', error: fromCause(call.last_error, { tool_call_id: call.id }) },
      { authorId: 'kernel' },
    );
    runtime.ring((await recordResults(runtime.pool, [settlement], limit)).rings);
  });
  const batches = await findLostBatches(runtime.pool, clock);
  await handling.each('due_batches', batches, ({ id }, limit) =>
    finishBatch(runtime, id, { ...clock, ...limit }),
  );
}
