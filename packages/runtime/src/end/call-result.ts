import {
  type ErrorBody,
  KernelError,
  MAX_CARD_BYTES,
  maskSecrets,
  type ProjectId,
  type ToolCallId,
  type TurnId,
  toErrorBody,
} from '@boxcar/kernel';
import { type CallSettlement, type LimitedTry, recordResults } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { Batcher, LOCKED } from '../lib/index.js';
import { buildResult, type CallOutcome } from './ending.js';

export interface Recorder {
  /**
   * @param options.isRepeated - True if an earlier try may have recorded the result.
   * @param options.lockedMs - How long to retry a result whose turn is locked; asked at each try. Default 15,000.
   */
  add(
    settlement: CallSettlement,
    options?: { readonly isRepeated?: boolean; readonly lockedMs?: () => number },
  ): Promise<'recorded' | 'duplicate'>;
}

/**
 * Records results from many sources, many in one transaction. A result that cannot be written fails alone. A result
 * whose turn is locked leaves its batch at once and is retried alone, so that it does not delay results of other turns.
 */
export function createRecorder(runtime: Pick<RuntimeCore, 'pool' | 'ring'>): Recorder {
  const record = async (
    settlements: readonly CallSettlement[],
    options: LimitedTry,
  ): Promise<('recorded' | 'duplicate' | typeof LOCKED)[]> => {
    const { rings, duplicates, lockedTurnIds } = await recordResults(runtime.pool, settlements, options);
    runtime.ring(rings);
    const open = new Map<ToolCallId, number>();
    for (const { toolCallId } of settlements) open.set(toolCallId, (open.get(toolCallId) ?? 0) + 1);
    for (const id of duplicates) open.set(id, (open.get(id) ?? 0) - 1);
    const locked = new Set(lockedTurnIds);
    return settlements.map(({ toolCallId, turnId }) => {
      if (locked.has(turnId)) return LOCKED;
      // When a batch has several results of one call, only the first may have won.
      const hasWon = (open.get(toolCallId) ?? 0) > 0;
      open.set(toolCallId, 0);
      return hasWon ? 'recorded' : 'duplicate';
    });
  };
  return new Batcher<CallSettlement, 'recorded' | 'duplicate'>(record, {
    maxItems: 100,
    maxInFlight: 2,
    leavesLocked: true,
  });
}

/**
 * The sweep may have answered a call as out of time while its primitive was still at work. The model has that answer,
 * so the primitive must have no effect: this error, thrown inside it, undoes it.
 */
export const answeredMeanwhile = (tool: string, toolCallId: ToolCallId): KernelError =>
  new KernelError('tool_timeout', {
    message: 'The call was answered as out of time while its primitive was at work.',
    details: { tool, tool_call_id: toolCallId },
  });

export const toFailure = (error: ErrorBody): { status: 'failed'; error: ErrorBody } => ({
  status: 'failed',
  error,
});

/**
 * The settlement of a call whose outcome came from a tool, without secrets. An outcome that no card can hold becomes a
 * failure that says so.
 */
export function toSettlement(
  call: {
    readonly toolCallId: ToolCallId;
    readonly turnId: TurnId;
    readonly name: string;
    readonly projectId: ProjectId;
  },
  outcome: CallOutcome,
  options: {
    readonly authorId: string;
    readonly isSanitized?: boolean;
    readonly maxBytes: number | undefined;
  },
): CallSettlement {
  const { authorId, isSanitized = false, maxBytes = MAX_CARD_BYTES } = options;
  const shown = maskSecrets(outcome);
  try {
    return buildResult(call, shown, { authorId, isSanitized: isSanitized || shown !== outcome, maxBytes });
  } catch (error) {
    return buildResult(call, toFailure(toErrorBody(error)), { authorId });
  }
}
