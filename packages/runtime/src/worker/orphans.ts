/**
 * The orphans of a worker: turns that it does not run although the rows name it as their holder. Owns the orphans that
 * the last heartbeat found, and the orphans that cannot be handed back.
 */

import type { TurnId, WorkerId } from '@boxcar/kernel';
import { errorText } from '@boxcar/kernel';
import { type HeldAt, isServerTrouble, releaseTurns } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { type LeftTurns, releaseEach } from '../turn/index.js';

export class Orphans {
  readonly #runtime: RuntimeCore;
  readonly #left: LeftTurns;
  readonly #workerId: () => WorkerId;
  readonly #isHere: (turnId: TurnId) => boolean;
  #suspects = new Map<TurnId, number>();
  /** Orphans that cannot be handed back because they have been given up. */
  readonly #unreleasable = new Set<TurnId>();
  #releasing: Promise<void> | undefined;

  /** @param parts.isHere - True for a turn that is being claimed or run here. */
  constructor(
    runtime: RuntimeCore,
    parts: {
      readonly left: LeftTurns;
      readonly workerId: () => WorkerId;
      readonly isHere: (turnId: TurnId) => boolean;
    },
  ) {
    this.#runtime = runtime;
    this.#left = parts.left;
    this.#workerId = parts.workerId;
    this.#isHere = parts.isHere;
  }

  /**
   * Runs in parallel with the heartbeat: it needs a connection of the pool, and the lease must not wait for a
   * connection.
   *
   * @param held - The turns whose rows name this worker as their holder.
   */
  check(held: readonly HeldAt[]): void {
    this.#releasing ??= this.#release(held).finally(() => {
      this.#releasing = undefined;
    });
  }

  /**
   * Hands back turns whose rows name this worker as their holder but that it does not run, because the answer to a
   * claim or a commit was lost. Two consecutive heartbeats must find such a turn at the same epoch. A turn whose row is
   * locked is left to the next heartbeat.
   */
  async #release(held: readonly HeldAt[]): Promise<void> {
    const orphans = new Map(
      held.flatMap(({ turnId, epoch }) => (this.#isHere(turnId) ? [] : [[turnId, epoch] as const])),
    );
    for (const id of this.#unreleasable) if (!orphans.has(id)) this.#unreleasable.delete(id);
    const confirmed = [...orphans].flatMap(([turnId, epoch]) =>
      this.#suspects.get(turnId) !== epoch || this.#unreleasable.has(turnId) || this.#left.owes(turnId)
        ? []
        : [{ turnId, epoch }],
    );
    this.#suspects = orphans;
    if (confirmed.length === 0) return;
    const confirmedIds = confirmed.map(({ turnId }) => turnId);
    this.#runtime.log('warn', 'worker.orphans_released', {
      worker_id: this.#workerId(),
      turn_ids: confirmedIds,
    });
    const holderId = this.#workerId();
    try {
      const begunIds = this.#left.begunOf(confirmedIds);
      const options = { begunIds, skipsLocked: true };
      const rings = await releaseTurns(this.#runtime.pool, holderId, confirmed, options).catch(
        async (error: unknown) => {
          if (isServerTrouble(error)) throw error;
          // A row that cannot be written must not prevent the others from being handed back.
          const held = { holderId, begunIds };
          for (const id of await releaseEach(this.#runtime, held, confirmed)) this.#unreleasable.add(id);
          return [];
        },
      );
      this.#runtime.ring(rings);
    } catch (error) {
      // These turns stay suspects, so the next heartbeat tries again.
      this.#runtime.log('warn', 'turn.not_given_back', { turn_ids: confirmedIds, error: errorText(error) });
    }
  }
}
