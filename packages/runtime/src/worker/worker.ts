/**
 * A worker: takes dispatched turns, runs them, and proves that it lives.
 *
 * W1  It holds turns only while its lease is valid. Before each model and tool call it checks that the last renewal is
 *     younger than the lease, by a clock that also counts suspension (`lease-clock.ts`). Otherwise it stops by itself.
 * W2  Its direct connection holds a session lock for as long as it lives, so a peer notices a death at once
 *     (`peer-watch.ts`). When only the connection breaks, the worker reports this at once by a renewal, and from then on
 *     only its lease counts.
 * W3  It never runs more turns than its concurrency, whether they arrive by a ring or from the rows. It keeps no ring
 *     without a slot for it (`slots.ts`).
 *     A turn whose row is locked gives its slot back when others may need it; the sweep rings the turn again (`locked-claims.ts`).
 * W4  When a commit of one of its turns dispatches a single turn, the worker takes it at once, without the queue, if it has a free
 *     slot and its queues are empty, so that no waiting ring is overtaken. The job of the committing turn ends only after that turn
 *     too. A turn that the worker does not take, or fails to take, is rung.
 * W5  On shutdown it takes nothing new, lets turns reach their next commit, and hands the rest back.
 * W6  It renews its lease only while it can commit, and ends when it cannot (`commit-proof.ts`).
 * W7  When an error that nothing caught ends the process, turns that do not reach their next commit are handed back as lost, and each
 *     further such loss delays the next run longer (`failed-runs.ts`, A1). An error of a tool call fails only the call (`call-scope.ts`).
 */
import { randomInt } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { hostname } from 'node:os';
import {
  checkDuration,
  checkWholeNumber,
  KernelError,
  LONGEST_TIMER_MS,
  type Ring,
  startTimer,
  type ToolCallId,
  type TurnId,
  tryParseId,
  WORKER_TARGET,
  type WorkerId,
} from '@boxcar/kernel';
import {
  type AdvanceOutcome,
  advanceTurns,
  announceWorker,
  askServer,
  CANCELED_CHANNEL,
  claimWithViews,
  commitSteps,
  createDirectClient,
  endClient,
  findLockedSteps,
  findReady,
  finishSteps,
  giveUpLease,
  type HeldAt,
  isServerTrouble,
  type LimitedTry,
  limitByLease,
  parseWorkerNotice,
  putOffSelectorWaits,
  type Renewal,
  registerWorker,
  releaseTurns,
  removeWorker,
  renewLease,
  type StepCommit,
  takeForSelectors,
  type ViewedClaim,
  WORKERS_CHANNEL,
} from '@boxcar/store';
import type pg from 'pg';
import type { RuntimeCore } from '../core/index.js';
import { argumentHashes, noteCrashedJob } from '../door/index.js';
import { createRecorder, type Recorder } from '../end/index.js';
import { Batcher, isLockTimeout, LOCKED, newId, takeCrashedJob, withinTime } from '../lib/index.js';
import { ModelWaits } from '../model/index.js';
import { Sweeper } from '../sweep/sweeper.js';
import type { HeldTurn, StepResults, TurnHost } from '../turn/index.js';
import {
  handBackFailed,
  LeftTurns,
  noteFailedClaim,
  recordLeft,
  releaseEach,
  runTurn,
} from '../turn/index.js';
import { INLINE_VIEW_BYTES, KeptViews, TurnLoader, TurnView, ViewRoom } from '../view/index.js';
import { CommitProof } from './commit-proof.js';
import { createLeaseClock, type LeaseClock, type Moment } from './lease-clock.js';
import { LockedClaims } from './locked-claims.js';
import { pairRings, type RungCommit } from './own-rings.js';
import { PeerWatch } from './peer-watch.js';
import { type SlotQueue, Slots } from './slots.js';
import { startWatchdog, type Watchdog } from './watchdog.js';

export interface WorkerOptions {
  /** Turns at once. Default 10. */
  readonly concurrency?: number;
  /** Worker targets it serves; `''` is the default pool. */
  readonly targets?: readonly string[];
  /** How long its turns stay its own without a renewal. Default 10,000. */
  readonly leaseMs?: number;
  readonly heartbeatMs?: number;
  readonly sweepMs?: number;
  /**
   * After how long the sweep looks into a dispatched turn that no worker claimed. Default 2,000, or half the lease if
   * that is less.
   */
  readonly lostRingMs?: number;
  /** How long turns may take to their next commit when it closes. Default 10,000. */
  readonly graceMs?: number;
  /** Contents of prompts held in memory at once, about, in bytes; above it claims wait. Default 64 MiB. */
  readonly viewBytes?: number;
  /** False: what its turns dispatch goes through the queue, like anything else. Default true. */
  readonly takesOwnRings?: boolean;
  /** True: a tool that holds the event loop for half a lease ends the process (`watchdog.ts`). Default false. */
  readonly watchdog?: boolean;
}

/** The largest number that its rows can hold: the window of a target is four times the concurrency of its workers. */
const MAX_CONCURRENCY = 1_000_000;

type Claimable = Pick<Ring, 'turnId' | 'epoch'>;

/** What a job of the queue, or a look into the rows, has brought, and what its turns have rung here since. */
type Following = Promise<void>[];

interface Active {
  readonly epoch: number;
  /** By the worker's monotonic clock. */
  readonly since: number;
  readonly controller: AbortController;
  /** Its calls that were begun and must not be run twice. */
  readonly begunIds: ReadonlySet<ToolCallId>;
  readonly done: Promise<void>;
}

/** Steps that are wholly answered take the short way; what that way leaves over, and all others, the long one. */
async function advance(
  pool: pg.Pool,
  advances: readonly StepResults[],
  attempt: LimitedTry,
): Promise<{
  readonly outcomes: readonly (AdvanceOutcome | typeof LOCKED)[];
  readonly rings: readonly Ring[];
}> {
  const whole = advances.filter((item) => item.isWhole);
  const finished = whole.length === 0 ? undefined : await finishSteps(pool, whole, attempt);
  const unfinished = whole.filter((item) => finished?.has(item.turnId) !== true);
  const locked =
    attempt.leavesLocked === true && unfinished.length > 0
      ? await findLockedSteps(pool, unfinished)
      : undefined;
  const others = advances.filter(
    ({ turnId }) => finished?.has(turnId) !== true && locked?.has(turnId) !== true,
  );
  const slow = others.length === 0 ? undefined : await advanceTurns(pool, others, attempt);
  const leftOut = new Set([...(locked ?? []), ...(slow?.lockedTurnIds ?? [])]);
  const outcomes = advances.map((item): AdvanceOutcome | typeof LOCKED => {
    const step = finished?.get(item.turnId);
    if (step !== undefined) return { outcome: 'open', ...step };
    if (leftOut.has(item.turnId)) return LOCKED;
    return slow?.outcomes[others.indexOf(item)] ?? { outcome: 'fenced' };
  });
  return { outcomes, rings: slow?.rings ?? [] };
}

/** @throws KernelError `bad_config` naming the option. */
function checkOptions(options: Required<WorkerOptions>): void {
  const code = 'bad_config';
  checkWholeNumber(options.concurrency, 'concurrency', { min: 1, max: MAX_CONCURRENCY, code });
  checkWholeNumber(options.viewBytes, 'viewBytes', { min: 0, max: Number.MAX_SAFE_INTEGER, code });
  for (const field of ['leaseMs', 'heartbeatMs', 'sweepMs', 'lostRingMs'] as const)
    checkDuration(options[field], field, { code });
  checkDuration(options.graceMs, 'graceMs', { code, allowsZero: true });
  for (const target of options.targets)
    if (typeof target !== 'string' || !WORKER_TARGET.test(target))
      throw new KernelError(code, {
        message: `targets: '${String(target).slice(0, 80)}' is not a worker target: lower-case letters, digits, - and _ only, 64 at most.`,
        details: { field: 'targets' },
      });
}

/**
 * How long all parts of the shutdown together may take after the turns are done, and the minimum for each part after that
 * time.
 */
const GOODBYE_MS = 2_000;
const SHORTEST_GOODBYE_MS = 100;
/** Extra time, in addition to the time limit of each queue. */
const QUEUES_MS = 500;

/** Every fourth check of the rows starts with the oldest turn. Otherwise projects with fewer turns could always go first. */
const OLDEST_EVERY = 4;

/** A turn whose row is locked leaves its batch, and does not hold up the others. */
const LEAVES_LOCKED = { leavesLocked: true };

/** How often the worker checks in each lease that the pool answers. */
const PROOFS_PER_LEASE = 10;

const LISTEN = `listen ${CANCELED_CHANNEL}; listen ${WORKERS_CHANNEL}`;

const SILENT_POOL = 'The connections of the pool have not answered for as long as the lease lives.';

const toCrash = (error: unknown): KernelError =>
  error instanceof KernelError && error.code === 'worker_crashed'
    ? error
    : new KernelError('worker_crashed', { message: `Nothing caught: ${errorText(error)}.`, cause: error });

const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export class Worker implements AsyncDisposable {
  readonly #runtime: RuntimeCore;
  readonly #options: Required<WorkerOptions>;
  readonly #active = new Map<TurnId, Active>();
  /** What was taken straight from the rows: no subscription waits for it. */
  readonly #fromRows = new Set<Promise<void>>();
  readonly #claims: Batcher<Claimable, { outcome: ViewedClaim; holderId: WorkerId }>;
  readonly #commits: Batcher<StepCommit, RungCommit>;
  readonly #advances: Batcher<StepResults, AdvanceOutcome>;
  readonly #records: Recorder;
  readonly #kept = new KeptViews();
  readonly #room: ViewRoom;
  readonly #loader: TurnLoader;
  readonly #sweeper: Sweeper;
  readonly #modelWaits: ModelWaits;
  readonly #peerWatch: PeerWatch;
  readonly #clock: LeaseClock;
  readonly #proof: CommitProof;
  readonly #subscriptions: { close(): Promise<void> }[] = [];
  #id: WorkerId = newId<'worker'>();
  #direct: pg.Client | undefined;
  #relocking: Promise<void> | undefined;
  #renewedAt: Moment;
  #heartbeat: NodeJS.Timeout | undefined;
  #proofTimer: NodeJS.Timeout | undefined;
  #isBeating = false;
  /** The lock was lost during a renewal that still reported the lock. */
  #mustBeatAgain = false;
  #suspects = new Map<TurnId, number>();
  #releasing: Promise<void> | undefined;
  /** Orphans that cannot be handed back because they have been given up. */
  readonly #unreleasable = new Set<TurnId>();
  /**
   * Turns that are being claimed or run here, with their epochs. By the rows they may already be held by this worker, but
   * they are not orphans. A turn has one claim at a time: if a repeated claim finds the turn held by this worker, then
   * its first try has claimed it.
   */
  readonly #claiming = new Map<TurnId, number>();
  readonly #locked = new LockedClaims();
  /** Turns that were run here and not handed back. */
  readonly #left: LeftTurns;
  /** Workers of older builds share its targets; until the first heartbeat has told, they may. */
  #hasOlder = true;
  /** There was more of what only newer builds can read than there were slots. */
  #hasMoreNewer = false;
  /** More turns waited for selectors of this process than there were slots. */
  #hasMoreSelected = false;
  /** Slots that became free while such turns waited and the queues were not empty. */
  #sharedSlots = 0;
  #closing: Promise<void> | undefined;
  #watchdog: Watchdog | undefined;
  /** Why the process ends, when an error did that nothing caught: W7. */
  #crash: KernelError | undefined;
  #unwatchBuild: () => void = () => undefined;
  /**
   * Settles when the worker must end by itself; the worker then also closes itself. The reason is a migration that has
   * shut out builds like this one, or a pool that no longer reaches the server (`database_unavailable`).
   */
  readonly outdated: Promise<KernelError>;
  #retire: (error: KernelError) => void = () => undefined;
  readonly #slots: Slots;
  readonly #limits: Disposable;
  /** Number of checks of the rows. */
  #looks = 0;
  /** Rings that have a slot and are not handled yet. */
  readonly #admitted = new Set<Claimable>();
  #state: 'starting' | 'running' | 'draining' | 'closed' = 'starting';

  /** @internal Use `createWorker`. */
  constructor(runtime: RuntimeCore, options: WorkerOptions, clock = createLeaseClock()) {
    const leaseMs = options.leaseMs ?? 10_000;
    this.#clock = clock;
    this.#renewedAt = clock.now();
    this.#proof = new CommitProof({
      pool: runtime.pool,
      direct: () => this.#direct,
      leaseMs,
      log: runtime.log,
    });
    this.#runtime = runtime;
    this.#options = {
      concurrency: options.concurrency ?? 10,
      targets: options.targets ?? [''],
      leaseMs,
      heartbeatMs: options.heartbeatMs ?? Math.max(Math.floor(leaseMs / 4), 50),
      sweepMs: options.sweepMs ?? 1_000,
      lostRingMs: options.lostRingMs ?? Math.min(2_000, Math.ceil(leaseMs / 2)),
      graceMs: options.graceMs ?? 10_000,
      viewBytes: options.viewBytes ?? 64 * 1024 * 1024,
      takesOwnRings: options.takesOwnRings ?? true,
      watchdog: options.watchdog ?? false,
    };
    checkOptions(this.#options);
    this.#limits = limitByLease(runtime.pool, leaseMs);
    this.#slots = new Slots(this.#options.concurrency, () => this.#room.hasRoomFor(INLINE_VIEW_BYTES));
    this.#room = new ViewRoom(
      this.#options.viewBytes,
      () => this.#kept.dropOldest(),
      () => this.#slots.offer(),
    );
    this.#loader = new TurnLoader(runtime.pool, runtime.prices, runtime.builds);
    this.outdated = new Promise((settle) => {
      this.#retire = (error) => {
        settle(error);
        this.#leaveOutdated(error);
      };
    });
    this.#claims = new Batcher(async (rings, attempt) => {
      const reservedBytes = rings.length * INLINE_VIEW_BYTES;
      await this.#room.enter(reservedBytes);
      const holderId = this.#id;
      const outcomes = await claimWithViews(runtime.pool, rings, {
        holderId,
        maxViewBytes: INLINE_VIEW_BYTES,
        build: runtime.builds.build,
        known: this.#kept.known,
        try: attempt,
      }).finally(() => this.#room.leave(reservedBytes));
      return outcomes.map((outcome) =>
        outcome.outcome === 'stale' && outcome.isLocked === true ? LOCKED : { outcome, holderId },
      );
    }, LEAVES_LOCKED);
    this.#commits = new Batcher(async (commits, attempt) => {
      const result = await commitSteps(runtime.pool, commits, attempt);
      const paired = pairRings(commits, result);
      runtime.ring(paired.others);
      runtime.announceEnds(result);
      const locked = new Set(result.lockedTurnIds);
      return paired.commits.map((rung, index) => {
        const turnId = commits[index]?.turnId;
        return turnId !== undefined && locked.has(turnId) ? LOCKED : rung;
      });
    }, LEAVES_LOCKED);
    this.#advances = new Batcher(async (advances, attempt) => {
      const { outcomes, rings } = await advance(runtime.pool, advances, attempt);
      runtime.ring(rings);
      return outcomes;
    }, LEAVES_LOCKED);
    this.#records = createRecorder(runtime);
    this.#left = new LeftTurns({ runtime, record: (result, options) => this.#records.add(result, options) });
    this.#modelWaits = new ModelWaits(runtime);
    this.#sweeper = new Sweeper(runtime, {
      lostRingMs: this.#options.lostRingMs,
      leaseMs,
      claimFromRows: (which) => this.#claimFromRows(which),
      hasOlder: () => this.#hasOlder,
      takeForSelectors: () => this.#takeForSelectors(),
      wakeProvider: (provider, options) => this.#modelWaits.gate.wake(provider, options),
    });
    this.#peerWatch = new PeerWatch({
      directUrl: runtime.directUrl,
      pool: runtime.pool,
      log: runtime.log,
      everyMs: this.#options.heartbeatMs,
      answerMs: leaseMs / 2,
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
    const { directUrl, log } = this.#runtime;
    if (this.#options.watchdog)
      this.#watchdog = startWatchdog({ leaseMs: this.#options.leaseMs, directUrl, log });
    await this.#register();
    this.#state = 'running';
    const { heartbeatMs, leaseMs } = this.#options;
    this.#heartbeat = setInterval(() => void this.#beat(), Math.min(heartbeatMs, LONGEST_TIMER_MS));
    this.#proofTimer = setInterval(
      () => void this.#checkProof(),
      Math.min(leaseMs / PROOFS_PER_LEASE, LONGEST_TIMER_MS),
    );
    this.#peerWatch.start();
    for (const workerTarget of this.#options.targets) {
      this.#subscriptions.push(
        await this.#slots.join((queue) =>
          this.#runtime.doorbell.listen({
            workerTarget,
            concurrency: this.#options.concurrency,
            admit: (ring) => this.#admit(ring, queue),
            onEmpty: () => queue.empty(),
            handle: (ring) => this.#handle(ring),
            onError: (error) => {
              this.#runtime.log('warn', 'doorbell.error', { error: errorText(error) });
              this.#sweeper.deafen();
            },
          }),
        ),
      );
    }
    this.#sweeper.start(this.#options.sweepMs);
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
    let sentAt: Moment;
    try {
      await direct.connect();
      await direct.query('select pg_advisory_lock($1)', [lockKey]);
      await direct.query(LISTEN);
      sentAt = this.#clock.now();
      await registerWorker(this.#runtime.pool, {
        id,
        lockKey,
        targets: this.#options.targets,
        concurrency: this.#options.concurrency,
        leaseMs: this.#options.leaseMs,
        info: {
          hostname: hostname(),
          pid: process.pid,
          primitives: argumentHashes(this.#runtime.handlers),
          tools: argumentHashes(this.#runtime.tools),
          selectors: this.#runtime.selectors.announced,
        },
        schemaVersion: this.#runtime.builds.build.schemaVersion,
      });
      if (this.#isClosing) {
        await removeWorker(this.#runtime.pool, id);
        throw new Error('the worker is shutting down');
      }
    } catch (error) {
      await endClient(direct);
      throw error;
    }
    this.#renewedAt = sentAt;
    this.#id = id;
    this.#watchdog?.watch(id);
    this.#left.clear();
    this.#direct = direct;
    this.#proof.reached(true);
  }

  get #isClosing(): boolean {
    return this.#state === 'draining' || this.#state === 'closed';
  }

  #openDirect(): pg.Client {
    const direct = createDirectClient({
      connectionString: this.#runtime.directUrl,
      applicationName: 'boxcar-worker',
      queryMs: this.#options.leaseMs / 2,
    });
    direct.on('notification', ({ channel, payload = '' }) => {
      if (channel === WORKERS_CHANNEL) this.#hear(payload);
      else this.#abortLost(payload.split(',').flatMap((id) => tryParseId<'turn'>(id) ?? []));
    });
    direct.on('end', () => {
      if (this.#direct !== direct) return;
      this.#direct = undefined;
      this.#proof.reached(false);
      // Whoever watches has the lock by now: W2.
      void this.#beat();
    });
    return direct;
  }

  #hear(payload: string): void {
    const notice = parseWorkerNotice(payload);
    if (notice?.kind === 'joined') this.#peerWatch.joined(notice.workerId);
    else if (notice?.workerId === this.#id) void this.#beat();
  }

  async #beat(): Promise<void> {
    // Not after the goodbye, which a renewal would take back.
    if (this.#heartbeat === undefined) return;
    this.#room.leave(this.#kept.expire());
    // Also while a renewal hangs: nobody else would notice that the lease has run out meanwhile.
    if (this.#isStale())
      this.#abortAll(new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }));
    // A server that does not answer the pool may answer on a new, separate connection.
    if (this.#direct === undefined && this.#isStale()) this.#relocking ??= this.#relock();
    if (this.#isBeating) {
      if (this.#direct === undefined) this.#mustBeatAgain = true;
      return;
    }
    this.#isBeating = true;
    this.#mustBeatAgain = false;
    try {
      const askedAt = performance.now();
      const sentAt = this.#clock.now();
      const renewal = await this.#renew();
      if (renewal !== undefined) {
        this.#modelWaits.gate.know(renewal.gated);
        this.#hasOlder = renewal.hasOlder;
        this.#peerWatch.know(renewal.hasPeers);
        this.#runtime.builds.note(renewal.minCompatible);
        // From before the statement: the server's clock started no earlier.
        this.#renewedAt = sentAt;
        if (this.#direct === undefined) this.#relocking ??= this.#relock();
        const heldIds = renewal.held.map(({ turnId }) => turnId);
        this.#abortUnheld(heldIds, askedAt);
        this.#left.forget(heldIds, askedAt);
        // Beside the heartbeat: it takes a connection of the pool, and the lease must not wait for one.
        this.#releasing ??= this.#releaseOrphans(renewal.held).finally(() => {
          this.#releasing = undefined;
        });
      } else {
        this.#runtime.log('warn', 'worker.lease_lost', { worker_id: this.#id });
        this.#abortAll(new KernelError('turn_ended', { message: 'The worker has lost its lease.' }));
        if (this.#direct !== undefined) await endClient(this.#direct);
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

  /** Answers of providers that could not be told are told by the next renewal. */
  async #renew(): Promise<Renewal | undefined> {
    const { gate } = this.#modelWaits;
    const answers = gate.takeAnswers();
    let renewal: Renewal | undefined;
    try {
      renewal = await this.#renewWith(answers);
    } finally {
      if (renewal === undefined) gate.keepAnswers(answers);
    }
    return renewal;
  }

  /**
   * On the direct connection, which nobody else uses: a pool that is exhausted or hangs does not cost the lease. When that one
   * is away, or silent for half a lease, by the pool.
   */
  async #renewWith(answers: Readonly<Record<string, number>>): Promise<Renewal | undefined> {
    const { leaseMs } = this.#options;
    const direct = this.#direct;
    const byPool = () =>
      withinTime(
        renewLease(this.#runtime.pool, this.#id, { leaseMs, hasLock: false, answers }),
        leaseMs / 2,
        'renewing the lease',
      );
    if (direct === undefined) return byPool();
    try {
      if (this.#proof.isLost) {
        await askServer(direct);
        this.#proof.reached(true);
        throw new KernelError('database_unavailable', { message: SILENT_POOL });
      }
      const renewal = await renewLease(direct, this.#id, { leaseMs, hasLock: true, answers });
      this.#proof.reached(true);
      return renewal;
    } catch (error) {
      if (this.#proof.isLost) throw error;
      this.#runtime.log('warn', 'worker.direct_lost', { worker_id: this.#id, error: errorText(error) });
      if (this.#direct === direct) this.#direct = undefined;
      this.#proof.reached(false);
      void endClient(direct);
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
      await direct.query(LISTEN);
      if (this.#id !== id || this.#state === 'closed') throw new Error('the worker has gone on without it');
      this.#direct = direct;
      this.#proof.reached(true);
      // Watched again from here on.
      void this.#beat();
      await announceWorker(direct, id);
    } catch (error) {
      if (this.#direct === direct) this.#direct = undefined;
      await endClient(direct);
      this.#runtime.log('warn', 'worker.not_locked', { worker_id: id, error: errorText(error) });
    } finally {
      this.#relocking = undefined;
    }
  }

  /**
   * Turns that the rows give to this worker but that it does not run, because the answer to a claim or a commit was lost.
   * They are handed back when two heartbeats in a row find them at the same epoch. A turn whose row is locked is left to the next
   * heartbeat.
   */
  async #releaseOrphans(held: readonly HeldAt[]): Promise<void> {
    const orphans = new Map(
      held.flatMap(({ turnId, epoch }) =>
        this.#active.has(turnId) || this.#claiming.has(turnId) ? [] : [[turnId, epoch] as const],
      ),
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
    this.#runtime.log('warn', 'worker.orphans_released', { worker_id: this.#id, turn_ids: confirmedIds });
    const holderId = this.#id;
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
      // Still suspects, so the next heartbeat tries again.
      this.#runtime.log('warn', 'turn.not_given_back', { turn_ids: confirmedIds, error: errorText(error) });
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
    return this.#clock.since(this.#renewedAt) >= this.#options.leaseMs;
  }

  #abortAll(reason: KernelError): void {
    for (const { controller } of this.#active.values()) controller.abort(reason);
  }

  /** A ring of the epoch in hand, or an older one, says nothing new. */
  #isRunning(ring: Claimable): boolean {
    const active = this.#active.get(ring.turnId);
    return active !== undefined && active.epoch >= ring.epoch;
  }

  /** Takes a slot for a ring. A ring that says nothing new needs no slot. */
  #admit(ring: Claimable, queue: SlotQueue): boolean {
    if (this.#state !== 'running' || this.#isRunning(ring)) return true;
    if (!queue.admit()) return false;
    this.#admitted.add(ring);
    return true;
  }

  /** Runs the turn of a ring, if it is still to be had, and what that rings here. Never throws: a doorbell does not care how turns end. */
  async #handle(ring: Claimable): Promise<void> {
    if (!this.#admitted.delete(ring)) return;
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
      this.#options.targets.includes(only.workerTarget) &&
      this.#slots.takeOwn();
    if (!isOurs) {
      this.#runtime.ring(rings);
      return;
    }
    const running = this.#runInSlot(only, following).then((isClaimed) => {
      if (!isClaimed) this.#runtime.ring([only]);
    });
    following.push(running);
  }

  /**
   * The turn is being claimed or run here, or was left here: another claim handles this ring, or its claim cannot win.
   */
  #isOld({ turnId, epoch }: Claimable): boolean {
    return Math.max(this.#claiming.get(turnId) ?? 0, this.#left.epochOf(turnId)) >= epoch;
  }

  /** Gives the slot back. @returns False when it could not find out whether the turn is to be had. */
  async #runInSlot(ring: Claimable, following: Following): Promise<boolean> {
    let isAnswered = false;
    let isOurs = false;
    try {
      // Resumed by the end of a child while its own suspend is still being wound up here.
      await this.#active.get(ring.turnId)?.done;
      if (this.#state !== 'running' || this.#isStale()) return false;
      if (this.#isOld(ring)) return true;
      isOurs = true;
      this.#claiming.set(ring.turnId, ring.epoch);
      const { outcome, holderId } = await this.#claims.add(ring, {
        lockedMs: () => this.#locked.patienceFor(ring.turnId, this.#slots.free > 0),
      });
      isAnswered = true;
      this.#locked.forget(ring.turnId);
      if (outcome.outcome === 'claimed') await this.#runClaimed(outcome, { holderId, following });
    } catch (error) {
      if (!isAnswered && isLockTimeout(error)) {
        this.#locked.note(ring.turnId);
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
    } finally {
      if (isOurs && this.#claiming.get(ring.turnId) === ring.epoch) this.#claiming.delete(ring.turnId);
      this.#slots.release();
      if (this.#hasMoreNewer) void this.#claimMoreNewer();
      // The queues keep every second slot, so neither waits for the end of the other.
      if (this.#hasMoreSelected && (this.#slots.isIdle || ++this.#sharedSlots % 2 === 0))
        void this.#takeMoreSelected();
    }
    return isAnswered;
  }

  async #runClaimed(
    { turn, view: claimed }: Extract<ViewedClaim, { outcome: 'claimed' }>,
    { holderId, following }: { readonly holderId: WorkerId; readonly following: Following },
  ): Promise<void> {
    // W5: claimed while the worker closes, whose patience may have ended before this turn could feel it.
    if (this.#state !== 'running') {
      await this.#giveBack(turn, holderId);
      return;
    }
    const view = new TurnView({ loader: this.#loader, room: this.#room, kept: this.#kept }, turn, claimed);
    const controller = new AbortController();
    // One listener per tool call of a step; as many as the model makes.
    setMaxListeners(0, controller.signal);
    const ring = (rings: readonly Ring[]): void => this.#ring(rings, following);
    const held: HeldTurn = {
      turn,
      view,
      holderId,
      begunIds: new Set(),
      unrecorded: new Map(),
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
      loader: this.#loader,
      modelWaits: this.#modelWaits,
      commit: async (commit) => {
        const { outcome, rings } = await this.#commits.add(commit);
        ring(rings);
        letOthersIn();
        return outcome;
      },
      advance: (results) => this.#advances.add(results),
      record: (result, options) => this.#records.add(result, options),
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
      let isLeft = false;
      try {
        const outcome = await runTurn(host, held);
        if (outcome === 'released')
          this.#runtime.ring(await releaseTurns(this.#runtime.pool, holderId, [turn]));
        // A suspended turn leaves its place in the window: no end will tell the queue.
        if (outcome === 'suspended') this.#runtime.promoteSoon(turn.workerTarget);
        // After an aborted run this worker may still hold the turn, whatever the result of the run was.
        isLeft = controller.signal.aborted;
        this.#runtime.log('debug', 'turn.left', { turn_id: turn.turnId, epoch: turn.epoch, outcome });
      } catch (error) {
        this.#runtime.log(controller.signal.aborted ? 'info' : 'error', 'turn.interrupted', {
          turn_id: turn.turnId,
          epoch: turn.epoch,
          error: errorText(error),
        });
        // Handed back at once; each further failure delays the next ring longer. An aborted turn is not held by this
        // worker any more, or the shutdown hands it back.
        // A turn whose results wait for the database is not handed back before they are recorded.
        const isCrash = this.#crash !== undefined && controller.signal.reason === this.#crash;
        const left = controller.signal.aborted && !isCrash ? 'waiting' : await recordLeft(host, held);
        const isHandedBack =
          left !== 'waiting' &&
          (await handBackFailed(
            this.#runtime,
            { turn, holderId, begunIds: [...held.begunIds] },
            { error: isCrash ? this.#crash : error, loader: this.#loader },
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

  /**
   * Hands back a turn of which nothing was run. If the database cannot be reached now, the heartbeat finds the turn later
   * as an orphan.
   */
  async #giveBack(turn: HeldAt, holderId: WorkerId): Promise<void> {
    const { turnId } = turn;
    try {
      this.#runtime.ring(await releaseTurns(this.#runtime.pool, holderId, [turn], { begunIds: [] }));
    } catch (error) {
      this.#runtime.log('warn', 'turn.not_given_back', { turn_id: turnId, error: errorText(error) });
    }
  }

  /** Dispatched turns straight from the rows, as many as there are free slots: for when no ring may come. */
  async #claimFromRows(options: { readonly isOnlyNewer?: boolean } = {}): Promise<void> {
    const limit = this.#slots.free;
    if (this.#state !== 'running' || limit === 0) {
      if (options.isOnlyNewer === true) this.#hasMoreNewer = true;
      return;
    }
    const { schemaVersion } = this.#runtime.builds.build;
    const isOldestFirst = ++this.#looks % OLDEST_EVERY === 0;
    const rings = await findReady(this.#runtime.pool, this.#options.targets, limit, {
      ...options,
      schemaVersion,
      isOldestFirst,
      exceptIds: this.#locked.recent(),
    });
    if (options.isOnlyNewer === true) this.#hasMoreNewer = rings.length === limit;
    this.#takeRows(rings);
  }

  #takeRows(rings: readonly Ring[]): void {
    for (const ring of rings) {
      if (this.#state !== 'running' || this.#isRunning(ring)) continue;
      if (!this.#slots.take()) break;
      this.#runRow(ring);
    }
  }

  /** A slot is taken for it. */
  #runRow(ring: Ring): void {
    this.#admitted.add(ring);
    const handling = this.#handle(ring).finally(() => this.#fromRows.delete(handling));
    this.#fromRows.add(handling);
  }

  /**
   * Turns that other workers have handed back because they lack the selector. Their slots are taken before they are woken: a turn that is not
   * claimed after all is rung by the sweep, and may come back to a worker without the selector.
   */
  async #takeForSelectors({ isSweep = true } = {}): Promise<void> {
    const { targets } = this.#options;
    const selectors = this.#runtime.selectors.refs;
    if (this.#state !== 'running' || selectors.length === 0) return;
    let limit = 0;
    while (this.#slots.take()) limit++;
    let taken: readonly Ring[] = [];
    let used = 0;
    try {
      taken = await takeForSelectors(this.#runtime.pool, { targets, selectors }, limit);
      for (const ring of taken) {
        if (this.#state !== 'running' || this.#isRunning(ring)) continue;
        this.#runRow(ring);
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
      await this.#takeForSelectors({ isSweep: false });
    } catch {
      // The sweep looks again within a second.
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

  /** W6: gives up the lease, so that other workers take its turns at once, and then ends. */
  async #checkProof(): Promise<void> {
    // Answers that have arrived meanwhile are read first.
    await new Promise((resolve) => setImmediate(resolve));
    this.#proof.look();
    const direct = this.#direct;
    if (!this.#proof.mustLeave || direct === undefined || this.#heartbeat === undefined) return;
    const error = new KernelError('database_unavailable', { message: SILENT_POOL });
    clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
    this.#abortAll(new KernelError('turn_ended', { message: error.message }));
    try {
      await giveUpLease(direct, this.#id);
    } catch (failure) {
      // The lease then ends by itself, at the latest one lease after its last renewal.
      this.#runtime.log('warn', 'worker.lease_not_given_up', {
        worker_id: this.#id,
        error: errorText(failure),
      });
    }
    this.#retire(error);
  }

  #leaveOutdated(error: KernelError): void {
    this.#runtime.log('error', error.code === 'database_unavailable' ? 'worker.cut_off' : 'worker.outdated', {
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
   * Servers that are away delay the end by a few seconds at most after that.
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
    if (options.crash !== undefined) this.#crash = toCrash(options.crash);
    this.#unwatchBuild();
    clearInterval(this.#proofTimer);
    const graceMs = options.graceMs ?? this.#options.graceMs;
    // The pool would not answer, and other workers have taken the turns by now.
    const isCutOff = this.#proof.isLost;
    const failures: unknown[] = [];
    /** A server that is away never answers, so each part is given up at its limit and the next one is tried. */
    const attempt = async (
      part: string,
      work: Promise<unknown> | undefined,
      limitMs: number,
    ): Promise<void> => {
      try {
        if (work !== undefined) await withinTime(work, limitMs, part);
      } catch (error) {
        failures.push(error);
      }
    };
    const crashedJob = this.#crash === undefined || isCutOff ? undefined : takeCrashedJob();
    const noting =
      crashedJob && noteCrashedJob(this.#runtime.pool, crashedJob, this.#crash?.message ?? 'unknown');
    noting?.catch(() => undefined);
    // Takes no new rings from here on, which would be lost here; settles once those in hand are done.
    const unsubscribing = Promise.all(this.#subscriptions.map((subscription) => subscription.close()));
    const stopping = Promise.all([this.#sweeper.stop(), this.#peerWatch.stop()]);
    for (const early of [unsubscribing, stopping]) early.catch(() => undefined);
    const grace = startTimer(graceMs, () =>
      this.#abortAll(
        this.#crash ?? new KernelError('turn_ended', { message: 'The worker is shutting down.' }),
      ),
    );
    this.#modelWaits.close();
    const turnsInHand = () => Promise.all([...this.#active.values()].map((active) => active.done));
    await attempt('turns in progress', turnsInHand(), (isCutOff ? 0 : graceMs) + GOODBYE_MS);
    grace.clear();
    await attempt('the note of a job that left an error', noting, GOODBYE_MS);
    // A queue that does not close is not a failure: queues hold no facts, and the doorbell closes them in any case.
    await withinTime(unsubscribing, GOODBYE_MS + QUEUES_MS, 'the queues of turns').catch((error: unknown) =>
      this.#runtime.log('warn', 'worker.queues_not_closed', { worker_id: this.#id, error: errorText(error) }),
    );
    const until = performance.now() + GOODBYE_MS;
    const left = () => Math.max(until - performance.now(), SHORTEST_GOODBYE_MS);
    await attempt('turns taken from the rows', Promise.all([...this.#fromRows, turnsInHand()]), left());
    clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
    if (!isCutOff) {
      const { pool, doorbell } = this.#runtime;
      await attempt('recording results', this.#left.record(), left());
      // Some turns may still run in spite of their abort, when a locked row delays the record of their results.
      const begunIds = [
        ...this.#left.begunOf(),
        ...[...this.#active.values()].flatMap((active) => [...active.begunIds]),
      ];
      const release = (skipsLocked: boolean) => releaseTurns(pool, this.#id, null, { begunIds, skipsLocked });
      // A turn whose row is locked is waited for after the others, also when the time is over.
      const handBack = async (): Promise<void> => {
        const free = await release(true);
        await Promise.all([doorbell.ring(free), release(false).then((rings) => doorbell.ring(rings))]);
      };
      await attempt('handing its turns back', handBack(), left());
      await attempt('removing its row from the database', removeWorker(pool, this.#id), left());
    }
    await attempt('the sweep and the watch of other workers', stopping, left());
    await attempt('the direct connection', this.#relocking, left());
    const direct = this.#direct;
    this.#direct = undefined;
    await attempt('the direct connection', direct === undefined ? undefined : endClient(direct), left());
    await attempt('the watchdog', this.#watchdog?.stop(), left());
    this.#state = 'closed';
    this.#left.close();
    this.#limits[Symbol.dispose]();
    this.#runtime.log('info', 'worker.stopped', { worker_id: this.#id });
    if (failures.length > 0) throw new AggregateError(failures, 'The worker did not shut down cleanly.');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/**
 * Starts a worker in this process.
 *
 * @param clock - For tests: the clock of its lease.
 */
export async function createWorker(
  runtime: RuntimeCore,
  options: WorkerOptions = {},
  clock?: LeaseClock,
): Promise<Worker> {
  const worker = new Worker(runtime, options, clock);
  try {
    return await worker.start();
  } catch (error) {
    // What was begun is undone; why it could not be finished is in the first error.
    await worker.close({ graceMs: 0 }).catch(() => undefined);
    throw error;
  }
}
