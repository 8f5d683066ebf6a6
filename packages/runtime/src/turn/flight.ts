/**
 * Before a handoff is carried out: finds out whether an identical handoff has a result for it, or will soon have one.
 * Rule: docs/reference/handoff.md, "Cached results".
 */
import type { HandoffId } from '@boxcar/kernel';
import { type Flight, findFlight, lead, retryTransient, takeCached } from '@boxcar/store';
import type { Ending } from '../end/index.js';
import type { HeldTurn, TurnHost } from './held-turn.js';

/** The result of an identical handoff. Functions return undefined instead when the handoff must be carried out. */
export interface CachedResult {
  readonly content: NonNullable<Flight['content']>;
  readonly cachedFrom: HandoffId;
}

/** Waits while an identical handoff is carried out, without a slot of the worker. @throws The signal's reason. */
export async function awaitCached(host: TurnHost, held: HeldTurn): Promise<CachedResult | undefined> {
  const { pool, watcher, log } = host.runtime;
  const { turnId, mayBeCached } = held.turn;
  if (!mayBeCached) return undefined;
  for (;;) {
    held.signal.throwIfAborted();
    const flight = await retryTransient(() => findFlight(pool, turnId));
    if (flight === undefined || flight.is_free) return undefined;
    const { cached_from: cachedFrom, content, leader_turn_id: leader } = flight;
    if (cachedFrom !== null && content !== null) {
      for (const { type, handoff_id, data } of await retryTransient(() =>
        takeCached(pool, { turnId, cachedFrom }),
      ))
        log('info', type, { handoff_id, ...data });
      return { content, cachedFrom };
    }
    if (leader !== null)
      await host.whileWaiting(() =>
        watcher.wait(leader, { project: held.turn.projectId, signal: held.signal }),
      );
    else if (await retryTransient(() => lead(pool, turnId))) return undefined;
  }
}

/** The end of a turn that has taken a cached result. */
export const cachedEnding = ({ content, cachedFrom }: CachedResult): Ending => ({
  status: 'success',
  deliverable: content,
  error: null,
  metadata: { handoff: { cached_from: cachedFrom } },
});
