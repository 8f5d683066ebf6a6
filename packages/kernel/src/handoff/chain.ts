/**
 * Chains: handoffs in sequence, each with the result of the previous handoff.
 *
 * K1  The next move follows only from the calls that were made: a process that takes over a chain continues at the same
 *     place.
 * K2  After a failed hop no other hop begins. Completed hops are compensated in reverse order, each once, even when a
 *     compensation fails.
 * Rule: docs/reference/handoff.md, "Chains".
 */
import { z } from 'zod';
import type { ErrorBody } from '../base/index.js';
import { handoffArgumentsSchema } from './request.js';

const MAX_HOPS = 50;

const shape = handoffArgumentsSchema.shape;

const compensateSchema = z.strictObject({
  target_agent: shape.target_agent,
  task: shape.task,
  context: shape.context,
  platform: shape.platform,
  timeout: shape.timeout,
  retry: shape.retry,
});

const hopSchema = z
  .strictObject({
    ...compensateSchema.shape,
    /** Default: the result of the previous hop. */
    payload: shape.payload,
    cache: shape.cache,
    /** The handoff that undoes this hop when a later hop fails. Its payload is the result of the hop. */
    compensate: compensateSchema.optional(),
  })
  .refine(({ cache, compensate }) => cache === undefined || compensate === undefined, {
    path: ['cache'],
    message: 'cannot be together with compensate: the result may be that of another chain, which needs it',
  });
export type ChainHop = z.output<typeof hopSchema>;

export const chainArgumentsSchema = z.strictObject({
  hops: z.array(hopSchema).min(1).max(MAX_HOPS),
  source_agent: shape.source_agent.unwrap(),
  run_id: shape.run_id,
  idempotency_key: shape.idempotency_key,
  parent_handoff_id: shape.parent_handoff_id,
  callback: shape.callback,
  notify: shape.notify,
  wait: shape.wait,
});
export type ChainArguments = z.output<typeof chainArgumentsSchema>;

/** A move that a chain has made. */
export interface ChainCall {
  /** Counted from 1. */
  readonly hop: number;
  readonly isUndo: boolean;
  readonly status: 'pending' | 'success' | 'failed';
  readonly error: ErrorBody | null;
}

type ChainMove =
  | { readonly kind: 'hop'; readonly hop: number; readonly isUndo: boolean }
  | { readonly kind: 'end' }
  | {
      readonly kind: 'failed';
      readonly phase: 'failed' | 'rolled_back' | 'compensation_failed';
      readonly hop: number;
      readonly error: ErrorBody | null;
    };

/** The next move (K1, K2). @param calls - In the order in which they were made. */
export function nextMove(
  hops: readonly { readonly has_compensation: boolean }[],
  calls: readonly ChainCall[],
): ChainMove {
  const forward = calls.filter(({ isUndo }) => !isUndo);
  const failed = forward.find(({ status }) => status === 'failed');
  const done = forward.filter(({ status }) => status === 'success').length;
  if (failed === undefined)
    return done < hops.length ? { kind: 'hop', hop: done + 1, isUndo: false } : { kind: 'end' };
  const undone = calls.filter(({ isUndo }) => isUndo);
  for (let hop = done; hop > 0; hop -= 1) {
    const isDue = hops[hop - 1]?.has_compensation === true && !undone.some((call) => call.hop === hop);
    if (isDue) return { kind: 'hop', hop, isUndo: true };
  }
  const isWhole = undone.every(({ status }) => status === 'success');
  return {
    kind: 'failed',
    phase: undone.length === 0 ? 'failed' : isWhole ? 'rolled_back' : 'compensation_failed',
    hop: failed.hop,
    error: failed.error,
  };
}
