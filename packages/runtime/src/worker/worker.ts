/**
 * A worker: takes dispatched turns, runs them, and proves that it lives.
 *
 * W1  It holds turns only while its lease is valid. Before each model and tool call it checks that the last renewal is
 *     younger than the lease, by a clock that also counts suspension (`lease-clock.ts`). Otherwise it stops by itself.
 * W2  Its direct connection holds a session lock for as long as it lives, so a peer notices a death at once
 *     (`peer-watch.ts`). When only the connection breaks, the worker reports this at once by a renewal, and from then
 *     on only its lease counts.
 * W3  It never runs more turns than its concurrency, whether they arrive by a ring or from the rows. While another worker
 *     lives, it keeps no ring without a slot for it (`slots.ts`, `near-rings.ts`). A turn whose row is locked gives its slot back when others may need it; the
 *     sweep rings the turn again (`locked-claims.ts`).
 * W4  When a commit of one of its turns, or a submission of its process, dispatches a single turn, the worker takes it
 *     at once, without the queue. Its condition is a free slot and empty queues, so that no waiting ring is overtaken.
 *     If the turn is known before the commit, the same transaction claims it. A turn that the worker does not take, or
 *     fails to take, is rung. A submission of another process may reach the worker by a hint before the ring. It is
 *     taken on the same conditions, and its ring then has no effect.
 * W5  On shutdown it takes nothing new, lets turns reach their next commit, and hands the rest back.
 * W6  It renews its lease only while it can commit, and ends when it cannot (`commit-proof.ts`).
 * W7  When an error that nothing caught ends the process, turns that do not reach their next commit are handed back as
 *     lost, and each further such loss delays the next run longer (`failed-runs.ts`, A1). An error of a tool call fails
 *     only the call (`call-scope.ts`).
 *
 * The parts, each with its own state: `lease.ts` (row, lock, connection, heartbeat), `slots.ts`, `claims.ts` (from a
 * ring to a claimed turn), `row-claims.ts` (turns without a ring), `running-turns.ts` (runs, commits, aborts),
 * `orphans.ts`, `peer-watch.ts`. This file owns the state of the worker, connects the parts, and shuts them down in
 * order.
 *
 * `starting`  The row, the lock and the connection are being created. No queue is subscribed to, so no ring arrives.
 *             There is no heartbeat yet. `start` leads to `running`; a failure, or `close`, leads to `draining`.
 *
 * `running`   A ring takes a slot and its turn is claimed. A ring without a slot goes back to its queue; a ring of a
 *             turn that already runs here ends at once. A heartbeat renews the lease, aborts turns whose rows no
 *             longer name this worker as their holder, and hands orphans back. A lost lease aborts all turns and
 *             creates a new incarnation with its own id, lock and lease.
 *
 * `draining`  `close` was called, or the worker ends by itself (`outdated`). A ring ends without a claim, and the sweep
 *             of another worker rings again; own rings go to the queue. A turn that was claimed at this moment is
 *             handed back. Turns continue to their next commit, for `graceMs` at most, then they are aborted.
 *             Heartbeats continue until these turns are done, because turns may commit only under a lease. A lost lease
 *             is not replaced. A further `close` waits for the first one.
 *
 * `closed`    The row is removed and the connection ended. Rings end without effect, and there are no heartbeats.
 */
import { checkDuration, errorText, KernelError, startTimer, type WorkerId } from '@boxcar/kernel';
import { limitByLease, type Renewal, releaseTurns, removeWorker } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { noteCrashedJob } from '../door/index.js';
import { createRecorder } from '../end/index.js';
import { takeCrashedJob, withinTime } from '../lib/index.js';
import { ModelWaits } from '../model/index.js';
import { Sweeper } from '../sweep/sweeper.js';
import { LeftTurns } from '../turn/index.js';
import { INLINE_VIEW_BYTES, KeptViews, TurnLoader, ViewRoom } from '../view/index.js';
import { Claims } from './claims.js';
import { Goodbye } from './goodbye.js';
import { Lease } from './lease.js';
import { createLeaseClock, type LeaseClock } from './lease-clock.js';
import { NearRings } from './near-rings.js';
import { Orphans } from './orphans.js';
import { PeerWatch } from './peer-watch.js';
import { RowClaims } from './row-claims.js';
import { RunningTurns, type Views } from './running-turns.js';
import { Slots } from './slots.js';
import { startWatchdog, type Watchdog } from './watchdog.js';
import { completeOptions, type WorkerOptions, type WorkerState } from './worker-options.js';

export type { WorkerOptions } from './worker-options.js';

/** How long all parts of the shutdown together may take after the turns are done. */
const GOODBYE_MS = 2_000;
/** Extra time, in addition to the time limit of each queue. */
const QUEUES_MS = 500;

const toCrash = (error: unknown): KernelError =>
  error instanceof KernelError && error.code === 'worker_crashed'
    ? error
    : new KernelError('worker_crashed', { message: `Nothing caught: ${errorText(error)}.`, cause: error });

export class Worker implements AsyncDisposable {
  readonly #runtime: RuntimeCore;
  readonly #options: Required<WorkerOptions>;
  readonly #views: Views;
  readonly #slots: Slots;
  readonly #lease: Lease;
  readonly #turns: RunningTurns;
  readonly #claims: Claims;
  readonly #rowClaims: RowClaims;
  readonly #orphans: Orphans;
  /** Turns that were run here and not handed back. */
  readonly #left: LeftTurns;
  readonly #modelWaits: ModelWaits;
  readonly #sweeper: Sweeper;
  readonly #peerWatch: PeerWatch;
  readonly #near: NearRings;
  readonly #limits: Disposable;
  readonly #subscriptions: { close(): Promise<void> }[] = [];
  /** True when workers of older builds share its targets, and until the first heartbeat has found out. */
  #hasOlder = true;
  #closing: Promise<void> | undefined;
  #watchdog: Watchdog | undefined;
  /** W7: the uncaught error that ends the process, if any. */
  #crash: KernelError | undefined;
  #unwatchBuild: () => void = () => undefined;
  /** Stops the sending of callbacks to outside receivers. */
  #stopSending: () => Promise<void> = () => Promise.resolve();
  /**
   * Settles when the worker must end by itself; the worker then also closes itself. The reason is a migration that excludes
   * builds like this one, or a pool that no longer reaches the server (`database_unavailable`).
   */
  readonly outdated: Promise<KernelError>;
  #retire: (error: KernelError) => void = () => undefined;
  #state: WorkerState = 'starting';

  /** @internal Use `createWorker`. */
  constructor(runtime: RuntimeCore, options: WorkerOptions, clock = createLeaseClock()) {
    this.#runtime = runtime;
    this.#options = completeOptions(options);
    const { concurrency, leaseMs, targets, viewBytes } = this.#options;
    const state = () => this.#state;
    this.#limits = limitByLease(runtime.pool, leaseMs);
    const kept = new KeptViews();
    const room = new ViewRoom(
      viewBytes,
      () => kept.dropOldest(),
      () => this.#slots.offer(),
    );
    this.#slots = new Slots(concurrency, () => this.#claims.canClaim && room.hasRoomFor(INLINE_VIEW_BYTES));
    this.#views = { loader: new TurnLoader(runtime.pool, runtime.prices, runtime.builds), room, kept };
    this.outdated = new Promise((settle) => {
      this.#retire = (error) => {
        settle(error);
        this.#leaveOutdated(error);
      };
    });
    const records = createRecorder(runtime);
    this.#left = new LeftTurns({ runtime, record: (result, rest) => records.add(result, rest) });
    this.#modelWaits = new ModelWaits(runtime);
    this.#lease = new Lease(runtime, {
      options: this.#options,
      clock,
      gate: this.#modelWaits.gate,
      state,
      events: {
        beat: () => room.leave(kept.expire()),
        renewed: (renewal, askedAt) => this.#renewed(renewal, askedAt),
        registered: (id) => {
          this.#watchdog?.watch(id);
          this.#left.clear();
          this.#slots.offer();
        },
        expired: (reason) => {
          this.#near.letGo();
          this.#turns.abortAll(reason);
        },
        ended: (turnIds) => this.#turns.abortEnded(turnIds),
        peerJoined: (id) => {
          // After its connection was replaced, a worker hears its own notice.
          if (id !== this.#lease.id) this.#near.meet();
          this.#peerWatch.joined(id);
        },
        hinted: (ring) => this.#claims.takeHinted(ring),
        cutOff: (error) => this.#retire(error),
      },
    });
    this.#near = new NearRings({
      targets: this.#options.takesOwnRings ? targets : [],
      isStale: () => this.#lease.isStale,
      send: (rings) => runtime.afterwards(() => runtime.doorbell.ring(rings)),
    });
    const parts = { state, lease: this.#lease, left: this.#left, views: this.#views };
    this.#turns = new RunningTurns(runtime, {
      ...parts,
      modelWaits: this.#modelWaits,
      record: (result, rest) => records.add(result, rest),
    });
    const handling = { state, slots: this.#slots, turns: this.#turns };
    this.#claims = new Claims(runtime, {
      ...parts,
      ...handling,
      options: this.#options,
      near: this.#near,
      onSlotFree: () => this.#rowClaims.onSlotFree(),
    });
    this.#rowClaims = new RowClaims(runtime, {
      ...handling,
      targets,
      claims: this.#claims,
      hasOlder: () => this.#hasOlder,
    });
    this.#orphans = new Orphans(runtime, {
      left: this.#left,
      workerId: () => this.id,
      isHere: (turnId) => this.#turns.has(turnId) || this.#claims.isClaiming(turnId),
    });
    this.#sweeper = new Sweeper(runtime, {
      lostRingMs: this.#options.lostRingMs,
      leaseMs,
      claimFromRows: (which) => this.#rowClaims.claim(which),
      hasOlder: () => this.#hasOlder,
      near: this.#near,
      takeForSelectors: () => this.#rowClaims.takeForSelectors(),
      wakeProvider: (provider, rest) => this.#modelWaits.gate.wake(provider, rest),
    });
    this.#peerWatch = new PeerWatch({
      directUrl: runtime.directUrl,
      pool: runtime.pool,
      log: runtime.log,
      everyMs: this.#options.heartbeatMs,
      answerMs: leaseMs / 2,
      workerId: () => this.id,
      takeOver: () => this.#sweeper.takeOver(),
    });
  }

  get id(): WorkerId {
    return this.#lease.id;
  }

  /** Number of turns that run here. */
  get activeCount(): number {
    return this.#turns.count;
  }

  /** @internal */
  async start(): Promise<this> {
    await this.#runtime.builds.refresh();
    await this.#modelWaits.gate.start();
    const { directUrl, log } = this.#runtime;
    if (this.#options.watchdog)
      this.#watchdog = startWatchdog({ leaseMs: this.#options.leaseMs, directUrl, log });
    await this.#lease.register();
    this.#state = 'running';
    this.#lease.start();
    this.#peerWatch.start();
    for (const [workerTarget, doorbell] of this.#options.targets.flatMap((target) => [
      [target, this.#runtime.doorbell] as const,
      [target, this.#near] as const,
    ])) {
      this.#subscriptions.push(
        await this.#slots.join((queue) =>
          doorbell.listen({
            workerTarget,
            concurrency: this.#options.concurrency,
            admit: (ring) => this.#claims.admit(ring, queue),
            onEmpty: () => queue.empty(),
            handle: (ring) => this.#claims.handle(ring),
            onError: (error) => {
              this.#runtime.log('warn', 'doorbell.error', { error: errorText(error) });
              this.#sweeper.markDoorbellUnavailable();
            },
          }),
        ),
      );
    }
    // It may have been closed meanwhile.
    if (this.#state === 'running') this.#runtime.localWorkers.add(this.#claims);
    this.#stopSending = this.#runtime.webhooks.join();
    this.#sweeper.start(this.#options.sweepMs);
    this.#unwatchBuild = this.#runtime.builds.onOutdated((error) => this.#retire(error));
    this.#runtime.log('info', 'worker.started', {
      worker_id: this.id,
      concurrency: this.#options.concurrency,
      targets: this.#options.targets,
    });
    return this;
  }

  /** Passes the results of a renewal to the parts that need them. */
  #renewed(renewal: Renewal, askedAt: number): void {
    this.#modelWaits.gate.setGated(renewal.gated);
    this.#hasOlder = renewal.hasOlder;
    this.#peerWatch.setHasPeers(renewal.hasPeers);
    this.#near.renewed(renewal.hasPeers, askedAt);
    this.#slots.offer();
    this.#runtime.builds.recordMinCompatible(renewal.minCompatible);
    const heldIds = renewal.held.map(({ turnId }) => turnId);
    // The notice of a turn that was given up may have come before this worker knew that it had claimed the turn.
    this.#turns.abortUnheld(
      renewal.held.flatMap(({ turnId, isGivenUp }) => (isGivenUp ? [] : [turnId])),
      askedAt,
    );
    this.#left.forget(heldIds, askedAt);
    this.#orphans.check(renewal.held);
  }

  #leaveOutdated(error: KernelError): void {
    this.#runtime.log('error', error.code === 'database_unavailable' ? 'worker.cut_off' : 'worker.outdated', {
      worker_id: this.id,
      error: error.message,
      active: this.activeCount,
    });
    this.close().catch((failure: unknown) =>
      this.#runtime.log('warn', 'worker.stop_failed', { worker_id: this.id, error: errorText(failure) }),
    );
  }

  /**
   * Stops: takes nothing new, lets turns reach their next commit for `graceMs`, aborts the rest and hands them back.
   * Unavailable servers then delay the end by a few seconds at most.
   *
   * @param options.crash - W7: an error that nothing caught ends the process.
   * @throws AggregateError when parts of the shutdown failed; everything was tried.
   */
  async close(options: { readonly graceMs?: number; readonly crash?: unknown } = {}): Promise<void> {
    if (options.graceMs !== undefined) checkDuration(options.graceMs, 'graceMs', { allowsZero: true });
    this.#closing ??= this.#shutDown(options);
    await this.#closing;
  }

  async #shutDown(options: { readonly graceMs?: number; readonly crash?: unknown }): Promise<void> {
    this.#state = 'draining';
    if (options.crash !== undefined) {
      this.#crash = toCrash(options.crash);
      this.#turns.crash(this.#crash);
    }
    this.#unwatchBuild();
    this.#runtime.localWorkers.delete(this.#claims);
    this.#near.close();
    this.#claims.stop();
    this.#lease.stopProof();
    const graceMs = options.graceMs ?? this.#options.graceMs;
    const isCutOff = this.#lease.isCutOff;
    const goodbye = new Goodbye();
    const crashedJob = this.#crash === undefined || isCutOff ? undefined : takeCrashedJob();
    const noting =
      crashedJob && noteCrashedJob(this.#runtime.pool, crashedJob, this.#crash?.message ?? 'unknown');
    noting?.catch(() => undefined);
    // From here on no new rings are taken, which would be lost here. Settles when the rings in progress are done.
    const unsubscribing = Promise.all(this.#subscriptions.map((subscription) => subscription.close()));
    const stopping = Promise.all([this.#sweeper.stop(), this.#peerWatch.stop(), this.#stopSending()]);
    for (const early of [unsubscribing, stopping]) early.catch(() => undefined);
    await this.#finishTurns(goodbye, { graceMs, isCutOff });
    await goodbye.attempt('the note of a job that left an error', noting, GOODBYE_MS);
    // A queue that does not close is not a failure: queues hold no facts, and the doorbell closes them in any case.
    await withinTime(unsubscribing, GOODBYE_MS + QUEUES_MS, 'the queues of turns').catch((error: unknown) =>
      this.#runtime.log('warn', 'worker.queues_not_closed', { worker_id: this.id, error: errorText(error) }),
    );
    goodbye.limit(GOODBYE_MS);
    await goodbye.attempt(
      'runs in progress',
      Promise.all([...this.#claims.unfinished, this.#turns.allDone()]),
    );
    this.#lease.stopRenewing();
    if (!isCutOff) await this.#handBack(goodbye);
    await goodbye.attempt('the sweep, the watch of other workers and callbacks', stopping);
    await goodbye.attempt('the direct connection', this.#lease.relocking);
    await goodbye.attempt('the direct connection', this.#lease.disconnect());
    await goodbye.attempt('the watchdog', this.#watchdog?.stop());
    this.#state = 'closed';
    this.#left.close();
    this.#limits[Symbol.dispose]();
    this.#runtime.log('info', 'worker.stopped', { worker_id: this.id });
    if (goodbye.failures.length > 0)
      throw new AggregateError(goodbye.failures, 'The worker did not shut down cleanly.');
  }

  /** Lets turns reach their next commit, and aborts them when the grace is over. */
  async #finishTurns(
    goodbye: Goodbye,
    { graceMs, isCutOff }: { readonly graceMs: number; readonly isCutOff: boolean },
  ): Promise<void> {
    const grace = startTimer(graceMs, () =>
      this.#turns.abortAll(
        this.#crash ?? new KernelError('turn_ended', { message: 'The worker is shutting down.' }),
      ),
    );
    this.#modelWaits.close();
    await goodbye.attempt('turns in progress', this.#turns.allDone(), (isCutOff ? 0 : graceMs) + GOODBYE_MS);
    grace.clear();
  }

  /** Hands back the turns that are still held, and removes the row of the worker. */
  async #handBack(goodbye: Goodbye): Promise<void> {
    const { pool, doorbell } = this.#runtime;
    await goodbye.attempt('recording results', this.#left.record());
    // Some turns may still run in spite of their abort, when a locked row delays the record of their results.
    const begunIds = [...this.#left.begunOf(), ...this.#turns.begunIds];
    const release = (skipsLocked: boolean) => releaseTurns(pool, this.id, null, { begunIds, skipsLocked });
    // Turns whose rows are locked are waited for after the others, even when the time is over.
    const handBack = async (): Promise<void> => {
      const free = await release(true);
      await Promise.all([doorbell.ring(free), release(false).then((rings) => doorbell.ring(rings))]);
    };
    await goodbye.attempt('handing its turns back', handBack());
    await goodbye.attempt('removing its row from the database', removeWorker(pool, this.id));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** If handoffs are enabled, a worker also serves the handoff targets of its process. */
function withHandoffs({ handoffs }: RuntimeCore, options: WorkerOptions): WorkerOptions {
  if (!handoffs.isEnabled) return options;
  return { ...options, targets: [...new Set([...(options.targets ?? ['']), ...handoffs.workerTargets])] };
}

/**
 * Starts a worker in this process.
 *
 * @param clock - For tests: the clock of its lease.
 * @throws KernelError `internal_error` when the runtime is closed.
 */
export async function createWorker(
  runtime: RuntimeCore,
  options: WorkerOptions = {},
  clock?: LeaseClock,
): Promise<Worker> {
  runtime.checkOpen();
  const worker = new Worker(runtime, withHandoffs(runtime, options), clock);
  try {
    return await worker.start();
  } catch (error) {
    // Undoes the parts of the start that succeeded. The first error has the reason of the failure.
    await worker.close({ graceMs: 0 }).catch(() => undefined);
    throw error;
  }
}
