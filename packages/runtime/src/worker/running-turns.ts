/**
 * The turns that a worker runs.
 *
 * It owns the running turns with their abort signals, and the batchers of commits and results. It does not handle
 * slots, claims or the lease: it only reads whether the lease is stale.
 *
 * Communication is narrow. Claims call `run`, `isRunning` and `doneOf`. The worker aborts turns, waits for them, and
 * reports why the process ends (`crash`). A run gives its rings to the `ring` function that it received.
 */
import { setMaxListeners } from 'node:events';
import {
  errorText,
  KernelError,
  type Ring,
  type ToolCallId,
  type TurnId,
  type WorkerId,
} from '@boxcar/kernel';
import {
  type AdvanceOutcome,
  type ClaimAlong,
  commitSteps,
  type HeldAt,
  releaseTurns,
  type StepCommit,
  type ViewedClaim,
  wakeDecided,
} from '@boxcar/store';
import { claimOf, joinAlong, type Reservation, type RuntimeCore } from '../core/index.js';
import type { Recorder } from '../end/index.js';
import { Batcher, LOCKED, RecentMap } from '../lib/index.js';
import type { ModelWaits } from '../model/index.js';
import {
  type HeldTurn,
  handBackFailed,
  type LeftTurns,
  recordLeft,
  runTurn,
  type StepResults,
  type TurnHost,
} from '../turn/index.js';
import { type KeptViews, type TurnLoader, TurnView, type ViewRoom } from '../view/index.js';
import { advanceSteps } from './advance-steps.js';
import type { Lease } from './lease.js';
import { pairRings, type RungCommit } from './own-rings.js';
import type { Place } from './slots.js';
import type { WorkerState } from './worker-options.js';

/** A turn leaves its batch when its row is locked, so that it does not delay the others. */
export const LEAVES_LOCKED = { leavesLocked: true };

export type Claimable = Pick<Ring, 'turnId' | 'epoch'>;

/** The views of a worker in memory. */
export interface Views {
  readonly loader: TurnLoader;
  readonly room: ViewRoom;
  readonly kept: KeptViews;
}

/** A commit, and the claim of the turn that it resumes. */
interface CommitItem {
  readonly commit: StepCommit;
  readonly along: ClaimAlong | undefined;
}

/** Undefined: the commit was made without the claim. */
type Committed = RungCommit & { readonly claim: ViewedClaim | undefined };

/** The limit of remembered suspended turns. The claim of a forgotten turn needs a round trip of its own. */
const MAX_RESUMABLE = 1_000;

interface Active {
  readonly epoch: number;
  /** On the worker's monotonic clock. */
  readonly since: number;
  readonly controller: AbortController;
  /** Calls of the turn that were begun and must not be run twice. */
  readonly begunIds: ReadonlySet<ToolCallId>;
  readonly done: Promise<void>;
}

export class RunningTurns {
  readonly #runtime: RuntimeCore;
  readonly #views: Views;
  readonly #lease: Pick<Lease, 'id' | 'isStale'>;
  readonly #left: LeftTurns;
  readonly #modelWaits: ModelWaits;
  readonly #record: Recorder['add'];
  readonly #state: () => WorkerState;
  readonly #active = new Map<TurnId, Active>();
  readonly #commits: Batcher<CommitItem, Committed>;
  /** Turns that were suspended here for one call, with the epochs at which its answer dispatches them. */
  readonly #resumable = new RecentMap<TurnId, number>(MAX_RESUMABLE);
  readonly #advances: Batcher<StepResults, AdvanceOutcome>;
  /** W7: the uncaught error that ends the process, if any. */
  #crash: KernelError | undefined;

  constructor(
    runtime: RuntimeCore,
    parts: {
      readonly views: Views;
      readonly lease: Pick<Lease, 'id' | 'isStale'>;
      /** Turns that were run here and not handed back. */
      readonly left: LeftTurns;
      readonly modelWaits: ModelWaits;
      readonly record: Recorder['add'];
      readonly state: () => WorkerState;
    },
  ) {
    this.#runtime = runtime;
    this.#views = parts.views;
    this.#lease = parts.lease;
    this.#left = parts.left;
    this.#modelWaits = parts.modelWaits;
    this.#record = parts.record;
    this.#state = parts.state;
    this.#commits = new Batcher(async (items, attempt) => {
      const commits = items.map(({ commit }) => commit);
      const along = joinAlong(items.map((item) => item.along));
      const result = await commitSteps(runtime.pool, commits, { ...attempt, along });
      const paired = pairRings(commits, result);
      runtime.ring(paired.others);
      runtime.watcher.tell(
        commits.flatMap(({ turnId, end }, index) =>
          end !== null && result.outcomes[index]?.outcome === 'committed' ? [turnId] : [],
        ),
      );
      runtime.announceEnds(result);
      const locked = new Set(result.lockedTurnIds);
      return paired.commits.map((rung, index) => {
        const turnId = commits[index]?.turnId;
        if (turnId !== undefined && locked.has(turnId)) return LOCKED;
        return { ...rung, claim: claimOf(items[index]?.along, along, result.claims) };
      });
    }, LEAVES_LOCKED);
    this.#advances = new Batcher(async (advances, attempt) => {
      const { outcomes, rings } = await advanceSteps(runtime.pool, advances, attempt);
      runtime.ring(rings);
      return outcomes;
    }, LEAVES_LOCKED);
  }

  get count(): number {
    return this.#active.size;
  }

  has(turnId: TurnId): boolean {
    return this.#active.has(turnId);
  }

  /** Settles when the run of the turn in this worker is over. */
  doneOf(turnId: TurnId): Promise<void> | undefined {
    return this.#active.get(turnId)?.done;
  }

  /** Settles when the turns that run now are done. */
  allDone(): Promise<unknown> {
    return Promise.all([...this.#active.values()].map((active) => active.done));
  }

  /** The begun calls of the turns that still run. */
  get begunIds(): readonly ToolCallId[] {
    return [...this.#active.values()].flatMap((active) => [...active.begunIds]);
  }

  /** W7: an error that nothing caught ends the process. */
  crash(error: KernelError): void {
    this.#crash = error;
  }

  /** A ring of the epoch that runs here, or of an older epoch, brings no news. */
  isRunning(ring: Claimable): boolean {
    const active = this.#active.get(ring.turnId);
    return active !== undefined && active.epoch >= ring.epoch;
  }

  /** Aborts turns that were ended while this worker ran them. */
  abortEnded(turnIds: readonly TurnId[]): void {
    for (const id of turnIds)
      this.#active.get(id)?.controller.abort(
        new KernelError('turn_ended', {
          message: 'The turn has ended, or is in other hands.',
          details: { turn_id: id },
        }),
      );
  }

  /**
   * For lost notices of ends: aborts turns that were running before the rows were read and whose rows did not name this
   * worker as their holder.
   */
  abortUnheld(held: readonly TurnId[], askedAt: number): void {
    const ours = new Set(held);
    this.abortEnded(
      [...this.#active].flatMap(([id, { since }]) => (since < askedAt && !ours.has(id) ? [id] : [])),
    );
  }

  abortAll(reason: KernelError): void {
    for (const { controller } of this.#active.values()) controller.abort(reason);
  }

  async run(
    { turn, view: claimed }: Extract<ViewedClaim, { outcome: 'claimed' }>,
    of: {
      readonly holderId: WorkerId;
      readonly ring: HeldTurn['ring'];
      readonly reserve: (ring: Claimable) => Reservation | undefined;
      readonly whileWaiting: Place['whileWaiting'];
    },
  ): Promise<void> {
    const { holderId, ring, reserve, whileWaiting } = of;
    // W5: claimed while the worker was closing, so its abort signal may have come before this turn was registered.
    // W1: claimed for an identity that the worker has lost in the meantime.
    if (this.#state() !== 'running' || holderId !== this.#lease.id || this.#lease.isStale) {
      await this.giveBack(turn, holderId);
      return;
    }
    const view = new TurnView(this.#views, turn, claimed);
    const controller = new AbortController();
    // Each tool call of a step adds a listener, and the number of calls is the model's choice.
    setMaxListeners(0, controller.signal);
    const held: HeldTurn = {
      turn,
      view,
      holderId,
      begunIds: new Set(),
      gatedIds: new Set(),
      names: new Map(),
      unrecorded: new Map(),
      callsElsewhere: 0,
      signal: controller.signal,
      ring,
    };
    let isWarming = turn.warmsCache;
    const letOthersIn = (): void => {
      if (isWarming) this.#runtime.letWarmedIn(turn.turnId);
      isWarming = false;
    };
    const host: TurnHost = {
      runtime: this.#runtime,
      loader: this.#views.loader,
      modelWaits: this.#modelWaits,
      commit: async (commit) => {
        const reservation = this.#reserveParent(commit, reserve);
        let claim: ViewedClaim | undefined;
        try {
          const committed = await this.#commits.add({ commit, along: reservation?.along });
          claim = committed.claim;
          // A reservation handles the turn itself, unless it found the turn stale, because another worker may have it.
          const isSeenTo = reservation !== undefined && claim?.outcome !== 'stale';
          ring(isSeenTo ? [] : committed.rings);
          letOthersIn();
          return committed.outcome;
        } finally {
          reservation?.settle(claim);
        }
      },
      advance: (results) => this.#advances.add(results),
      record: (result, options) => this.#record(result, options),
      checkLease: () => {
        if (this.#lease.isStale)
          controller.abort(
            new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }),
          );
        controller.signal.throwIfAborted();
      },
      isDraining: () => this.#state() !== 'running',
      whileWaiting: (work) => {
        // S4: the turn that this turn waits for may need the memory. The view is read again if it is needed again.
        view.drop();
        return whileWaiting(work, controller.signal);
      },
    };
    const done = (async () => {
      let isLeft = false;
      try {
        const outcome = await runTurn(host, held);
        if (outcome === 'released')
          this.#runtime.ring(await releaseTurns(this.#runtime.pool, holderId, [turn]));
        if (outcome === 'suspended' && held.callsElsewhere === 1)
          this.#resumable.set(turn.turnId, turn.epoch + 1);
        // A suspended turn leaves its place in the window, and no end will notify the queue.
        if (outcome === 'suspended') this.#runtime.promoteSoon(turn.workerTarget);
        // A decision that came before the turn was suspended has not woken it.
        if (outcome === 'suspended' && held.gatedIds.size > 0)
          this.#runtime.ring(await wakeDecided(this.#runtime.pool, [turn.turnId]));
        // After an aborted run this worker may still hold the turn, whatever the result of the run was.
        isLeft = controller.signal.aborted;
        this.#runtime.log('debug', 'turn.left', { turn_id: turn.turnId, epoch: turn.epoch, outcome });
      } catch (error) {
        this.#runtime.log(controller.signal.aborted ? 'info' : 'error', 'turn.interrupted', {
          turn_id: turn.turnId,
          epoch: turn.epoch,
          error: errorText(error),
        });
        // The turn is handed back at once; each further failure delays the next ring longer. An aborted turn belongs to
        // another worker or has ended, or the shutdown hands it back. A turn whose results wait for the database is not
        // handed back before they are recorded.
        const isCrash = this.#crash !== undefined && controller.signal.reason === this.#crash;
        const left = controller.signal.aborted && !isCrash ? 'waiting' : await recordLeft(host, held);
        const isHandedBack =
          left !== 'waiting' &&
          (await handBackFailed(
            this.#runtime,
            { turn, holderId, begunIds: [...held.begunIds] },
            { error: isCrash ? this.#crash : error, loader: this.#views.loader },
          ));
        isLeft = !isHandedBack || left === 'failing';
      } finally {
        letOthersIn();
        if (isLeft) this.#left.add(held);
        view.drop();
        if (this.#active.get(turn.turnId)?.controller === controller) this.#active.delete(turn.turnId);
      }
    })();
    this.#active.set(turn.turnId, {
      epoch: turn.epoch,
      since: performance.now(),
      controller,
      begunIds: held.begunIds,
      done,
    });
    await done;
  }

  /** Reserves a slot for the turn that waits for the end of this turn and was suspended here. */
  #reserveParent(
    { end }: StepCommit,
    reserve: (ring: Claimable) => Reservation | undefined,
  ): Reservation | undefined {
    const turnId = end?.settles?.turnId;
    const epoch = turnId === undefined ? undefined : this.#resumable.get(turnId);
    if (turnId === undefined || epoch === undefined) return undefined;
    this.#resumable.delete(turnId);
    return reserve({ turnId, epoch });
  }

  /**
   * Hands back a turn that has not run at all. If the database cannot be reached now, the heartbeat finds the turn
   * later as an orphan.
   */
  async giveBack(turn: HeldAt, holderId: WorkerId): Promise<void> {
    const { turnId } = turn;
    try {
      this.#runtime.ring(await releaseTurns(this.#runtime.pool, holderId, [turn], { begunIds: [] }));
    } catch (error) {
      this.#runtime.log('warn', 'turn.not_given_back', { turn_id: turnId, error: errorText(error) });
    }
  }
}
