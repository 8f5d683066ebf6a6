/**
 * The claims of a worker: the way from a ring with a slot to a running turn.
 *
 * It owns the rings that have a slot and are not handled yet, the turns that are being claimed or run here, the turns
 * taken from the rows, and the turns whose rows were locked. Each handled ring gives its slot back exactly once, in
 * `#runInSlot`.
 *
 * Communication is narrow. Queues call `admit`, then `handle`. `row-claims.ts` calls `runRow` with a slot that it has
 * taken. Submissions of this process call `reserve`, and notices of other processes lead to `takeHinted`. Claims call
 * `RunningTurns.run` for a turn that they have won, and `onSlotFree` whenever a slot was given back.
 */

import { AsyncLocalStorage } from 'node:async_hooks';
import type { Ring, TurnId, WorkerId } from '@boxcar/kernel';
import { errorText } from '@boxcar/kernel';
import { claimWithViews, findRings, type ViewedClaim } from '@boxcar/store';
import type { LocalWorker, Reservation, RuntimeCore } from '../core/index.js';
import { Batcher, isLockTimeout, LOCKED, RecentMap } from '../lib/index.js';
import { type LeftTurns, noteFailedClaim } from '../turn/index.js';
import { INLINE_VIEW_BYTES } from '../view/index.js';
import { ClaimPause } from './claim-pause.js';
import type { Lease } from './lease.js';
import { LockedClaims } from './locked-claims.js';
import type { NearRings } from './near-rings.js';
import { type Claimable, LEAVES_LOCKED, type RunningTurns, type Views } from './running-turns.js';
import { Place, type SlotQueue, type Slots } from './slots.js';
import type { WorkerOptions, WorkerState } from './worker-options.js';

/** The limit of remembered hints. The ring of a forgotten hint costs a claim. */
const MAX_HINTED = 1_000;

/**
 * How long a commit keeps the slot of the turn that it claims. A commit that waits longer waits for a lock, and the slot must not wait with
 * it.
 */
const RESERVED_MS = 200;

/** An answered claim, and the worker id for which it was made. */
interface Taken {
  readonly outcome: ViewedClaim;
  readonly holderId: WorkerId;
}

export class Claims implements LocalWorker {
  readonly #runtime: RuntimeCore;
  readonly #options: Required<WorkerOptions>;
  readonly #lease: Pick<Lease, 'id' | 'isStale'>;
  readonly #slots: Slots;
  readonly #near: Pick<NearRings, 'keep'>;
  readonly #turns: RunningTurns;
  readonly #left: LeftTurns;
  readonly #state: () => WorkerState;
  readonly #onSlotFree: () => void;
  readonly #views: Views;
  readonly #claims: Batcher<Claimable, Taken>;
  readonly #locked = new LockedClaims();
  /** Rings that have a slot and are not handled yet. */
  readonly #admitted = new Set<Claimable>();
  /** The unfinished runs. A subscription waits only for those that it has delivered and that have not lent their slots. */
  readonly #unfinished = new Set<Promise<unknown>>();
  /**
   * Turns that are being claimed or run here, with their epochs. The rows may already name this worker as their holder,
   * but they are not orphans. A turn has one claim at a time: if a repeated claim finds the turn held by this worker,
   * then its first try has claimed it.
   */
  readonly #claiming = new Map<TurnId, number>();
  /** The epochs of turns that were taken by a hint and whose rings have not arrived yet. */
  readonly #hinted = new RecentMap<TurnId, number>(MAX_HINTED);
  readonly #pause: ClaimPause;
  /** The asynchronous context in which the worker was created. */
  readonly #inContext = AsyncLocalStorage.snapshot();

  constructor(
    runtime: RuntimeCore,
    parts: {
      readonly options: Required<WorkerOptions>;
      readonly lease: Pick<Lease, 'id' | 'isStale'>;
      readonly slots: Slots;
      readonly near: Pick<NearRings, 'keep'>;
      readonly views: Views;
      readonly turns: RunningTurns;
      readonly left: LeftTurns;
      readonly state: () => WorkerState;
      readonly onSlotFree: () => void;
    },
  ) {
    this.#runtime = runtime;
    this.#options = parts.options;
    this.#lease = parts.lease;
    this.#slots = parts.slots;
    this.#near = parts.near;
    this.#turns = parts.turns;
    this.#left = parts.left;
    this.#state = parts.state;
    this.#onSlotFree = parts.onSlotFree;
    this.#views = parts.views;
    this.#pause = new ClaimPause(runtime.pool, () => parts.slots.offer());
    const { room, kept } = parts.views;
    this.#claims = new Batcher(async (rings, attempt) => {
      const reservedBytes = rings.length * INLINE_VIEW_BYTES;
      await room.enter(reservedBytes);
      const holderId = this.#lease.id;
      const outcomes = await claimWithViews(runtime.pool, rings, {
        holderId,
        maxViewBytes: INLINE_VIEW_BYTES,
        build: runtime.builds.build,
        targets: parts.options.targets,
        known: kept.known,
        try: attempt,
      }).finally(() => room.leave(reservedBytes));
      return outcomes.map((outcome) =>
        outcome.outcome === 'stale' && outcome.isLocked === true ? LOCKED : { outcome, holderId },
      );
    }, LEAVES_LOCKED);
  }

  keep(rings: readonly Ring[]): readonly Ring[] {
    return this.#near.keep(rings);
  }

  isClaiming(turnId: TurnId): boolean {
    return this.#claiming.has(turnId);
  }

  /** False while claims cannot succeed: rings are then left to other workers. */
  get canClaim(): boolean {
    return !this.#pause.isOn && !this.#lease.isStale;
  }

  /** Ends the timers of claims that failed. */
  stop(): void {
    this.#pause.stop();
  }

  /** Turns whose claims have recently met locked rows. */
  get recentlyLocked(): TurnId[] {
    return this.#locked.recent();
  }

  /** Runs, and commits that may claim a turn for this worker, which have not ended yet. */
  get unfinished(): readonly Promise<unknown>[] {
    return [...this.#unfinished];
  }

  /** Takes a slot for a ring. A ring that brings no news needs no slot. */
  admit(ring: Claimable, queue: SlotQueue): boolean {
    if (this.#state() !== 'running' || this.#turns.isRunning(ring) || this.#wasHinted(ring)) return true;
    if (!queue.admit()) return false;
    this.#admitted.add(ring);
    return true;
  }

  /**
   * Runs the turn of a ring, if it can still be claimed. Never throws: the outcomes of turns are not the doorbell's
   * concern.
   */
  async handle(ring: Claimable): Promise<void> {
    if (!this.#admitted.delete(ring)) return;
    let leave = (): void => undefined;
    const lent = new Promise<void>((settle) => {
      leave = settle;
    });
    // S5: the queue counts its deliveries in progress; a turn that has lent its slot must no longer count.
    await Promise.race([this.#track(() => this.#runInSlot(ring, { onLent: leave })), lent]);
  }

  /** Runs the turn of a ring for which the caller has taken a slot. */
  runRow(ring: Ring): void {
    this.#admitted.add(ring);
    void this.handle(ring);
  }

  /** W4: takes the turn that a commit has dispatched, or rings it. Several turns are always rung for the whole pool. */
  #ring(rings: readonly Ring[]): void {
    const [only] = rings;
    if (only === undefined) return;
    if (rings.length === 1 && this.#takesOwn(only)) void this.#track(() => this.#runOwn(only));
    else this.#runtime.ring(rings);
  }

  /** W4: keeps a slot for a turn that is claimed in the same commit that dispatches it. */
  reserve(ring: Parameters<LocalWorker['reserve']>[0]): Reservation | undefined {
    const { turnId, epoch, workerTarget } = ring;
    const { room, kept } = this.#views;
    if (this.#lease.isStale || this.#turns.has(turnId) || this.#isOld(ring)) return undefined;
    if (!room.hasRoomFor(INLINE_VIEW_BYTES) || !this.#takesOwn({ workerTarget })) return undefined;
    room.take(INLINE_VIEW_BYTES);
    this.#claiming.set(turnId, epoch);
    const holderId = this.#lease.id;
    const { targets } = this.#options;
    const along = {
      rings: [{ turnId, epoch }],
      holderId,
      maxViewBytes: INLINE_VIEW_BYTES,
      build: this.#runtime.builds.build,
      targets,
      known: kept.known,
    };
    // A closing worker waits for this commit as well.
    let end = (): void => undefined;
    const settled = new Promise<void>((resolve) => {
      end = resolve;
    });
    this.#unfinished.add(settled);
    let isLent = false;
    const lend = (): void => {
      isLent = true;
      room.leave(INLINE_VIEW_BYTES);
      this.#slots.release();
      this.#unfinished.delete(settled);
      end();
      this.#onSlotFree();
    };
    const patience = setTimeout(lend, RESERVED_MS);
    const settle = (outcome: ViewedClaim | undefined): void => {
      clearTimeout(patience);
      const taken = outcome && { outcome, holderId };
      const isKept = outcome?.outcome === 'claimed';
      if (!isLent) room.leave(INLINE_VIEW_BYTES);
      const hasSlot = !isLent || (isKept && this.#slots.take());
      // A run in a slot ends the claim itself once it is answered.
      if ((taken === undefined || (!isKept && !hasSlot)) && this.#claiming.get(turnId) === epoch)
        this.#claiming.delete(turnId);
      if (!hasSlot) {
        void this.#inContext(() => this.#settleWithoutSlot(turnId, taken));
        return;
      }
      const running = this.#track(async () => {
        if (!(await this.#runInSlot({ turnId, epoch }, { taken, isRepeated: true })))
          await this.#ringUnclaimed(turnId);
      });
      void running.finally(() => {
        this.#unfinished.delete(settled);
        end();
      });
    };
    return { along, settle };
  }

  /** The commit took so long that its slot went to another turn, and no slot is free now. */
  async #settleWithoutSlot(turnId: TurnId, taken: Taken | undefined): Promise<void> {
    if (taken?.outcome.outcome === 'claimed') {
      await this.#turns.giveBack(taken.outcome.turn, taken.holderId);
      if (this.#claiming.get(turnId) === taken.outcome.turn.epoch) this.#claiming.delete(turnId);
    } else if (taken === undefined) await this.#ringUnclaimed(turnId);
  }

  /**
   * A commit whose answer was lost may already have claimed this turn for this worker, so the turn precedes waiting
   * rings. Without a free slot, the heartbeat finds it.
   */
  recover(ring: Claimable): void {
    if (this.#state() !== 'running' || this.#turns.has(ring.turnId) || this.#isOld(ring)) return;
    if (!this.#slots.take()) return;
    void this.#track(() => this.#runInSlot(ring, { isRepeated: true }));
  }

  /** W4: takes a turn whose ring is on its way. */
  takeHinted(ring: Ring): void {
    if (this.#turns.isRunning(ring) || this.#isOld(ring) || !this.#takesOwn(ring)) return;
    void this.#track(async () => {
      if (await this.#runInSlot(ring, { onClaimed: () => this.#hinted.set(ring.turnId, ring.epoch) })) return;
      // Its ring may have arrived meanwhile and have been treated as an old ring.
      this.#runtime.ring([ring]);
    });
  }

  /** Whether this is the ring of a turn that was taken by a hint. */
  #wasHinted({ turnId, epoch }: Claimable): boolean {
    return this.#hinted.get(turnId) === epoch && this.#hinted.delete(turnId);
  }

  /**
   * Runs a turn in the asynchronous context of the worker: models and tools must not see the context of the code that
   * submitted it.
   */
  #track(run: () => Promise<unknown>): Promise<unknown> {
    const running = this.#inContext(run);
    this.#unfinished.add(running);
    return running.finally(() => this.#unfinished.delete(running));
  }

  /** True when this worker may take the turn; then a slot was taken for it. */
  #takesOwn({ workerTarget }: { readonly workerTarget: string | undefined }): boolean {
    return (
      this.#options.takesOwnRings &&
      this.#state() === 'running' &&
      (workerTarget === undefined || this.#options.targets.includes(workerTarget)) &&
      this.#slots.takeOwn()
    );
  }

  /** The state of the turn could not be determined. Other workers are rung if the turn is dispatched. */
  async #ringUnclaimed(turnId: TurnId): Promise<void> {
    const rings = await findRings(this.#runtime.pool, [turnId]).catch(() => []);
    this.#runtime.ring(rings);
  }

  async #runOwn(ring: Ring): Promise<void> {
    if (!(await this.#runInSlot(ring))) this.#runtime.ring([ring]);
  }

  /**
   * The turn is being claimed or run here, or was left here: another claim handles this ring, or its claim cannot win.
   */
  #isOld({ turnId, epoch }: Claimable): boolean {
    return Math.max(this.#claiming.get(turnId) ?? 0, this.#left.epochOf(turnId)) >= epoch;
  }

  /**
   * Claims and runs the turn, and gives the slot back. @returns False when it could not determine whether the turn can
   * be claimed.
   */
  async #runInSlot(
    ring: Claimable,
    {
      onLent,
      onClaimed,
      taken,
      isRepeated = false,
    }: {
      readonly onLent?: () => void;
      readonly onClaimed?: () => void;
      /** The claim that was made in another commit. */
      readonly taken?: Taken | undefined;
      /** An earlier claim may have won. */
      readonly isRepeated?: boolean;
    } = {},
  ): Promise<boolean> {
    let isAnswered = taken !== undefined;
    let isOurs = isAnswered;
    const place = new Place(this.#slots, () => {
      this.#onSlotFree();
      onLent?.();
    });
    try {
      if (taken === undefined) {
        // The end of a child may resume the turn while its suspended run is still being cleaned up here.
        await this.#turns.doneOf(ring.turnId);
        if (this.#state() !== 'running' || this.#lease.isStale) return false;
        if (this.#isOld(ring)) return true;
        isOurs = true;
        this.#claiming.set(ring.turnId, ring.epoch);
      }
      const claim = { lockedMs: () => this.#locked.patienceFor(ring.turnId, this.#slots.free > 0) };
      const { outcome, holderId } = taken ?? (await this.#claims.add(ring, { ...claim, isRepeated }));
      isAnswered = true;
      this.#pause.claimed();
      this.#locked.forget(ring.turnId);
      if (outcome.outcome === 'claimed') {
        onClaimed?.();
        await this.#turns.run(outcome, {
          holderId,
          ring: (rings) => this.#ring(rings),
          reserve: (resumed) => this.reserve(resumed),
          whileWaiting: (work, signal) => place.whileWaiting(work, signal),
        });
      }
    } catch (error) {
      if (!isAnswered && isLockTimeout(error)) {
        this.#locked.record(ring.turnId);
        this.#runtime.log('info', 'turn.locked', { turn_id: ring.turnId, epoch: ring.epoch });
        return true;
      }
      this.#runtime.log('error', 'turn.failed_to_run', {
        turn_id: ring.turnId,
        epoch: ring.epoch,
        error: errorText(error),
      });
      // A failed claim is noted, and the sweep rings later, so this worker does not ring now.
      isAnswered ||= await noteFailedClaim(this.#runtime, ring, error);
      if (!isAnswered && this.#state() === 'running') this.#pause.start();
    } finally {
      if (isOurs && this.#claiming.get(ring.turnId) === ring.epoch) this.#claiming.delete(ring.turnId);
      place.leave();
      this.#onSlotFree();
    }
    return isAnswered;
  }
}
