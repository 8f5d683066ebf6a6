/** Rings that the queue has lost, and rings that later rings have passed. */
import type { Doorbell, Ring } from '@boxcar/kernel';
import { findStaleRings, type RingPlace, ringAgain } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Clock, SweepContext } from './sweep-rows.js';

/** The number of passed rings that one pass raises. */
const RAISES = 100;

/** The rings that wait in this process and not in the queue. */
export type Near = Pick<Doorbell, 'findLost' | 'raise'>;

const NONE: Near = { findLost: async (rings) => rings, raise: async () => undefined };

export class LostRings {
  readonly #runtime: RuntimeCore;
  readonly #rows: SweepContext['rows'];
  readonly #queue: SweepContext['queue'];
  readonly #lostRingMs: number;
  readonly #halfLeaseMs: number;
  readonly #near: Near;
  /**
   * Time of the last loss of a worker, on the monotonic clock. That worker may have taken rings without claiming them.
   */
  #lostWorkerAt = Number.NEGATIVE_INFINITY;
  /** The position at which the last search for old rings ended. */
  #ringsAfter: RingPlace | undefined;

  constructor(
    context: SweepContext,
    times: { readonly lostRingMs: number; readonly halfLeaseMs: number },
    near: Near = NONE,
  ) {
    this.#near = near;
    this.#runtime = context.runtime;
    this.#rows = context.rows;
    this.#queue = context.queue;
    this.#lostRingMs = times.lostRingMs;
    this.#halfLeaseMs = times.halfLeaseMs;
  }

  /** Reports the loss of a worker, which may have taken rings without claiming them. */
  workerLost(): void {
    this.#lostWorkerAt = performance.now();
  }

  async ringAgain(clock: Clock): Promise<void> {
    // The queue is unavailable, so this pass has claimed from the rows instead.
    if (this.#queue.isDoorbellUnavailable) return;
    const { rings: stale, next } = await findStaleRings(this.#runtime.pool, {
      ...clock,
      lostRingMs: this.#lostRingMs,
      after: this.#ringsAfter,
    });
    // For a while after the loss of a worker, that worker may hold any unclaimed ring. A surplus ring has no effect.
    const isDoubtful = performance.now() - this.#lostWorkerAt < 3 * this.#lostRingMs;
    const takenMs = isDoubtful ? 0 : this.#halfLeaseMs;
    const far = await this.#near.findLost(stale, { takenMs });
    const lost = far && (await this.#runtime.doorbell.findLost(far, { takenMs }));
    if (lost === undefined) this.#queue.markDoorbellUnavailable();
    if (lost === undefined) return;
    this.#ringsAfter = next;
    const isLost = new Set(lost.map(({ turnId }) => turnId));
    const isFar = new Set(far);
    const passed = stale.filter((ring) => ring.isNext && !isLost.has(ring.turnId));
    await this.#near.raise(passed);
    const passedFar = passed.filter((ring) => isFar.has(ring));
    if (passedFar.length > 0) await this.#runtime.doorbell.raise(passedFar.slice(0, RAISES));
    if (lost.length === 0) return;
    const again = await this.#rows.orAlone('lost_rings', clock, {
      all: () => ringAgain(this.#runtime.pool, lost),
      find: async () => lost.map((ring) => ({ turn_id: ring.turnId, project_id: null, ring })),
      alone: ({ ring }) => ringAgain(this.#runtime.pool, [ring]),
    });
    this.#runtime.log('info', 'sweep.rang_again', { turn_ids: again.map((ring: Ring) => ring.turnId) });
    this.#runtime.ring(again);
  }
}
