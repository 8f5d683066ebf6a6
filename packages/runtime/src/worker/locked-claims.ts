/**
 * Turns whose claims have met locked rows here. While no other slot is free, a claim waits only as long as most locks
 * are held, so that locked rows never hold all slots of a worker. Then the ring is dropped, and the sweep rings the
 * turn again, as after any lost ring. A turn that is still locked then gives its slot back at once.
 */
import type { TurnId } from '@boxcar/kernel';
import { LOCK_PATIENCE_MS } from '../lib/index.js';

/** How long a claim waits for locked rows while no other slot is free. */
const PATIENCE_MS = 300;
/**
 * For this time after it has met a lock, a turn is not taken directly from the rows. The sweep rings after about the
 * same time.
 */
const PAUSE_MS = 2_000;
/** For this time the claim of such a turn does not wait. */
const MEMORY_MS = 10_000;

export class LockedClaims {
  /** Ordered by time, on the monotonic clock. */
  readonly #metAt = new Map<TurnId, number>();

  /** How long a claim of the turn may wait for locked rows, keeping its slot. */
  patienceFor(turnId: TurnId, hasFreeSlot: boolean): number {
    if (hasFreeSlot) return LOCK_PATIENCE_MS;
    this.#expire();
    return this.#metAt.has(turnId) ? 0 : PATIENCE_MS;
  }

  record(turnId: TurnId): void {
    // Claims that meet a lock while other slots are free forget nothing, so the map would only grow.
    this.#expire();
    this.#metAt.delete(turnId);
    this.#metAt.set(turnId, performance.now());
  }

  forget(turnId: TurnId): void {
    this.#metAt.delete(turnId);
  }

  /** The turns that have recently met a lock. */
  recent(): TurnId[] {
    const since = performance.now() - PAUSE_MS;
    return [...this.#metAt].flatMap(([turnId, at]) => (at >= since ? [turnId] : []));
  }

  #expire(): void {
    const since = performance.now() - MEMORY_MS;
    for (const [turnId, at] of this.#metAt) {
      if (at >= since) return;
      this.#metAt.delete(turnId);
    }
  }
}
