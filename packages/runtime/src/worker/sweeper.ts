import {
  findWaitCycles,
  KernelError,
  type ProjectId,
  type Ring,
  type TurnId,
  type WaitCycle,
} from '@boxcar/kernel';
import {
  closeDoor,
  commitSteps,
  type Door,
  discardFork,
  type EndableTurn,
  elected,
  findDeadTurns,
  findDueBatches,
  findDueNotices,
  findDueWaits,
  findExhaustedTurns,
  findLeftForks,
  findOverdueCalls,
  findOverdueProviders,
  findOverdueTurns,
  findProviderWaiters,
  findQueuedTargets,
  findStaleRings,
  findWaitingDoors,
  forgetSettledFailures,
  hastenLooks,
  isTransient,
  loadLongWaits,
  noteSweepFailure,
  type OverdueCall,
  type OverdueTurn,
  probe,
  purgeDeadWorkers,
  ringAgain,
  type SweepFindings,
  type SweepKind,
  takeOver,
  wakeDue,
  wakeForLeftovers,
} from '@boxcar/store';
import { type EndSubtrees, endFromOutside } from '../end-subtrees.js';
import type { Runtime } from '../runtime.js';
import { createRecorder, type Recorder } from './call-result.js';
import { buildResult } from './ending.js';
import { finishBatch } from './finish-batch.js';
import { MAX_ATTEMPTS } from './held-turn.js';
import { leaveBatch } from './leave-batch.js';
import { tellParent } from './tell-parent.js';

/** Rows of one kind in one pass; the rest waits for the next. */
const LIMIT = 500;
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

export interface SweeperOptions {
  readonly lostRingMs: number;
  readonly claimFromRows: (options?: { readonly isOnlyNewer: boolean }) => Promise<void>;
  /** Workers of older builds serve the same targets: rings of what they cannot read end with them. */
  readonly hasOlder?: () => boolean;
  /** Wakes who waits for a provider, as far as there is room. */
  readonly wakeProvider: (
    provider: string,
    options: { readonly wakeOnly?: readonly TurnId[]; readonly now?: Date | undefined },
  ) => Promise<void>;
}

/**
 * Looks, by a timer, for rows that nobody will touch unless somebody looks: lost rings, dead leases, deadlines, room for
 * queued turns, jobs whose answer is ready. An idle pass is one statement.
 */
export class Sweeper {
  readonly #runtime: Runtime;
  readonly #options: SweeperOptions;
  readonly #recorder: Recorder;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> | undefined;
  #isStopped = false;
  #isDeaf = false;
  #cyclesLookedAt = Number.NEGATIVE_INFINITY;
  #cyclesAfter: string | undefined;
  /** Where the last looks at the jobs at the queue door ended. */
  readonly #doorsAfter: { turns?: string | undefined; batches?: string | undefined } = {};

  constructor(runtime: Runtime, options: SweeperOptions) {
    this.#runtime = runtime;
    this.#options = options;
    this.#recorder = createRecorder(runtime);
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
          if (!this.#isStopped) this.#timer = setTimeout(next, everyMs * (0.8 + Math.random() * 0.4));
        });
    };
    next();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    clearTimeout(this.#timer);
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
    await elected(pool, () => this.#sweepFound(found, options));
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
      [found.due_looks, 'due_looks', async () => this.#runtime.outside?.sweep(options)],
      [found.long_waits, 'long_waits', () => this.#breakCycles(clock)],
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
    return this.#takeOver({ limit: LIMIT });
  }

  async #takeOver(clock: Clock): Promise<void> {
    const { pool } = this.#runtime;
    const options = { ...clock, maxLosses: MAX_ATTEMPTS };
    const exhausted = await findExhaustedTurns(pool, options);
    const lost = new KernelError('attempts_exhausted', {
      message: `The turn lost its worker ${MAX_ATTEMPTS} times at the same step.`,
    }).toJSON();
    await this.#end('dead_leases', exhausted, { status: 'failed', error: lost, ...clock });
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
      readonly alone: (row: R) => Promise<readonly Ring[]>;
    },
  ): Promise<readonly Ring[]> {
    try {
      return await work.all();
    } catch (error) {
      if (isTransient(error)) throw error;
    }
    const rings: Ring[] = [];
    for (const row of await work.find()) {
      try {
        rings.push(...(await work.alone(row)));
      } catch (failure) {
        await this.#setAside({ kind, rowId: row.turn_id, projectId: row.project_id }, failure, clock);
      }
    }
    return rings;
  }

  /** A row could not be handled. What says nothing about the row, a lost connection, goes on its way. */
  async #setAside(
    row: { readonly kind: SweepKind; readonly rowId: string; readonly projectId: ProjectId | null },
    failure: unknown,
    clock: Clock,
  ): Promise<void> {
    if (isTransient(failure)) throw failure;
    const error = failure instanceof Error ? failure.message : String(failure);
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
    const ended: TurnId[] = [];
    for (const turn of turns) {
      try {
        const result = await commitSteps(this.#runtime.pool, [endFromOutside(turn, { status, error })]);
        this.#runtime.ring(result.rings);
        this.#runtime.announceEnds(result);
        ended.push(...result.endedTurnIds);
      } catch (failure) {
        // A poison row must not keep the others from their end.
        await this.#setAside({ kind, rowId: turn.turn_id, projectId: turn.project_id }, failure, clock);
      }
    }
    await hastenLooks(this.#runtime.pool, ended);
  }

  async #answerOverdue(clock: Clock): Promise<void> {
    const calls = await findOverdueCalls(this.#runtime.pool, clock);
    const answer = async (call: OverdueCall): Promise<void> => {
      const error = new KernelError(call.is_awaiting ? 'wait_timeout' : 'tool_timeout', {
        details: { tool: call.name, tool_call_id: call.id },
      }).toJSON();
      const settlement = buildResult(
        { toolCallId: call.id, turnId: call.turn_id, name: call.name, projectId: call.project_id },
        { status: 'timeout', error },
        { authorId: 'kernel' },
      );
      try {
        // One that was given more time since it was found is not answered.
        await this.#recorder.add({ ...settlement, deadlineAt: call.deadline_at });
      } catch (failure) {
        const row = { kind: 'overdue_calls', rowId: call.id, projectId: call.project_id } as const;
        await this.#setAside(row, failure, clock);
      }
    };
    await Promise.all(calls.map(answer));
    // Nobody waits for them any more; a worker that has one in hand finds its answer a duplicate.
    await this.#runtime.outside?.forget(calls);
  }

  /** Batches whose end nobody came to make, or whose deadline has passed. */
  async #finishBatches(clock: Clock): Promise<void> {
    for (const { id, project_id: projectId } of await findDueBatches(this.#runtime.pool, clock)) {
      try {
        await finishBatch(this.#runtime, id, clock);
      } catch (failure) {
        await this.#setAside({ kind: 'due_batches', rowId: id, projectId }, failure, clock);
      }
    }
  }

  /** Ends of sessions' turns that nobody came to tell. */
  async #tell(clock: Clock): Promise<void> {
    for (const { turn_id: turnId, project_id: projectId } of await findDueNotices(
      this.#runtime.pool,
      clock,
    )) {
      try {
        await tellParent(this.#runtime, turnId);
      } catch (failure) {
        await this.#setAside({ kind: 'notices', rowId: turnId, projectId }, failure, clock);
      }
    }
  }

  /** Forks that live with a turn end with it. */
  async #discardForks(clock: Clock): Promise<void> {
    for (const fork of await findLeftForks(this.#runtime.pool, clock)) {
      try {
        await discardFork(this.#runtime.pool, fork);
      } catch (failure) {
        await this.#setAside(
          { kind: 'left_forks', rowId: fork.id, projectId: fork.project_id },
          failure,
          clock,
        );
      }
    }
  }

  /** Rings by itself. */
  async #wakeProvider(
    provider: string,
    options: Clock & { readonly wakeOnly?: readonly TurnId[] },
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
    this.#runtime.ring(await wakeForLeftovers(pool, clock));
    for (const provider of await findOverdueProviders(pool, clock))
      await this.#orAlone('due_waits', clock, {
        all: () => this.#wakeProvider(provider, clock),
        find: () => findProviderWaiters(pool, provider, clock),
        alone: (wait) => this.#wakeProvider(provider, { ...clock, wakeOnly: [wait.turn_id] }),
      });
  }

  async #ringLost(clock: Clock): Promise<void> {
    const stale = await findStaleRings(this.#runtime.pool, {
      ...clock,
      lostRingMs: this.#options.lostRingMs,
    });
    const lost = await this.#runtime.doorbell.findLost(stale);
    if (lost === undefined) this.deafen();
    if (lost === undefined || lost.length === 0) return;
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
    const doors: Door[] = [];
    for (const of of ['turns', 'batches'] as const) {
      const found = await findWaitingDoors(this.#runtime.pool, {
        ...clock,
        of,
        after: this.#doorsAfter[of],
        limit: DOORS,
      });
      this.#doorsAfter[of] = found.next;
      doors.push(...found.doors);
    }
    if (doors.length === 0) return;
    const gone = new Set(await this.#runtime.doorbell.knock(doors.map((door) => door.job_id)));
    for (const door of doors) {
      if (!gone.has(door.job_id)) continue;
      try {
        await closeDoor(this.#runtime.pool, door);
      } catch (error) {
        // Its turn comes again, with all others.
        this.#runtime.log('warn', 'sweep.door_not_closed', { job_id: door.job_id, error: String(error) });
      }
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
    for (const cycle of findWaitCycles(turns)) {
      const projectId = projects.get(cycle.victim.waitingTurnId);
      if (projectId === undefined) continue;
      try {
        await this.#giveUpWait(cycle, projectId);
      } catch (failure) {
        await this.#setAside(
          { kind: 'wait_cycles', rowId: cycle.victim.toolCallId, projectId },
          failure,
          clock,
        );
      }
    }
  }

  async #giveUpWait({ turns, victim }: WaitCycle, projectId: ProjectId): Promise<void> {
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
    const outcome =
      victim.batchId === null
        ? await this.#recorder.add(settlement)
        : await leaveBatch(this.#runtime, victim.batchId, settlement);
    if (outcome === 'recorded')
      this.#runtime.log('warn', 'sweep.cycle_broken', { tool_call_id: victim.toolCallId, chain });
  }
}
