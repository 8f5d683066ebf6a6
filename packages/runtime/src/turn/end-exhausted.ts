import { KernelError } from '@boxcar/kernel';
import { findRunFailures } from '@boxcar/store';
import { fallbackDeliverable, fromCause } from '../end/index.js';
import type { HeldTurn, TurnHost, TurnRun } from './held-turn.js';
import { TurnCommits } from './turn-commits.js';

/** Ends a turn without reading more of its rows, because they may be the cause of its failures. */
export async function endExhausted(host: TurnHost, held: HeldTurn): Promise<TurnRun> {
  const { turnId, stepCount, losses } = held.turn;
  const details = { turn_id: turnId, step: stepCount + 1, attempts: losses };
  const cause = (await findRunFailures(host.runtime.pool, [turnId])).get(turnId);
  const error =
    cause === undefined
      ? new KernelError('attempts_exhausted', { details }).toJSON()
      : fromCause(cause, details);
  return new TurnCommits(host, held).end(
    { status: 'failed', deliverable: fallbackDeliverable(error, stepCount, null), error },
    { hasOpenCalls: held.turn.pendingCalls > 0 },
  );
}
