import { errorText, startTimer, type Timer } from '@boxcar/kernel';
import {
  elected,
  findQueuedTargets,
  forgetSettledFailures,
  probe,
  purgeDeadWorkers,
  type SweepFindings,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { answerForLost } from '../end/index.js';
import { WaitCycles } from './break-cycles.js';
import { DueWaits, type WakeProvider } from './due-waits.js';
import { LeftApprovals } from './left-approvals.js';
import { LostRings, type Near } from './lost-rings.js';
import { Overdue } from './overdue.js';
import { SweepRows } from './sweep-rows.js';
import { WaitingJobs } from './waiting-jobs.js';

/** Rows of one kind in one pass; the rest is left to the next pass. */
const LIMIT = 500;
const LEASE_MS = 10_000;

export interface SweeperOptions {
  readonly lostRingMs: number;
  /**
   * The workers' lease in milliseconds, default 10,000. Half of it is the limit for a stopped sweep and for an unclaimed
   * ring.
   */
  readonly leaseMs?: number;
  readonly claimFromRows: (options?: { readonly isOnlyNewer: boolean }) => Promise<void>;
  /** True when workers of older builds serve the same targets. They end rings of turns that they cannot read. */
  readonly hasOlder?: () => boolean;
  /** Takes turns that wait for a selector of this process. */
  readonly takeForSelectors?: () => Promise<void>;
  /** The rings that wait in this process. */
  readonly near?: Near;
  /** Wakes turns that wait for a provider, as far as there is room. */
  readonly wakeProvider: WakeProvider;
}

/**
 * Searches, by a timer, for rows on which nothing else would act: lost rings, dead leases, deadlines, room for queued
 * turns, jobs whose answer is ready. An idle pass is one statement.
 */
export class Sweeper {
  readonly #runtime: RuntimeCore;
  readonly #options: SweeperOptions;
  readonly #halfLeaseMs: number;
  readonly #rows: SweepRows;
  readonly #overdue: Overdue;
  readonly #waits: DueWaits;
  readonly #rings: LostRings;
  readonly #doors: WaitingJobs;
  readonly #cycles: WaitCycles;
  readonly #approvals: LeftApprovals;
  #timer: Timer | undefined;
  #running: Promise<void> | undefined;
  #isStopped = false;
  #isDoorbellUnavailable = false;

  constructor(runtime: RuntimeCore, options: SweeperOptions) {
    this.#runtime = runtime;
    this.#options = options;
    this.#halfLeaseMs = (options.leaseMs ?? LEASE_MS) / 2;
    this.#rows = new SweepRows(runtime);
    const context = { runtime, rows: this.#rows, queue: this };
    this.#overdue = new Overdue(context);
    this.#waits = new DueWaits(context, options.wakeProvider);
    const times = { lostRingMs: options.lostRingMs, halfLeaseMs: this.#halfLeaseMs };
    this.#rings = new LostRings(context, times, options.near);
    this.#doors = new WaitingJobs(context);
    this.#cycles = new WaitCycles(context);
    this.#approvals = new LeftApprovals(runtime);
  }

  start(everyMs: number): void {
    const next = (): void => {
      if (this.#isStopped) return;
      this.#running = this.sweep()
        .catch((error: unknown) =>
          this.#runtime.log('warn', 'sweep.failed', {
            error: errorText(error),
          }),
        )
        .finally(() => {
          this.#running = undefined;
          // Random intervals, so that workers that started together do not sweep together.
          if (!this.#isStopped) this.#timer = startTimer(everyMs * (0.8 + Math.random() * 0.4), next);
        });
    };
    next();
  }

  get isDoorbellUnavailable(): boolean {
    return this.#isDoorbellUnavailable;
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#timer?.clear();
    await this.#running;
  }

  /** One pass over everything that is due now. `now` moves the clock in tests. */
  async sweep(options: { readonly now?: Date } = {}): Promise<void> {
    const { pool } = this.#runtime;
    if (this.#isDoorbellUnavailable) {
      this.#isDoorbellUnavailable = (await this.#runtime.doorbell.findLost([])) === undefined;
      await this.#options.claimFromRows();
    } else if (this.#options.hasOlder?.() === true) {
      await this.#options.claimFromRows({ isOnlyNewer: true });
    }
    const { webhooks, ...found } = await probe(pool, { ...options, lostRingMs: this.#options.lostRingMs });
    // Also when another worker is elected: each process sends.
    if (webhooks) this.#runtime.webhooks.wake();
    if (!Object.values(found).some(Boolean)) return;
    // Also when another worker is elected: each worker takes turns for itself.
    if (found.selector_waits) await this.#options.takeForSelectors?.();
    await elected(pool, this.#halfLeaseMs, () => this.#sweepFound(found, options));
    // Also when another worker was elected: each worker must find out for itself that the doorbell is unavailable.
    if (found.lost_rings && !this.#isDoorbellUnavailable)
      this.#isDoorbellUnavailable = (await this.#runtime.doorbell.findLost([])) === undefined;
  }

  /**
   * Records that the doorbell is unavailable. Until the queue answers again, each pass of every worker claims ready
   * turns directly from the rows, whether the worker is elected or not.
   */
  markDoorbellUnavailable(): void {
    this.#isDoorbellUnavailable = true;
  }

  async #sweepFound(found: Omit<SweepFindings, 'webhooks'>, options: { readonly now?: Date }): Promise<void> {
    const clock = { ...options, limit: LIMIT };
    this.#rows.renew();
    const parts: [boolean, string, () => Promise<void>][] = [
      [found.dead_leases, 'dead_leases', () => this.#overdue.takeOver(clock)],
      [found.overdue_turns, 'overdue_turns', () => this.#overdue.endOverdue(clock)],
      [found.overdue_calls, 'overdue_calls', () => this.#overdue.answerOverdue(clock)],
      [found.due_batches, 'due_batches', () => this.#overdue.finishBatches(clock)],
      [found.lost_rings, 'lost_rings', () => this.#rings.ringAgain(clock)],
      [found.due_waits, 'due_waits', () => this.#waits.wake(clock)],
      [found.queued, 'queued', () => this.#promote()],
      [found.waiting_doors, 'waiting_doors', () => this.#doors.wake(clock)],
      [found.dead_workers, 'dead_workers', () => this.#purge(clock)],
      [found.due_looks, 'due_looks', () => this.#lookAtCalls(options)],
      [found.long_waits, 'long_waits', () => this.#cycles.breakCycles(clock)],
      [found.failed_turns, 'failed_turns', () => this.#overdue.endFailed(clock)],
      [found.lost_turns, 'lost_turns', () => answerForLost(this.#runtime, clock, this.#rows.handling(clock))],
      [found.notices, 'notices', () => this.#overdue.tell(clock)],
      [found.handoff_notices, 'handoff_notices', () => this.#overdue.tellSources(clock)],
      [found.approvals, 'approvals', () => this.#approvals.act(clock)],
      [found.left_forks, 'left_forks', () => this.#overdue.discardForks(clock)],
      [found.settled_failures, 'settled_failures', () => forgetSettledFailures(this.#runtime.pool, options)],
    ];
    for (const [isDue, part, work] of parts) {
      if (!isDue) continue;
      try {
        await work();
      } catch (error) {
        // A failure of one part does not prevent the others.
        this.#runtime.log('warn', 'sweep.part_failed', {
          part,
          error: errorText(error),
        });
      }
    }
  }

  /** Takes turns from lost workers now. For a worker that has seen the loss of another worker. */
  takeOver(): Promise<void> {
    this.#rings.workerLost();
    return this.#overdue.takeOver({ limit: LIMIT });
  }

  /** Checks calls that external workers have. */
  async #lookAtCalls(options: { readonly now?: Date }): Promise<void> {
    // Nothing is lost while the queue is unavailable: the calls stay due.
    if (this.#isDoorbellUnavailable) return;
    const limit = { lockMs: this.#rows.lockMs };
    if ((await this.#runtime.outside?.sweep({ ...options, ...limit })) === false)
      this.markDoorbellUnavailable();
  }

  async #purge(clock: { now?: Date }): Promise<void> {
    const workerIds = await purgeDeadWorkers(this.#runtime.pool, clock);
    this.#runtime.log('info', 'sweep.purged_workers', { worker_ids: workerIds });
  }

  async #promote(): Promise<void> {
    for (const target of await findQueuedTargets(this.#runtime.pool)) this.#runtime.promoteSoon(target);
  }
}
