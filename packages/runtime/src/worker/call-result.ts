import {
  type ErrorBody,
  KernelError,
  MAX_CARD_BYTES,
  type ProjectId,
  type ToolCallId,
  type TurnId,
  toErrorBody,
} from '@boxcar/kernel';
import {
  type CallSettlement,
  type RecordOptions,
  recordResults,
  sqlStateOf,
  toDatabaseError,
} from '@boxcar/store';
import { Batcher } from '../batcher.js';
import type { RuntimeCore } from '../runtime.js';
import { buildResult } from './ending.js';

export type CallOutcome = Parameters<typeof buildResult>[1];

export interface Recorder {
  /** @param patienceMs - How long a result whose turn is locked is tried again. */
  add(settlement: CallSettlement, patienceMs?: number): Promise<'recorded' | 'duplicate'>;
}

/** How long a batch waits for one lock; then how long each try of a result waits after its batch met a lock. */
const BATCH_LOCK_MS = 50;
const ALONE_LOCK_MS = 200;
/** How long such a result is tried again: longer than the server keeps the locks of a stopped process. */
const PATIENCE_MS = 15_000;

/**
 * Records results from many sources, many in one transaction. A result that cannot be written fails alone. A result whose
 * turn is locked leaves its batch at once and is tried again alone, so that it does not delay results of other turns.
 */
export function createRecorder(runtime: Pick<RuntimeCore, 'pool' | 'ring'>): Recorder {
  const record = async (
    settlements: readonly CallSettlement[],
    options: RecordOptions,
  ): Promise<('recorded' | 'duplicate')[]> => {
    const { rings, duplicates } = await recordResults(runtime.pool, settlements, options);
    runtime.ring(rings);
    const open = new Map<ToolCallId, number>();
    for (const { toolCallId } of settlements) open.set(toolCallId, (open.get(toolCallId) ?? 0) + 1);
    for (const id of duplicates) open.set(id, (open.get(id) ?? 0) - 1);
    return settlements.map(({ toolCallId }) => {
      // When a batch has several results of one call, only the first may have won.
      const hasWon = (open.get(toolCallId) ?? 0) > 0;
      open.set(toolCallId, 0);
      return hasWon ? 'recorded' : 'duplicate';
    });
  };
  const batches = new Batcher<CallSettlement, 'recorded' | 'duplicate'>(
    (settlements, attempt) => record(settlements, { ...attempt, lockMs: BATCH_LOCK_MS }),
    {
      maxItems: 100,
      maxInFlight: 2,
    },
  );
  // Results that wait for locks use two connections at most, for a moment each.
  const single = new Batcher<CallSettlement, 'recorded' | 'duplicate'>(
    (settlements) => record(settlements, { isRepeated: true, lockMs: ALONE_LOCK_MS }),
    { maxItems: 1, maxInFlight: 2 },
  );
  return {
    add: async (settlement, patienceMs = PATIENCE_MS) => {
      const startedAt = performance.now();
      for (let tries = 0; ; tries += 1) {
        try {
          return await (tries === 0 ? batches : single).add(settlement);
        } catch (error) {
          if (sqlStateOf(error) !== '55P03') throw error;
          if (performance.now() - startedAt >= patienceMs) throw toDatabaseError(error);
          await new Promise((resolve) => setTimeout(resolve, Math.min(50 * 2 ** tries, 500)));
        }
      }
    },
  };
}

/**
 * The sweep may have answered a call, as out of time, that is at work still: its model was told so, and nothing may come of it.
 * Thrown, it undoes the primitive.
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

/** The settlement of a call whose outcome came from a tool: one that no card can hold becomes a failure that says so. */
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
  try {
    return buildResult(call, outcome, { authorId, isSanitized, maxBytes });
  } catch (error) {
    return buildResult(call, toFailure(toErrorBody(error)), { authorId });
  }
}
