import {
  findWaitCycles,
  KernelError,
  type ProjectId,
  type Ring,
  startTimer,
  type Timer,
  type ToolCallId,
  type TurnId,
  tryParseId,
  type WaitCycle,
} from '@boxcar/kernel';
import {
  closeDoors,
  type Door,
  discardFork,
  type EndableTurn,
  elected,
  findDeadTurns,
  findDueBatches,
  findDueNotices,
  findDueWaits,
  findExhaustedTurns,
  findFailedTurns,
  findLeftForks,
  findLeftovers,
  findOverdueCalls,
  findOverdueProviders,
  findOverdueTurns,
  findProviderWaiters,
  findQueuedTargets,
  findRunFailures,
  findStaleRings,
  findUnselected,
  findWaitingDoors,
  forgetSettledFailures,
  isServerTrouble,
  type LockLimit,
  loadLongWaits,
  noteSweepFailure,
  type OverdueCall,
  type OverdueTurn,
  probe,
  purgeDeadWorkers,
  type RingPlace,
  recordResults,
  ringAgain,
  SELECTOR_PATIENCE_MS,
  type SweepFindings,
  type SweepKind,
  sqlStateOf,
  takeOver,
  type UnselectedTurn,
  wakeDue,
  wakeForLeftovers,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import {
  answerForLost,
  buildResult,
  type EndSubtrees,
  endAndAnnounce,
  endWaiting,
  finishBatch,
  fromCause,
  leaveBatch,
  type RowHandling,
  tellParent,
  toCause,
} from '../end/index.js';
import { RowPatience } from '../lib/index.js';
import { selectorUnknown } from '../pack/index.js';
import { MAX_ATTEMPTS } from '../turn/index.js';

/** Rows of one kind in one pass; the rest waits for the next. */
const LIMIT = 500;
const LEASE_MS = 10_000;
/** Rings that other rings have passed and that one pass raises. */
const RAISES = 100;
/** Jobs at the queue door looked at in one pass. */
const DOORS = 2_000;
/** Circles of waits are rare, and looking for them reads more than other searches. */
const CYCLES_EVERY_MS = 5_000;
/** Of nearly all that stand in a queue one look at an index tells that they are in none. */
const CYCLE_STARTS = 5_000;

interface Clock {
  readonly now?: Date;
  readonly limit: number;
}

/** Where a search for doors of each kind ended. The next search begins there. */
type Places = { turns?: string | undefined; batches?: string | undefined };

const isLocked = (error: unknown): boolean => sqlStateOf(error) === '55P03';

/** A circle whose youngest wait is given up. */
type KnownCycle = WaitCycle & { readonly id: ToolCallId; readonly project_id: ProjectId };

/** A turn that was given up ends as `failed`, unless the noted cause is an end from outside. */
const STATUS_OF: Readonly<Record<string, 'canceled' | 'timeout' | 'partial'>> = {
  canceled: 'canceled',
  batch_closed: 'canceled',
  deadline_exceeded: 'timeout',
  budget_exceeded: 'partial',
};
const statusOf = (code: string): EndSubtrees['status'] => STATUS_OF[code] ?? 'failed';

export interface SweeperOptions {
  readonly lostRingMs: number;
  /**
   * The workers' lease in milliseconds, default 10,000. Half of it is the limit for a stopped sweep and for an unclaimed
   * ring.
   */
  readonly leaseMs?: number;
  readonly claimFromRows: (options?: { readonly isOnlyNewer: boolean }) => Promise<void>;
  /** Workers of older builds serve the same targets: rings of what they cannot read end with them. */
  readonly hasOlder?: () => boolean;
  /** Takes turns that wait for a selector of this process. */
  readonly takeForSelectors?: () => Promise<void>;
  /** Wakes who waits for a provider, as far as there is room. */
  readonly wakeProvider: (
    provider: string,
    options: { readonly wakeOnly?: readonly TurnId[]; readonly now?: Date | undefined } & LockLimit,
  ) => Promise<void>;
}

/**
 * Looks, by a timer, for rows that nobody will touch unless somebody looks: lost rings, dead leases, deadlines, room for
 * queued turns, jobs whose answer is ready. An idle pass is one statement.
 */
export class Sweeper {
  readonly #runtime: RuntimeCore;
  readonly #options: SweeperOptions;
  readonly #halfLeaseMs: number;
  readonly #patience = new RowPatience();
  #timer: Timer | undefined;
  #running: Promise<void> | undefined;
  #isStopped = false;
  #isDeaf = false;
  /** By the monotonic clock: when a worker was last lost. That worker may have taken rings without claiming them. */
  #lostWorkerAt = Number.NEGATIVE_INFINITY;
  #cyclesLookedAt = Number.NEGATIVE_INFINITY;
  #cyclesAfter: string | undefined;
  /** Where the last looks at the jobs at the queue door ended. */
  #doorsAfter: Places = {};
  /** Where the last look at old rings ended. */
  #ringsAfter: RingPlace | undefined;

  constructor(runtime: RuntimeCore, options: SweeperOptions) {
    this.#runtime = runtime;
    this.#options = options;
    this.#halfLeaseMs = (options.leaseMs ?? LEASE_MS) / 2;
  }

  start(everyMs: number): void {
    const next = (): void => {
      if (this.#isStopped) return;
      this.#running = this.sweep()
        .catch((error: unknown) =>
          this.#runtime.log('warn', 'sweep.failed', {
            error: error instanceof Error ? error.message : String(error),
          }),
        )
        .finally(() => {
          this.#running = undefined;
          // Spread over the pool: workers that started together do not sweep together.
          if (!this.#isStopped) this.#timer = startTimer(everyMs * (0.8 + Math.random() * 0.4), next);
        });
    };
    next();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#timer?.clear();
    await this.#running;
  }

  /** One pass: everything that is due now. `now` moves the clock in tests. */
  async sweep(options: { readonly now?: Date } = {}): Promise<void> {
    const { pool } = this.#runtime;
    if (this.#isDeaf) {
      this.#isDeaf = (await this.#runtime.doorbell.findLost([])) === undefined;
      await this.#options.claimFromRows();
    } else if (this.#options.hasOlder?.() === true) {
      await this.#options.claimFromRows({ isOnlyNewer: true });
    }
    const found = await probe(pool, { ...options, lostRingMs: this.#options.lostRingMs });
    if (!Object.values(found).some(Boolean)) return;
    // Also when another worker is elected: each takes for itself.
    if (found.selector_waits) await this.#options.takeForSelectors?.();
    await elected(pool, this.#halfLeaseMs, () => this.#sweepFound(found, options));
    // Also when another worker was elected: each finds out for itself that it cannot hear.
    if (found.lost_rings && !this.#isDeaf)
      this.#isDeaf = (await this.#runtime.doorbell.findLost([])) === undefined;
  }

  /**
   * The doorbell cannot be heard: from now on each pass takes what stands ready straight from the rows, whoever is elected,
   * until the queue answers again.
   */
  deafen(): void {
    this.#isDeaf = true;
  }

  async #sweepFound(found: SweepFindings, options: { readonly now?: Date }): Promise<void> {
    const clock = { ...options, limit: LIMIT };
    this.#patience.renew();
    const parts: [boolean, string, () => Promise<void>][] = [
      [found.dead_leases, 'dead_leases', () => this.#takeOver(clock)],
      [found.overdue_turns, 'overdue_turns', () => this.#endOverdue(clock)],
      [found.overdue_calls, 'overdue_calls', () => this.#answerOverdue(clock)],
      [found.due_batches, 'due_batches', () => this.#finishBatches(clock)],
      [found.lost_rings, 'lost_rings', () => this.#ringLost(clock)],
      [found.due_waits, 'due_waits', () => this.#wake(clock)],
      [found.queued, 'queued', () => this.#promote()],
      [found.waiting_doors, 'waiting_doors', () => this.#knock(clock)],
      [found.dead_workers, 'dead_workers', () => this.#purge(clock)],
      [found.due_looks, 'due_looks', () => this.#lookAtCalls(options)],
      [found.long_waits, 'long_waits', () => this.#breakCycles(clock)],
      [found.failed_turns, 'failed_turns', () => this.#endFailed(clock)],
      [found.lost_turns, 'lost_turns', () => answerForLost(this.#runtime, clock, this.#handling(clock))],
      [found.notices, 'notices', () => this.#tell(clock)],
      [found.left_forks, 'left_forks', () => this.#discardForks(clock)],
      [found.settled_failures, 'settled_failures', () => forgetSettledFailures(this.#runtime.pool, options)],
    ];
    for (const [isDue, part, work] of parts) {
      if (!isDue) continue;
      try {
        await work();
      } catch (error) {
        // One kind of trouble does not keep the others waiting.
        this.#runtime.log('warn', 'sweep.part_failed', {
          part,
          error: error instanceof Error ? error.message : String(error),
        });
      }
    }
  }

  /** Takes turns from workers that are gone, now: for a worker that has just seen one go. */
  takeOver(): Promise<void> {
    this.#lostWorkerAt = performance.now();
    return this.#takeOver({ limit: LIMIT });
  }

  async #takeOver(clock: Clock): Promise<void> {
    const { pool } = this.#runtime;
    const options = { ...clock, maxLosses: MAX_ATTEMPTS };
    const exhausted = await findExhaustedTurns(pool, options);
    const lost = new KernelError('attempts_exhausted', {
      message: `The turn lost its worker ${MAX_ATTEMPTS} times at the same step.`,
    }).toJSON();
    const causes = await findRunFailures(
      pool,
      exhausted.map((turn) => turn.turn_id),
    );
    for (const turn of exhausted) {
      const cause = causes.get(turn.turn_id);
      const error = cause === undefined ? lost : fromCause(cause, { attempts: MAX_ATTEMPTS });
      await this.#end('dead_leases', [turn], { status: 'failed', error, ...clock });
    }
    const rings = await this.#orAlone('dead_leases', clock, {
      all: () => takeOver(pool, options),
      find: () => findDeadTurns(pool, options),
      alone: (turn) => takeOver(pool, { ...options, turnIds: [turn.turn_id] }),
    });
    if (rings.length > 0)
      this.#runtime.log('info', 'sweep.taken_over', { turn_ids: rings.map((ring) => ring.turnId) });
    this.#runtime.ring(rings);
  }

  /**
   * Handles rows all at once, and when that fails each alone, so that one that cannot be handled does not keep the others
   * waiting. Such a row is noted, and left out of the searches for a while.
   */
  async #orAlone<R extends { readonly turn_id: TurnId; readonly project_id: ProjectId | null }>(
    kind: SweepKind,
    clock: Clock,
    work: {
      readonly all: () => Promise<readonly Ring[]>;
      readonly find: () => Promise<readonly R[]>;
      readonly alone: (row: R, limit: LockLimit) => Promise<readonly Ring[]>;
    },
  ): Promise<readonly Ring[]> {
    try {
      return await work.all();
    } catch (error) {
      if (isServerTrouble(error)) throw error;
    }
    const rings: Ring[] = [];
    await this.#each(kind, clock, {
      rows: await work.find(),
      key: 'turn_id',
      work: async (row, limit) => void rings.push(...(await work.alone(row, limit))),
    });
    return rings;
  }

  /** A row could not be handled. What says nothing about the row, a lost connection, goes on its way. */
  async #setAside(
    row: { readonly kind: SweepKind; readonly rowId: string; readonly projectId: ProjectId | null },
    failure: unknown,
    clock: Pick<Clock, 'now'>,
  ): Promise<void> {
    if (isServerTrouble(failure)) throw failure;
    const error = toCause(failure);
    const { attempts, isDead } = await noteSweepFailure(
      this.#runtime.pool,
      { ...row, error },
      { now: clock.now },
    );
    this.#runtime.log('error', isDead ? 'sweep.row_given_up' : 'sweep.row_failed', {
      part: row.kind,
      row_id: row.rowId,
      attempts,
      error,
    });
    // Callers no longer need to wait for its end.
    const id = tryParseId<'turn' | 'batch'>(row.rowId);
    if (!isDead || id === undefined) return;
    this.#runtime.watcher.hint([id]);
    this.#runtime.knockSoon([id]);
  }

  #logLocked(part: SweepKind, rowId: string): void {
    this.#runtime.log('warn', 'sweep.row_locked', { part, row_id: rowId });
  }

  /**
   * Handles the rows one after the other. A locked row is left to the next pass. A row that cannot be handled is set
   * aside.
   */
  #each<K extends string, R extends Readonly<Record<K, string>> & { readonly project_id: ProjectId | null }>(
    kind: SweepKind,
    clock: Pick<Clock, 'now'>,
    of: {
      readonly rows: readonly R[];
      readonly key: K;
      readonly work: (row: R, limit: LockLimit) => Promise<void>;
    },
  ): Promise<void> {
    return this.#patience.each(of.rows, {
      idOf: (row) => `${kind}:${row[of.key]}`,
      onLocked: (row) => this.#logLocked(kind, row[of.key]),
      work: async (row, lockMs) => {
        try {
          await of.work(row, { lockMs });
        } catch (failure) {
          // A lock is not a defect of the row, and does not affect the other rows.
          if (isLocked(failure)) return false;
          await this.#setAside({ kind, rowId: row[of.key], projectId: row.project_id }, failure, clock);
        }
        return true;
      },
    });
  }

  async #endOverdue(clock: Clock): Promise<void> {
    const turns = await findOverdueTurns(this.#runtime.pool, clock);
    const isOver = (turn: OverdueTurn): boolean => turn.over_budget_id !== null;
    const late = turns.filter((turn) => !isOver(turn));
    const error = new KernelError('deadline_exceeded').toJSON();
    await this.#end('overdue_turns', late, { status: 'timeout', error, ...clock });
    // The deadline was that of an account: as when a worker meets it before a step.
    const spent = new KernelError('budget_exceeded', {
      message: 'The time of its budget is over.',
      details: { limit: 'seconds' },
    }).toJSON();
    await this.#end('overdue_turns', turns.filter(isOver), { status: 'partial', error: spent, ...clock });
  }

  async #end(
    kind: SweepKind,
    turns: readonly EndableTurn[],
    { status, error, ...clock }: Clock & Pick<EndSubtrees, 'status' | 'error'>,
  ): Promise<void> {
    await this.#each(kind, clock, {
      rows: turns,
      key: 'turn_id',
      work: async (turn, limit) => {
        await endAndAnnounce(this.#runtime, limit, (tx) => endWaiting(tx, turn, { status, error }));
      },
    });
  }

  /** Ends each turn that was given up, with the cause that was noted. */
  async #endFailed(clock: Clock): Promise<void> {
    for (const turn of await findFailedTurns(this.#runtime.pool, clock)) {
      const error = fromCause(turn.last_error, { attempts: turn.attempts });
      await this.#end('turn_ends', [turn], { status: statusOf(error.code), error, ...clock });
    }
  }

  #handling(clock: Clock): RowHandling {
    return { each: (kind, rows, work) => this.#each(kind, clock, { rows, key: 'id', work }) };
  }

  async #answerOverdue(clock: Clock): Promise<void> {
    const calls = await findOverdueCalls(this.#runtime.pool, clock);
    const answered: OverdueCall[] = [];
    const answer = async (of: readonly OverdueCall[], limit: LockLimit): Promise<void> => {
      await this.#answer(of, limit);
      answered.push(...of);
    };
    try {
      await answer(calls, { lockMs: this.#patience.lockMs });
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      const work = (call: OverdueCall, limit: LockLimit) => answer([call], limit);
      await this.#each('overdue_calls', clock, { rows: calls, key: 'id', work });
    }
    // Nobody waits for them any more; a worker that has one in hand finds its answer a duplicate.
    if (!this.#isDeaf && (await this.#runtime.outside?.forget(answered)) === false) this.deafen();
  }

  /** Calls in the hands of workers outside. */
  async #lookAtCalls(options: { readonly now?: Date }): Promise<void> {
    // Nothing is lost while the queue is away: the calls stay due.
    if (this.#isDeaf) return;
    const limit = { lockMs: this.#patience.lockMs };
    if ((await this.#runtime.outside?.sweep({ ...options, ...limit })) === false) this.deafen();
  }

  async #answer(calls: readonly OverdueCall[], limit: LockLimit): Promise<void> {
    const settlements = calls.map((call) => ({
      ...buildResult(
        { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: call.project_id },
        {
          status: 'timeout',
          error: new KernelError(call.is_awaiting ? 'wait_timeout' : 'tool_timeout', {
            details: { tool: call.name, tool_call_id: call.id },
          }).toJSON(),
        },
        { authorId: 'kernel' },
      ),
      // A call that was given more time since it was found is not answered.
      deadlineAt: call.deadline_at,
    }));
    const options = { ...limit, isPatient: false };
    this.#runtime.ring((await recordResults(this.#runtime.pool, settlements, options)).rings);
  }

  /** Batches whose end nobody came to make, or whose deadline has passed. */
  async #finishBatches(clock: Clock): Promise<void> {
    await this.#each('due_batches', clock, {
      rows: await findDueBatches(this.#runtime.pool, clock),
      key: 'id',
      work: ({ id }, limit) => finishBatch(this.#runtime, id, { ...clock, ...limit }),
    });
  }

  /** Ends of sessions' turns that nobody came to tell. */
  async #tell(clock: Clock): Promise<void> {
    await this.#each('notices', clock, {
      rows: await findDueNotices(this.#runtime.pool, clock),
      key: 'turn_id',
      work: ({ turn_id: turnId }, limit) => tellParent(this.#runtime, turnId, limit),
    });
  }

  /** Forks that live with a turn end with it. */
  async #discardForks(clock: Clock): Promise<void> {
    await this.#each('left_forks', clock, {
      rows: await findLeftForks(this.#runtime.pool, clock),
      key: 'id',
      work: async (fork, limit) => void (await discardFork(this.#runtime.pool, fork, limit)),
    });
  }

  /** Rings by itself. */
  async #wakeProvider(
    provider: string,
    options: Clock & LockLimit & { readonly wakeOnly?: readonly TurnId[] },
  ): Promise<readonly Ring[]> {
    await this.#options.wakeProvider(provider, options);
    return [];
  }

  async #wake(clock: Clock): Promise<void> {
    const { pool } = this.#runtime;
    const rings = await this.#orAlone('due_waits', clock, {
      all: () => wakeDue(pool, clock),
      find: () => findDueWaits(pool, clock),
      alone: (wait) => wakeDue(pool, { ...clock, turnIds: [wait.turn_id] }),
    });
    this.#runtime.ring(rings);
    await this.#each('due_waits', clock, {
      rows: await findUnselected(pool, clock),
      key: 'turn_id',
      work: (turn, limit) => this.#endUnselected(turn, limit),
    });
    // The id of an account is that of a run or a turn, and a note of `due_waits` would end that turn.
    await this.#each('left_budgets', clock, {
      rows: await findLeftovers(pool, clock),
      key: 'id',
      work: async (account, limit) => this.#runtime.ring(await wakeForLeftovers(pool, account, limit)),
    });
    for (const provider of await findOverdueProviders(pool, clock))
      await this.#orAlone('due_waits', clock, {
        all: () => this.#wakeProvider(provider, { ...clock, lockMs: this.#patience.lockMs }),
        find: () => findProviderWaiters(pool, provider, clock),
        alone: (wait, limit) =>
          this.#wakeProvider(provider, { ...clock, ...limit, wakeOnly: [wait.turn_id] }),
      });
  }

  /** For a minute no worker has lived that has the selector. */
  async #endUnselected(turn: UnselectedTurn, limit: LockLimit): Promise<void> {
    const { turn_id, step_count, selector: name, selector_version: version } = turn;
    const what = `makes the prompts of this turn, and for ${SELECTOR_PATIENCE_MS / 1000} s no worker of its pool had it`;
    const body = selectorUnknown({ name, version }, what).toJSON();
    const error = { ...body, details: { ...body.details, turn_id, step: step_count + 1 } };
    await endAndAnnounce(this.#runtime, limit, (tx) => endWaiting(tx, turn, { status: 'failed', error }));
  }

  async #ringLost(clock: Clock): Promise<void> {
    // The queue is away, so this pass has claimed from the rows instead.
    if (this.#isDeaf) return;
    const { rings: stale, next } = await findStaleRings(this.#runtime.pool, {
      ...clock,
      lostRingMs: this.#options.lostRingMs,
      after: this.#ringsAfter,
    });
    // After the loss of a worker, that worker may hold any unclaimed ring. A surplus ring changes nothing.
    const isDoubtful = performance.now() - this.#lostWorkerAt < 3 * this.#options.lostRingMs;
    const takenMs = isDoubtful ? 0 : this.#halfLeaseMs;
    const lost = await this.#runtime.doorbell.findLost(stale, { takenMs });
    if (lost === undefined) this.deafen();
    if (lost === undefined) return;
    this.#ringsAfter = next;
    const isLost = new Set(lost.map(({ turnId }) => turnId));
    const passed = stale.filter(({ turnId, isNext }) => isNext && !isLost.has(turnId));
    if (passed.length > 0) await this.#runtime.doorbell.raise(passed.slice(0, RAISES));
    if (lost.length === 0) return;
    const again = await this.#orAlone('lost_rings', clock, {
      all: () => ringAgain(this.#runtime.pool, lost),
      find: async () => lost.map((ring) => ({ turn_id: ring.turnId, project_id: null, ring })),
      alone: ({ ring }) => ringAgain(this.#runtime.pool, [ring]),
    });
    this.#runtime.log('info', 'sweep.rang_again', { turn_ids: again.map((ring: Ring) => ring.turnId) });
    this.#runtime.ring(again);
  }

  async #purge(clock: { now?: Date }): Promise<void> {
    const workerIds = await purgeDeadWorkers(this.#runtime.pool, clock);
    this.#runtime.log('info', 'sweep.purged_workers', { worker_ids: workerIds });
  }

  async #promote(): Promise<void> {
    for (const target of await findQueuedTargets(this.#runtime.pool)) this.#runtime.promoteSoon(target);
  }

  async #knock(clock: Clock): Promise<void> {
    // Nothing is lost while the queue is away: the next search finds the same doors again.
    if (this.#isDeaf) return;
    const doors: Door[] = [];
    const next: Places = {};
    for (const of of ['turns', 'batches'] as const) {
      const found = await findWaitingDoors(this.#runtime.pool, {
        ...clock,
        of,
        after: this.#doorsAfter[of],
        limit: DOORS,
      });
      next[of] = found.next;
      doors.push(...found.doors);
    }
    const answer =
      doors.length === 0 ? [] : await this.#runtime.doorbell.knock(doors.map((door) => door.job_id));
    if (answer === undefined) {
      this.deafen();
      return;
    }
    this.#doorsAfter = next;
    const ids = new Set(answer);
    const gone = doors.filter((door) => ids.has(door.job_id));
    if (gone.length > 0) await this.#closeDoors(gone);
  }

  /** Closes doors all at once, and when that fails each alone. What stays open comes again, with all others. */
  async #closeDoors(doors: readonly Door[]): Promise<void> {
    try {
      await closeDoors(this.#runtime.pool, doors);
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      const [only] = doors;
      if (doors.length > 1) for (const door of doors) await this.#closeDoors([door]);
      else this.#runtime.log('warn', 'sweep.door_not_closed', { job_id: only?.job_id, error: String(error) });
    }
  }

  /** Turns of several runs that wait for each other: the youngest wait is answered, and its turn goes on. */
  async #breakCycles(clock: Clock): Promise<void> {
    if (clock.now === undefined && performance.now() - this.#cyclesLookedAt < CYCLES_EVERY_MS) return;
    this.#cyclesLookedAt = performance.now();
    const { turns, next } = await loadLongWaits(this.#runtime.pool, {
      ...clock,
      limit: CYCLE_STARTS,
      after: this.#cyclesAfter,
    });
    this.#cyclesAfter = next;
    const projects = new Map(turns.map((turn) => [turn.turnId, turn.projectId]));
    const cycles: KnownCycle[] = [];
    for (const cycle of findWaitCycles(turns)) {
      const projectId = projects.get(cycle.victim.waitingTurnId);
      if (projectId === undefined) continue;
      cycles.push({ ...cycle, id: cycle.victim.toolCallId, project_id: projectId });
    }
    const work = (cycle: KnownCycle, limit: LockLimit) => this.#giveUpWait(cycle, limit);
    await this.#each('wait_cycles', clock, { rows: cycles, key: 'id', work });
  }

  async #giveUpWait({ turns, victim, project_id: projectId }: KnownCycle, limit: LockLimit): Promise<void> {
    const chain = turns.map((turn) => ({
      turn_id: turn.turnId,
      agent_id: turn.agentId,
      agent: turn.agentName,
    }));
    const names = [...chain, ...chain.slice(0, 1)].map(({ agent }) => agent).join(' → ');
    const error = new KernelError('delegation_cycle', {
      message: `These turns wait for each other, so the youngest wait was given up: ${names}.`,
      details: {
        tool_call_id: victim.toolCallId,
        ...(victim.batchId === null ? {} : { batch_id: victim.batchId }),
        chain,
      },
    }).toJSON();
    const settlement = buildResult(
      { toolCallId: victim.toolCallId, turnId: victim.waitingTurnId, name: victim.name, projectId },
      { status: 'failed', error },
      { authorId: 'kernel' },
    );
    if (victim.batchId === null) {
      const { rings, duplicates } = await recordResults(this.#runtime.pool, [settlement], limit);
      this.#runtime.ring(rings);
      if (duplicates.length > 0) return;
    } else if ((await leaveBatch(this.#runtime, victim.batchId, settlement, limit)) === 'duplicate') return;
    this.#runtime.log('warn', 'sweep.cycle_broken', { tool_call_id: victim.toolCallId, chain });
  }
}
