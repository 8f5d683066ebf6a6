/**
 * Detaches a batch from the call that waits for it. The batch continues without a waiting call: nothing ends its turns,
 * and it can be collected.
 */
import type { BatchId } from '@boxcar/kernel';
import {
  type CallSettlement,
  detachBatch,
  findSettled,
  type LockLimit,
  lockBatch,
  settleCalls,
  transactWithin,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';

/** @returns `duplicate` when the batch has already answered the call. */
export async function leaveBatch(
  runtime: Pick<RuntimeCore, 'pool' | 'ring'>,
  batchId: BatchId,
  settlement: CallSettlement,
  limit: LockLimit = {},
): Promise<'recorded' | 'duplicate'> {
  const { turnId, toolCallId } = settlement;
  const settled = await transactWithin(runtime.pool, limit, async (tx, attempt) => {
    const batch = await lockBatch(tx, { id: batchId, turn_id: turnId });
    if (batch === undefined || batch.status !== 'running' || batch.tool_call_id !== toolCallId)
      return attempt > 1 ? findSettled(tx, settlement) : undefined;
    await detachBatch(tx, batchId);
    return settleCalls(tx, [settlement]);
  });
  if (settled === undefined) return 'duplicate';
  runtime.ring(settled.rings);
  return settled.duplicates.length === 0 ? 'recorded' : 'duplicate';
}
