/**
 * A worker: takes dispatched turns, runs them, and proves that it lives.
 *
 * W1  It holds turns only while its lease lives: before each model and tool call it checks, by its own monotonic clock,
 *     that the last renewal is younger than the lease; later renewals or none, it stops on its own.
 * W2  Its direct connection holds a session lock for as long as it lives, so a peer notices a death at once (`peer-watch.ts`).
 *     When the connection breaks and not the worker, it says so at once by a renewal, and only its lease counts.
 * W3  It never runs more turns than its concurrency, whichever way they come: ring, or straight from the rows.
 * W4  A turn that a commit of its own turns has dispatched it takes at once, without the queue, while it has a free slot: then no
 *     ring waits for one, so nobody is overtaken. It is a part of the job that its slot was taken beside: the queue never brings more than
 *     there are slots for. What it cannot take, or fails to, is rung.
 * W5  On shutdown it takes nothing new, lets turns reach their next commit, and hands the rest back.
 */
import { randomInt } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { hostname } from 'node:os';
import { KernelError, type Ring, type TurnId, tryParseId, type WorkerId } from '@boxcar/kernel';
import {
  type AdvanceOutcome,
  advanceTurns,
  CANCELED_CHANNEL,
  claimWithViews,
  commitSteps,
  findReady,
  finishSteps,
  isTransient,
  type Renewal,
  registerWorker,
  releaseTurns,
  removeWorker,
  renewLease,
  type StepCommit,
  type ViewedClaim,
} from '@boxcar/store';
import pg from 'pg';
import { Batcher } from '../batcher.js';
import { newId } from '../packer.js';
import type { Runtime } from '../runtime.js';
import type { StepResults, TurnHost } from './held-turn.js';
import { KeptViews } from './kept-views.js';
import { TurnLoader } from './loader.js';
import { ModelWaits } from './model-waits.js';
import { pairRings, type RungCommit } from './own-rings.js';
import { PeerWatch } from './peer-watch.js';
import { runTurn } from './run-turn.js';
import { Sweeper } from './sweeper.js';
import { INLINE_VIEW_BYTES, TurnView } from './turn-view.js';
import { ViewRoom } from './view-room.js';

export interface WorkerOptions {
  /** Turns at once. Default 10. */
  readonly concurrency?: number;
  /** Worker targets it serves; `''` is the default pool. */
  readonly targets?: readonly string[];
  /** How long its turns stay its own without a renewal. Default 10,000. */
  readonly leaseMs?: number;
  readonly heartbeatMs?: number;
  readonly sweepMs?: number;
  /** After how long a dispatched turn that nobody claimed is looked into. */
  readonly lostRingMs?: number;
  /** How long turns may take to their next commit when it closes. Default 10,000. */
  readonly graceMs?: number;
  /** Contents of prompts held in memory at once, about, in bytes; above it claims wait. Default 64 MiB. */
  readonly viewBytes?: number;
  /** False: what its turns dispatch goes through the queue, like anything else. Default true. */
  readonly takesOwnRings?: boolean;
}

type Claimable = Pick<Ring, 'turnId' | 'epoch'>;

/** What a job of the queue, or a look into the rows, has brought, and what its turns have rung here since. */
type Following = Promise<void>[];

interface Active {
  readonly epoch: number;
  /** By the worker's monotonic clock. */
  readonly since: number;
  readonly controller: AbortController;
  readonly done: Promise<void>;
}

/** Steps that are wholly answered take the short way; what that way leaves over, and all others, the long one. */
async function advance(
  pool: pg.Pool,
  advances: readonly StepResults[],
): Promise<Awaited<ReturnType<typeof advanceTurns>>> {
  const whole = advances.filter((item) => item.isWhole);
  const finished = whole.length === 0 ? undefined : await finishSteps(pool, whole);
  const others = advances.filter((item) => finished?.has(item.turnId) !== true);
  const slow = others.length === 0 ? undefined : await advanceTurns(pool, others);
  const outcomes = advances.map((item): AdvanceOutcome => {
    const step = finished?.get(item.turnId);
    if (step !== undefined) return { outcome: 'open', ...step };
    return slow?.outcomes[others.indexOf(item)] ?? { outcome: 'fenced' };
  });
  return { outcomes, rings: slow?.rings ?? [] };
}

const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export class Worker implements AsyncDisposable {
  readonly #runtime: Runtime;
  readonly #options: Required<WorkerOptions>;
  readonly #active = new Map<TurnId, Active>();
  /** What was taken straight from the rows: no subscription waits for it. */
  readonly #fromRows = new Set<Promise<void>>();
  readonly #claims: Batcher<Claimable, { outcome: ViewedClaim; holderId: WorkerId }>;
  readonly #commits: Batcher<StepCommit, RungCommit>;
  readonly #advances: Batcher<StepResults, AdvanceOutcome>;
  readonly #kept = new KeptViews();
  readonly #room: ViewRoom;
  readonly #loader: TurnLoader;
  readonly #sweeper: Sweeper;
  readonly #modelWaits: ModelWaits;
  readonly #peerWatch: PeerWatch;
  readonly #subscriptions: { close(): Promise<void> }[] = [];
  #id: WorkerId = newId<'worker'>();
  #direct: pg.Client | undefined;
  #relocking: Promise<void> | undefined;
  #renewedAt = 0;
  #heartbeat: NodeJS.Timeout | undefined;
  #isBeating = false;
  /** Its lock was lost while a renewal was under way that still said otherwise. */
  #mustBeatAgain = false;
  #suspects = new Set<TurnId>();
  /** Claims that have not been answered yet: theirs by the rows, maybe, and not orphans. */
  readonly #claiming = new Set<TurnId>();
  /** Workers of older builds share its targets; until the first heartbeat has told, they may. */
  #hasOlder = true;
  /** There was more of what only newer builds can read than there were slots. */
  #hasMoreNewer = false;
  #closing: Promise<void> | undefined;
  #unwatchBuild: () => void = () => undefined;
  /** Settles once a migration has shut out builds like this one; the worker closes itself then. */
  readonly outdated: Promise<KernelError>;
  #retire: (error: KernelError) => void = () => undefined;
  #slots: number;
  readonly #slotWaiters: (() => void)[] = [];
  #state: 'starting' | 'running' | 'draining' | 'closed' = 'starting';

  /** @internal Use `createWorker`. */
  constructor(runtime: Runtime, options: WorkerOptions) {
    const leaseMs = options.leaseMs ?? 10_000;
    this.#runtime = runtime;
    this.#options = {
      concurrency: options.concurrency ?? 10,
      targets: options.targets ?? [''],
      leaseMs,
      heartbeatMs: options.heartbeatMs ?? Math.max(Math.floor(leaseMs / 4), 50),
      sweepMs: options.sweepMs ?? 1_000,
      lostRingMs: options.lostRingMs ?? 2_000,
      graceMs: options.graceMs ?? 10_000,
      viewBytes: options.viewBytes ?? 64 * 1024 * 1024,
      takesOwnRings: options.takesOwnRings ?? true,
    };
    if (this.#options.concurrency < 1 || !Number.isInteger(this.#options.concurrency)) {
      throw new KernelError('bad_config', {
        message: 'concurrency: must be a whole number of at least 1.',
        details: { concurrency: this.#options.concurrency },
      });
    }
    this.#slots = this.#options.concurrency;
    this.#room = new ViewRoom(this.#options.viewBytes, () => this.#kept.dropOldest());
    this.#loader = new TurnLoader(runtime.pool, runtime.prices, runtime.builds);
    this.outdated = new Promise((settle) => {
      this.#retire = (error) => {
        settle(error);
        this.#leaveOutdated(error);
      };
    });
    this.#claims = new Batcher(async (rings) => {
      const reservedBytes = rings.length * INLINE_VIEW_BYTES;
      await this.#room.enter(reservedBytes);
      const holderId = this.#id;
      const outcomes = await claimWithViews(runtime.pool, rings, {
        holderId,
        maxViewBytes: INLINE_VIEW_BYTES,
        build: runtime.builds.build,
        known: this.#kept.known,
      }).finally(() => this.#room.leave(reservedBytes));
      return outcomes.map((outcome) => ({ outcome, holderId }));
    });
    this.#commits = new Batcher(async (commits) => {
      const result = await commitSteps(runtime.pool, commits);
      const paired = pairRings(commits, result);
      runtime.ring(paired.others);
      runtime.announceEnds(result);
      return paired.commits;
    });
    this.#advances = new Batcher(async (advances) => {
      const { outcomes, rings } = await advance(runtime.pool, advances);
      runtime.ring(rings);
      return outcomes;
    });
    this.#modelWaits = new ModelWaits(runtime);
    this.#sweeper = new Sweeper(runtime, {
      lostRingMs: this.#options.lostRingMs,
      claimFromRows: (which) => this.#claimFromRows(which),
      hasOlder: () => this.#hasOlder,
      wakeProvider: (provider, options) => this.#modelWaits.gate.wake(provider, options),
    });
    this.#peerWatch = new PeerWatch({
      directUrl: runtime.directUrl,
      pool: runtime.pool,
      log: runtime.log,
      everyMs: this.#options.heartbeatMs,
      workerId: () => this.#id,
      takeOver: () => this.#sweeper.takeOver(),
    });
  }

  get id(): WorkerId {
    return this.#id;
  }

  /** Turns in hand. */
  get activeCount(): number {
    return this.#active.size;
  }

  /** @internal */
  async start(): Promise<this> {
    await this.#runtime.builds.look();
    await this.#modelWaits.gate.start();
    await this.#register();
    this.#state = 'running';
    this.#heartbeat = setInterval(() => void this.#beat(), this.#options.heartbeatMs);
    for (const workerTarget of this.#options.targets) {
      this.#subscriptions.push(
        await this.#runtime.doorbell.listen({
          workerTarget,
          concurrency: this.#options.concurrency,
          handle: (ring) => this.#handle(ring),
          onError: (error) => {
            this.#runtime.log('warn', 'doorbell.error', { error: errorText(error) });
            this.#sweeper.deafen();
          },
        }),
      );
    }
    this.#sweeper.start(this.#options.sweepMs);
    this.#peerWatch.start();
    this.#unwatchBuild = this.#runtime.builds.onOutdated((error) => this.#retire(error));
    this.#runtime.log('info', 'worker.started', {
      worker_id: this.#id,
      concurrency: this.#options.concurrency,
      targets: this.#options.targets,
    });
    return this;
  }

  /** A new incarnation: its own id, its own lock, its own lease. */
  async #register(): Promise<void> {
    const id = newId<'worker'>();
    const lockKey = randomInt(2 ** 47).toString();
    const direct = this.#openDirect();
    try {
      await direct.connect();
      await direct.query('select pg_advisory_lock($1)', [lockKey]);
      await direct.query(`listen ${CANCELED_CHANNEL}`);
      await registerWorker(this.#runtime.pool, {
        id,
        lockKey,
        targets: this.#options.targets,
        concurrency: this.#options.concurrency,
        leaseMs: this.#options.leaseMs,
        info: { hostname: hostname(), pid: process.pid },
        schemaVersion: this.#runtime.builds.build.schemaVersion,
      });
    } catch (error) {
      await direct.end().catch(() => undefined);
      throw error;
    }
    this.#renewedAt = performance.now();
    this.#id = id;
    this.#direct = direct;
  }

  #openDirect(): pg.Client {
    const direct = new pg.Client({
      connectionString: this.#runtime.directUrl,
      application_name: 'boxcar-worker',
      connectionTimeoutMillis: 10_000,
      keepAlive: true,
      query_timeout: Math.ceil(this.#options.leaseMs / 2),
    });
    direct.on('error', () => undefined);
    direct.on('notification', ({ payload = '' }) =>
      this.#abortLost(payload.split(',').flatMap((id) => tryParseId<'turn'>(id) ?? [])),
    );
    direct.on('end', () => {
      if (this.#direct !== direct) return;
      this.#direct = undefined;
      // Whoever watches has the lock by now: W2.
      void this.#beat();
    });
    return direct;
  }

  async #beat(): Promise<void> {
    // Not after the goodbye, which a renewal would take back.
    if (this.#heartbeat === undefined) return;
    this.#room.leave(this.#kept.expire());
    // Also while a renewal hangs: nobody else would notice that the lease has run out meanwhile.
    if (this.#isStale())
      this.#abortAll(new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }));
    if (this.#isBeating) {
      if (this.#direct === undefined) this.#mustBeatAgain = true;
      return;
    }
    this.#isBeating = true;
    this.#mustBeatAgain = false;
    try {
      const sentAt = performance.now();
      const renewal = await this.#renew();
      if (renewal !== undefined) {
        this.#modelWaits.gate.know(renewal.gated);
        this.#hasOlder = renewal.hasOlder;
        this.#peerWatch.know(renewal.hasPeers);
        this.#runtime.builds.note(renewal.minCompatible);
        // From before the statement: the server's clock started no earlier.
        this.#renewedAt = sentAt;
        if (this.#direct === undefined) this.#relocking ??= this.#relock();
        this.#abortUnheld(renewal.held, sentAt);
        // Beside the heartbeat: it takes a connection of the pool, and the lease must not wait for one.
        void this.#releaseOrphans(renewal.held);
      } else {
        this.#runtime.log('warn', 'worker.lease_lost', { worker_id: this.#id });
        this.#abortAll(new KernelError('turn_ended', { message: 'The worker has lost its lease.' }));
        await this.#direct?.end().catch(() => undefined);
        await this.#register();
      }
    } catch (error) {
      this.#runtime.log('warn', 'worker.heartbeat_failed', { worker_id: this.#id, error: errorText(error) });
    } finally {
      this.#isBeating = false;
      if (this.#isStale())
        this.#abortAll(new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }));
      if (this.#mustBeatAgain) void this.#beat();
    }
  }

  /**
   * On the direct connection, which nobody else uses: a pool that is exhausted or hangs does not cost the lease. When that one
   * is away, or silent for half a lease, by the pool.
   */
  async #renew(): Promise<Renewal | undefined> {
    const { leaseMs } = this.#options;
    const direct = this.#direct;
    const byPool = () => renewLease(this.#runtime.pool, this.#id, { leaseMs, hasLock: false });
    if (direct === undefined) return byPool();
    try {
      return await renewLease(direct, this.#id, { leaseMs, hasLock: true });
    } catch (error) {
      this.#runtime.log('warn', 'worker.direct_lost', { worker_id: this.#id, error: errorText(error) });
      if (this.#direct === direct) this.#direct = undefined;
      direct.end().catch(() => undefined);
      return byPool();
    }
  }

  /**
   * The direct connection broke while the lease lives: take the lock again on a new one. Beside the heartbeat and without
   * waiting for the lock: the server may take the old session for alive for hours, and the lease must be renewed meanwhile.
   */
  async #relock(): Promise<void> {
    const id = this.#id;
    const direct = this.#openDirect();
    try {
      await direct.connect();
      const { rows } = await direct.query<{ is_locked: boolean }>(
        'select pg_try_advisory_lock(w.lock_key) as is_locked from boxcar.workers w where w.id = $1',
        [id],
      );
      if (rows[0]?.is_locked !== true) throw new Error('another session has the lock still');
      await direct.query(`listen ${CANCELED_CHANNEL}`);
      if (this.#id !== id || this.#state === 'closed') throw new Error('the worker has gone on without it');
      this.#direct = direct;
      // Watched again from here on.
      void this.#beat();
    } catch (error) {
      await direct.end().catch(() => undefined);
      this.#runtime.log('warn', 'worker.not_locked', { worker_id: id, error: errorText(error) });
    } finally {
      this.#relocking = undefined;
    }
  }

  /**
   * Turns that the rows give to this worker but that it does not run: the answer to a claim or a commit was lost. Seen
   * twice in a row, they are handed back.
   */
  async #releaseOrphans(held: readonly TurnId[]): Promise<void> {
    const orphans = held.filter((id) => !this.#active.has(id) && !this.#claiming.has(id));
    const confirmed = orphans.filter((id) => this.#suspects.has(id));
    this.#suspects = new Set(orphans);
    if (confirmed.length === 0) return;
    this.#runtime.log('warn', 'worker.orphans_released', { worker_id: this.#id, turn_ids: confirmed });
    try {
      this.#runtime.ring(await releaseTurns(this.#runtime.pool, this.#id, confirmed));
    } catch (error) {
      // Still suspects, so the next heartbeat tries again.
      this.#runtime.log('warn', 'turn.not_given_back', { turn_ids: confirmed, error: errorText(error) });
    }
  }

  /** Turns that were ended in this worker's hands: what runs for them is stopped. */
  #abortLost(turnIds: readonly TurnId[]): void {
    for (const id of turnIds)
      this.#active.get(id)?.controller.abort(
        new KernelError('turn_ended', {
          message: 'The turn has ended, or is in other hands.',
          details: { turn_id: id },
        }),
      );
  }

  /** Where the notice of an end was lost: turns in hand before the rows were asked, which the rows do not give to this worker. */
  #abortUnheld(held: readonly TurnId[], askedAt: number): void {
    const ours = new Set(held);
    this.#abortLost(
      [...this.#active].flatMap(([id, { since }]) => (since < askedAt && !ours.has(id) ? [id] : [])),
    );
  }

  #isStale(): boolean {
    return performance.now() - this.#renewedAt >= this.#options.leaseMs;
  }

  #abortAll(reason: KernelError): void {
    for (const { controller } of this.#active.values()) controller.abort(reason);
  }

  /** A ring of the epoch in hand, or an older one, says nothing new. */
  #isRunning(ring: Claimable): boolean {
    const active = this.#active.get(ring.turnId);
    return active !== undefined && active.epoch >= ring.epoch;
  }

  async #takeSlot(): Promise<void> {
    if (this.#slots > 0) {
      this.#slots--;
      return;
    }
    await new Promise<void>((resolve) => this.#slotWaiters.push(resolve));
  }

  #freeSlot(): void {
    const next = this.#slotWaiters.shift();
    if (next === undefined) this.#slots++;
    else next();
  }

  /** Runs the turn of a ring, if it is still to be had, and what that rings here. Never throws: a doorbell does not care how turns end. */
  async #handle(ring: Claimable): Promise<void> {
    if (this.#state !== 'running' || this.#isRunning(ring)) return;
    await this.#takeSlot();
    const following: Following = [];
    await this.#runInSlot(ring, following);
    for (let next = following.shift(); next !== undefined; next = following.shift()) await next;
  }

  /** W4: takes the turn that a commit has dispatched, or rings. Many go to the whole pool. */
  #ring(rings: readonly Ring[], following: Following): void {
    const [only] = rings;
    if (only === undefined) return;
    const isOurs =
      rings.length === 1 &&
      this.#options.takesOwnRings &&
      this.#state === 'running' &&
      this.#slots > 0 &&
      this.#options.targets.includes(only.workerTarget);
    if (!isOurs) {
      this.#runtime.ring(rings);
      return;
    }
    this.#slots--;
    const running = this.#runInSlot(only, following).then((isClaimed) => {
      if (!isClaimed) this.#runtime.ring([only]);
    });
    following.push(running);
  }

  /** Gives the slot back. @returns False when it could not find out whether the turn is to be had. */
  async #runInSlot(ring: Claimable, following: Following): Promise<boolean> {
    let isAnswered = false;
    try {
      // Resumed by the end of a child while its own suspend is still being wound up here.
      await this.#active.get(ring.turnId)?.done;
      if (this.#state !== 'running' || this.#isStale()) return false;
      this.#claiming.add(ring.turnId);
      const claim = this.#claims.add(ring).finally(() => this.#claiming.delete(ring.turnId));
      const { outcome, holderId } = await claim;
      isAnswered = true;
      if (outcome.outcome === 'claimed') await this.#runClaimed(outcome, { holderId, following });
    } catch (error) {
      this.#runtime.log('error', 'turn.failed_to_run', {
        turn_id: ring.turnId,
        epoch: ring.epoch,
        error: errorText(error),
      });
    } finally {
      this.#freeSlot();
      if (this.#hasMoreNewer) void this.#claimMoreNewer();
    }
    return isAnswered;
  }

  async #runClaimed(
    { turn, view: claimed }: Extract<ViewedClaim, { outcome: 'claimed' }>,
    { holderId, following }: { readonly holderId: WorkerId; readonly following: Following },
  ): Promise<void> {
    // W5: claimed while the worker closes, whose patience may have ended before this turn could feel it.
    if (this.#state !== 'running') return this.#giveBack(turn.turnId, holderId);
    const view = new TurnView({ loader: this.#loader, room: this.#room, kept: this.#kept }, turn, claimed);
    const controller = new AbortController();
    // One listener per tool call of a step; as many as the model makes.
    setMaxListeners(0, controller.signal);
    const ring = (rings: readonly Ring[]): void => this.#ring(rings, following);
    const host: TurnHost = {
      runtime: this.#runtime,
      loader: this.#loader,
      modelWaits: this.#modelWaits,
      commit: async (commit) => {
        const { outcome, rings } = await this.#commits.add(commit);
        ring(rings);
        return outcome;
      },
      advance: (results) => this.#advances.add(results),
      checkLease: () => {
        if (this.#isStale())
          controller.abort(
            new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }),
          );
        controller.signal.throwIfAborted();
      },
      isDraining: () => this.#state !== 'running',
    };
    const done = (async () => {
      try {
        const outcome = await runTurn(host, { turn, view, holderId, signal: controller.signal, ring });
        if (outcome === 'released')
          this.#runtime.ring(await releaseTurns(this.#runtime.pool, holderId, [turn.turnId]));
        // A suspended turn leaves its place in the window: no end will tell the queue.
        if (outcome === 'suspended') this.#runtime.promoteSoon(turn.workerTarget);
        this.#runtime.log('debug', 'turn.left', { turn_id: turn.turnId, epoch: turn.epoch, outcome });
      } catch (error) {
        this.#runtime.log(controller.signal.aborted ? 'info' : 'error', 'turn.interrupted', {
          turn_id: turn.turnId,
          epoch: turn.epoch,
          error: errorText(error),
        });
        // Given back at once; what fails here again and again runs out of attempts. An aborted turn is no longer ours,
        // or is handed back by the shutdown.
        if (!controller.signal.aborted)
          // A server that was away says nothing about the turn.
          await this.#giveBack(turn.turnId, holderId, await this.#judge(turn.turnId, error));
      } finally {
        view.drop();
        if (this.#active.get(turn.turnId)?.controller === controller) this.#active.delete(turn.turnId);
      }
    })();
    this.#active.set(turn.turnId, { epoch: turn.epoch, since: performance.now(), controller, done });
    await done;
  }

  /** When the database cannot be told now, the heartbeat finds the turn as an orphan later. */
  async #giveBack(
    turnId: TurnId,
    holderId: WorkerId,
    options: Parameters<typeof releaseTurns>[3] = {},
  ): Promise<void> {
    try {
      this.#runtime.ring(await releaseTurns(this.#runtime.pool, holderId, [turnId], options));
    } catch (error) {
      this.#runtime.log('warn', 'turn.not_given_back', { turn_id: turnId, error: errorText(error) });
    }
  }

  /** How a turn is handed back that could not be run. What a newer build has written waits for one, and is no loss. */
  async #judge(turnId: TurnId, error: unknown): Promise<Parameters<typeof releaseTurns>[3]> {
    if (!(error instanceof KernelError && error.code === 'unsupported_format'))
      return { isLoss: !isTransient(error) };
    const { builds, log } = this.#runtime;
    const own = builds.build.schemaVersion;
    try {
      // Where no newer build can have been, it is damaged, and stays so.
      if (!(await builds.mayBeNewer())) return { isLoss: true };
    } catch {
      return {};
    }
    log('warn', 'turn.not_readable', { turn_id: turnId, error: error.message, format: own + 1 });
    return { format: own + 1 };
  }

  /** Dispatched turns straight from the rows, as many as there are free slots: for when no ring may come. */
  async #claimFromRows(options: { readonly isOnlyNewer?: boolean } = {}): Promise<void> {
    const limit = this.#slots;
    if (this.#state !== 'running' || limit === 0) {
      if (options.isOnlyNewer === true) this.#hasMoreNewer = true;
      return;
    }
    const { schemaVersion } = this.#runtime.builds.build;
    const rings = await findReady(this.#runtime.pool, this.#options.targets, limit, {
      ...options,
      schemaVersion,
    });
    if (options.isOnlyNewer === true) this.#hasMoreNewer = rings.length === limit;
    for (const ring of rings) {
      const handling = this.#handle(ring).finally(() => this.#fromRows.delete(handling));
      this.#fromRows.add(handling);
    }
  }

  async #claimMoreNewer(): Promise<void> {
    this.#hasMoreNewer = false;
    try {
      if (this.#hasOlder) await this.#claimFromRows({ isOnlyNewer: true });
    } catch {
      // The sweep looks again within a second.
    }
  }

  #leaveOutdated(error: KernelError): void {
    this.#runtime.log('error', 'worker.outdated', {
      worker_id: this.#id,
      error: error.message,
      active: this.activeCount,
    });
    this.close().catch((failure: unknown) =>
      this.#runtime.log('warn', 'worker.stop_failed', { worker_id: this.#id, error: errorText(failure) }),
    );
  }

  /**
   * Stops: takes nothing new, lets turns reach their next commit for `graceMs`, aborts the rest and hands them back.
   *
   * @throws AggregateError when parts of the shutdown failed; everything was tried.
   */
  close(options: { readonly graceMs?: number } = {}): Promise<void> {
    this.#closing ??= this.#shutDown(options);
    return this.#closing;
  }

  async #shutDown(options: { readonly graceMs?: number }): Promise<void> {
    this.#state = 'draining';
    this.#unwatchBuild();
    const failures: unknown[] = [];
    const attempt = async (work: Promise<unknown> | undefined): Promise<void> => {
      try {
        await work;
      } catch (error) {
        failures.push(error);
      }
    };
    // Takes no new rings from here on, which would be lost here; settles once those in hand are done.
    const unsubscribed = attempt(
      Promise.all(this.#subscriptions.map((subscription) => subscription.close())),
    );
    for (const wake of this.#slotWaiters.splice(0)) wake();
    const grace = setTimeout(
      () => this.#abortAll(new KernelError('turn_ended', { message: 'The worker is shutting down.' })),
      options.graceMs ?? this.#options.graceMs,
    );
    await attempt(Promise.all([this.#sweeper.stop(), this.#peerWatch.stop()]));
    this.#modelWaits.close();
    await Promise.all([...this.#active.values()].map((active) => active.done));
    clearTimeout(grace);
    await unsubscribed;
    await Promise.all([...this.#fromRows, ...[...this.#active.values()].map((active) => active.done)]);
    clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
    await attempt(
      releaseTurns(this.#runtime.pool, this.#id, null).then((rings) => this.#runtime.doorbell.ring(rings)),
    );
    await attempt(removeWorker(this.#runtime.pool, this.#id));
    await this.#relocking;
    const direct = this.#direct;
    this.#direct = undefined;
    await attempt(direct?.end());
    this.#state = 'closed';
    this.#runtime.log('info', 'worker.stopped', { worker_id: this.#id });
    if (failures.length > 0) throw new AggregateError(failures, 'The worker did not shut down cleanly.');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Starts a worker in this process. */
export async function createWorker(runtime: Runtime, options: WorkerOptions = {}): Promise<Worker> {
  const worker = new Worker(runtime, options);
  try {
    return await worker.start();
  } catch (error) {
    // What was begun is undone; why it could not be finished is in the first error.
    await worker.close({ graceMs: 0 }).catch(() => undefined);
    throw error;
  }
}
