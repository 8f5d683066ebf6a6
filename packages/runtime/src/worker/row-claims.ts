/**
 * Takes turns directly from the rows at times when rings may fail to reach this worker: while the queue is unavailable,
 * while older builds share its targets, and when turns wait for a selector that this process has.
 *
 * It owns the flags for turns that are left over for the next free slot. It takes a slot before it hands a turn to the
 * claims.
 */
import type { Ring } from '@boxcar/kernel';
import { findReady, putOffSelectorWaits, takeForSelectors } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Claims } from './claims.js';
import type { RunningTurns } from './running-turns.js';
import type { Slots } from './slots.js';
import type { WorkerState } from './worker-options.js';

/**
 * Every fourth check of the rows starts with the oldest turn. Otherwise projects with fewer turns could always go
 * first.
 */
const OLDEST_EVERY = 4;

export class RowClaims {
  readonly #runtime: RuntimeCore;
  readonly #targets: readonly string[];
  readonly #slots: Slots;
  readonly #claims: Claims;
  readonly #turns: RunningTurns;
  readonly #state: () => WorkerState;
  readonly #hasOlder: () => boolean;
  /** More turns that only newer builds can read were ready than there were slots. */
  #hasMoreNewer = false;
  /** More turns waited for selectors of this process than there were slots. */
  #hasMoreSelected = false;
  /** Slots that became free while such turns waited and the queues were not empty. */
  #sharedSlots = 0;
  /** Number of checks of the rows. */
  #looks = 0;

  /** @param parts.hasOlder - True when workers of older builds share its targets. */
  constructor(
    runtime: RuntimeCore,
    parts: {
      readonly targets: readonly string[];
      readonly slots: Slots;
      readonly claims: Claims;
      readonly turns: RunningTurns;
      readonly state: () => WorkerState;
      readonly hasOlder: () => boolean;
    },
  ) {
    this.#runtime = runtime;
    this.#targets = parts.targets;
    this.#slots = parts.slots;
    this.#claims = parts.claims;
    this.#turns = parts.turns;
    this.#state = parts.state;
    this.#hasOlder = parts.hasOlder;
  }

  /** Call when a slot was given back. Searches again for turns that were left over. */
  onSlotFree(): void {
    if (this.#hasMoreNewer) void this.#claimMoreNewer();
    // The queues keep every second slot, so neither side must wait until the other is empty.
    if (this.#hasMoreSelected && (this.#slots.isIdle || ++this.#sharedSlots % 2 === 0))
      void this.#takeMoreSelected();
  }

  /**
   * Takes dispatched turns directly from the rows, as many as there are free slots. For times when rings may fail to
   * arrive.
   */
  async claim(options: { readonly isOnlyNewer?: boolean } = {}): Promise<void> {
    const limit = this.#slots.free;
    if (this.#state() !== 'running' || limit === 0) {
      if (options.isOnlyNewer === true) this.#hasMoreNewer = true;
      return;
    }
    const { schemaVersion } = this.#runtime.builds.build;
    const isOldestFirst = ++this.#looks % OLDEST_EVERY === 0;
    const rings = await findReady(this.#runtime.pool, this.#targets, limit, {
      ...options,
      schemaVersion,
      isOldestFirst,
      exceptIds: this.#claims.recentlyLocked,
    });
    if (options.isOnlyNewer === true) this.#hasMoreNewer = rings.length === limit;
    this.#take(rings);
  }

  #take(rings: readonly Ring[]): void {
    for (const ring of rings) {
      if (this.#state() !== 'running' || this.#turns.isRunning(ring)) continue;
      if (!this.#slots.take()) break;
      this.#claims.runRow(ring);
    }
  }

  /**
   * Takes turns that other workers have handed back because they lack the selector. Slots are taken before the turns
   * are woken: a woken turn that is not claimed is rung by the sweep, and may reach a worker without the selector
   * again.
   */
  async takeForSelectors({ isSweep = true } = {}): Promise<void> {
    const targets = this.#targets;
    const selectors = this.#runtime.selectors.refs;
    if (this.#state() !== 'running' || selectors.length === 0) return;
    let limit = 0;
    while (this.#slots.take()) limit++;
    let taken: readonly Ring[] = [];
    let used = 0;
    try {
      taken = await takeForSelectors(this.#runtime.pool, { targets, selectors }, limit);
      for (const ring of taken) {
        if (this.#state() !== 'running' || this.#turns.isRunning(ring)) continue;
        this.#claims.runRow(ring);
        used++;
      }
    } finally {
      for (; used < limit; used++) this.#slots.release();
    }
    this.#hasMoreSelected = taken.length === limit;
    if (this.#hasMoreSelected && isSweep)
      await putOffSelectorWaits(this.#runtime.pool, { targets, selectors });
  }

  async #takeMoreSelected(): Promise<void> {
    this.#hasMoreSelected = false;
    try {
      await this.takeForSelectors({ isSweep: false });
    } catch {
      // The sweep searches again within a second.
    }
  }

  async #claimMoreNewer(): Promise<void> {
    this.#hasMoreNewer = false;
    try {
      if (this.#hasOlder()) await this.claim({ isOnlyNewer: true });
    } catch {
      // The sweep searches again within a second.
    }
  }
}
