/**
 * The lease of a worker: its row, its session lock, its direct connection, and the proof that it can commit.
 *
 * It owns the worker's id, the direct connection, the moment of the last renewal, and the timers of the heartbeat and
 * of the proof. It owns no turns. It reads the worker's state and never changes it.
 *
 * Communication is narrow. The worker calls `register`, `start`, `stopProof`, `stopRenewing` and `disconnect`, and
 * reads `id`, `isStale` and `isCutOff`. By `LeaseEvents` the lease tells the worker of a heartbeat, a renewal, a new
 * incarnation, an expired or lost lease, turns that have ended, a peer that has joined, a hint, and a pool that no
 * longer reaches the server.
 *
 * E1  The moment of a renewal is taken before its statement is sent: the clock of the server starts no earlier.
 * E2  A heartbeat never waits for another. A loss of the direct connection during a renewal leads to a second renewal,
 *     because the first renewal may still have reported the lock.
 * E3  A heartbeat waits neither for the lock nor for turns that are handed back: both may take longer than the lease.
 * E4  After `stopRenewing` nothing renews the lease: the worker removes its row, and a renewal must not follow the
 *     removal.
 */
import { randomInt } from 'node:crypto';
import { hostname } from 'node:os';
import {
  errorText,
  KernelError,
  LONGEST_TIMER_MS,
  type Ring,
  type TurnId,
  tryParseId,
  type WorkerId,
} from '@boxcar/kernel';
import {
  announceWorker,
  askServer,
  CANCELED_CHANNEL,
  createDirectClient,
  endClient,
  giveUpLease,
  parseRung,
  parseWorkerNotice,
  type Renewal,
  registerWorker,
  removeWorker,
  renewLease,
  rungChannel,
  WORKERS_CHANNEL,
} from '@boxcar/store';
import type pg from 'pg';
import type { RuntimeCore } from '../core/index.js';
import { argumentHashes } from '../door/index.js';
import { newId, withinTime } from '../lib/index.js';
import type { ModelWaits } from '../model/index.js';
import { CommitProof } from './commit-proof.js';
import type { LeaseClock, Moment } from './lease-clock.js';
import type { WorkerOptions, WorkerState } from './worker-options.js';

/** How many times in each lease the worker checks that the pool answers. */
const PROOFS_PER_LEASE = 10;

const listenAs = (id: WorkerId): string =>
  `listen ${CANCELED_CHANNEL}; listen ${WORKERS_CHANNEL}; listen ${rungChannel(id)}`;

const SILENT_POOL = 'The connections of the pool have not answered for as long as the lease lives.';

/** The notices from the lease to its worker. No method throws or waits. */
export interface LeaseEvents {
  /** A heartbeat begins. */
  beat(): void;
  /** @param askedAt - Time before the rows were read, on the monotonic clock. */
  renewed(renewal: Renewal, askedAt: number): void;
  /** A new incarnation has begun; it holds no turns under the new id. */
  registered(id: WorkerId): void;
  /** The worker may no longer act for any of its turns. */
  expired(reason: KernelError): void;
  /** This worker no longer holds these turns. */
  ended(turnIds: readonly TurnId[]): void;
  peerJoined(id: WorkerId): void;
  /** A turn was dispatched a moment ago; this worker may take it if it has a free slot. */
  hinted(ring: Ring): void;
  /** W6: the lease was given up, and the worker must end. */
  cutOff(error: KernelError): void;
}

export class Lease {
  readonly #runtime: RuntimeCore;
  readonly #options: Required<WorkerOptions>;
  readonly #clock: LeaseClock;
  readonly #gate: ModelWaits['gate'];
  readonly #state: () => WorkerState;
  readonly #events: LeaseEvents;
  readonly #proof: CommitProof;
  #id: WorkerId = newId<'worker'>();
  #direct: pg.Client | undefined;
  #relocking: Promise<void> | undefined;
  #renewedAt: Moment;
  #heartbeat: NodeJS.Timeout | undefined;
  #proofTimer: NodeJS.Timeout | undefined;
  #isBeating = false;
  /** The lock was lost during a renewal that still reported the lock. */
  #mustBeatAgain = false;

  constructor(
    runtime: RuntimeCore,
    parts: {
      readonly options: Required<WorkerOptions>;
      readonly clock: LeaseClock;
      /** The answers of providers are written with the renewals. */
      readonly gate: ModelWaits['gate'];
      readonly state: () => WorkerState;
      readonly events: LeaseEvents;
    },
  ) {
    this.#runtime = runtime;
    this.#options = parts.options;
    this.#clock = parts.clock;
    this.#gate = parts.gate;
    this.#state = parts.state;
    this.#events = parts.events;
    this.#renewedAt = parts.clock.now();
    this.#proof = new CommitProof({
      pool: runtime.pool,
      direct: () => this.#direct,
      leaseMs: parts.options.leaseMs,
      log: runtime.log,
    });
  }

  get id(): WorkerId {
    return this.#id;
  }

  get isStale(): boolean {
    return this.#clock.since(this.#renewedAt) >= this.#options.leaseMs;
  }

  /** The pool did not answer, and other workers have taken the turns by now. */
  get isCutOff(): boolean {
    return this.#proof.isLost;
  }

  /** The lock is being taken again on a new connection. */
  get relocking(): Promise<void> | undefined {
    return this.#relocking;
  }

  /** Starts the heartbeat and the proof. */
  start(): void {
    const { heartbeatMs, leaseMs } = this.#options;
    this.#heartbeat = setInterval(() => void this.#beat(), Math.min(heartbeatMs, LONGEST_TIMER_MS));
    this.#proofTimer = setInterval(
      () => void this.#checkProof(),
      Math.min(leaseMs / PROOFS_PER_LEASE, LONGEST_TIMER_MS),
    );
  }

  stopProof(): void {
    clearInterval(this.#proofTimer);
  }

  /** E4 */
  stopRenewing(): void {
    clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
  }

  /** Ends the direct connection, and with it the lock. */
  disconnect(): Promise<void> | undefined {
    const direct = this.#direct;
    this.#direct = undefined;
    return direct === undefined ? undefined : endClient(direct);
  }

  /** Registers a new incarnation with its own id, lock and lease. */
  async register(): Promise<void> {
    const id = newId<'worker'>();
    const lockKey = randomInt(2 ** 47).toString();
    const direct = this.#openDirect();
    let sentAt: Moment;
    try {
      await direct.connect();
      await direct.query('select pg_advisory_lock($1)', [lockKey]);
      await direct.query(listenAs(id));
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
    this.#events.registered(id);
    this.#direct = direct;
    this.#proof.reached(true);
  }

  get #isClosing(): boolean {
    const state = this.#state();
    return state === 'draining' || state === 'closed';
  }

  #openDirect(): pg.Client {
    const direct = createDirectClient({
      connectionString: this.#runtime.directUrl,
      applicationName: 'boxcar-worker',
      queryMs: this.#options.leaseMs / 2,
    });
    direct.on('notification', ({ channel, payload = '' }) => {
      if (channel === WORKERS_CHANNEL) this.#readNotice(payload);
      else if (channel !== CANCELED_CHANNEL) this.#readHint(payload);
      else this.#events.ended(payload.split(',').flatMap((id) => tryParseId<'turn'>(id) ?? []));
    });
    direct.on('end', () => {
      if (this.#direct !== direct) return;
      this.#direct = undefined;
      this.#proof.reached(false);
      // The peer that watches this worker has the lock by now: W2.
      void this.#beat();
    });
    return direct;
  }

  #readHint(payload: string): void {
    const ring = parseRung(payload);
    if (ring !== undefined) this.#events.hinted(ring);
  }

  #readNotice(payload: string): void {
    const notice = parseWorkerNotice(payload);
    if (notice?.kind === 'joined') this.#events.peerJoined(notice.workerId);
    else if (notice?.workerId === this.#id) void this.#beat();
  }

  async #beat(): Promise<void> {
    // Not after the lease was given up or the worker was removed: a renewal would undo that.
    if (this.#heartbeat === undefined) return;
    this.#events.beat();
    // Also while a renewal hangs: nothing else would notice that the lease has expired meanwhile.
    if (this.isStale)
      this.#events.expired(
        new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }),
      );
    // A server that does not answer the pool may answer on a new, separate connection.
    if (this.#direct === undefined && this.isStale) this.#relocking ??= this.#relock();
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
        // Taken before the statement was sent: the server's clock started no earlier.
        this.#renewedAt = sentAt;
        if (this.#direct === undefined) this.#relocking ??= this.#relock();
        this.#events.renewed(renewal, askedAt);
      } else {
        this.#runtime.log('warn', 'worker.lease_lost', { worker_id: this.#id });
        this.#events.expired(new KernelError('turn_ended', { message: 'The worker has lost its lease.' }));
        if (this.#direct !== undefined) await endClient(this.#direct);
        await this.register();
      }
    } catch (error) {
      this.#runtime.log('warn', 'worker.heartbeat_failed', { worker_id: this.#id, error: errorText(error) });
    } finally {
      this.#isBeating = false;
      if (this.isStale)
        this.#events.expired(
          new KernelError('turn_ended', { message: 'The lease of this worker has passed.' }),
        );
      if (this.#mustBeatAgain) void this.#beat();
    }
  }

  /** Provider answers that could not be written are kept for the next renewal. */
  async #renew(): Promise<Renewal | undefined> {
    const gate = this.#gate;
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
   * Renews on the direct connection, which has no other use: an exhausted or hanging pool then does not cost the lease.
   * When the direct connection is away, or silent for half a lease, the pool is used.
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
   * Takes the lock again on a new connection, after the direct connection broke while the lease lives. Runs in parallel
   * with the heartbeat and does not wait for the lock: the server may believe for hours that the old session is alive,
   * and the lease must be renewed meanwhile.
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
      if (rows[0]?.is_locked !== true) throw new Error('another session still has the lock');
      await direct.query(listenAs(id));
      if (this.#id !== id || this.#state() === 'closed')
        throw new Error('the worker has continued without the lock');
      this.#direct = direct;
      this.#proof.reached(true);
      // From here on a peer watches this worker again.
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

  /** W6: gives up the lease, so that other workers take its turns at once, and then ends. */
  async #checkProof(): Promise<void> {
    // Answers that have already arrived are read first.
    await new Promise((resolve) => setImmediate(resolve));
    this.#proof.check();
    const direct = this.#direct;
    if (!this.#proof.mustLeave || direct === undefined || this.#heartbeat === undefined) return;
    const error = new KernelError('database_unavailable', { message: SILENT_POOL });
    clearInterval(this.#heartbeat);
    this.#heartbeat = undefined;
    this.#events.expired(new KernelError('turn_ended', { message: error.message }));
    try {
      await giveUpLease(direct, this.#id);
    } catch (failure) {
      // The lease then expires by itself, at the latest one lease after its last renewal.
      this.#runtime.log('warn', 'worker.lease_not_given_up', {
        worker_id: this.#id,
        error: errorText(failure),
      });
    }
    this.#events.cutOff(error);
  }
}
