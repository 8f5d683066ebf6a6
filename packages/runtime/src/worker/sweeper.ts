import { type ErrorBody, KernelError, type Ring, type TurnId } from '@boxcar/kernel';
import {
  type CommitResult,
  closeDoor,
  commitSteps,
  type EndableTurn,
  elected,
  findExhaustedTurns,
  findOverdueCalls,
  findOverdueTurns,
  findQueuedTargets,
  findStaleRings,
  findWaitingDoors,
  hastenLooks,
  type OverdueCall,
  probe,
  purgeDeadWorkers,
  ringAgain,
  type SweepFindings,
  takeOver,
} from '@boxcar/store';
import type { Runtime } from '../runtime.js';
import { createRecorder, type Recorder } from './call-result.js';
import { buildEnd, buildResult, type Ending, fallbackDeliverable } from './ending.js';
import { MAX_ATTEMPTS } from './run-turn.js';

/** Rows of one kind in one pass; the rest waits for the next. */
const LIMIT = 500;

export interface SweeperOptions {
  readonly lostRingMs: number;
  readonly announceEnds: (
    ends: Pick<CommitResult, 'endedTurnIds' | 'doorTurnIds' | 'backlogTargets'>,
  ) => void;
  readonly claimFromRows: () => Promise<void>;
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
      [found.lost_rings, 'lost_rings', () => this.#ringLost(clock)],
      [found.queued, 'queued', () => this.#promote()],
      [found.waiting_doors, 'waiting_doors', () => this.#knock(clock)],
      [found.dead_workers, 'dead_workers', () => this.#purge(clock)],
      [found.due_looks, 'due_looks', async () => this.#runtime.outside?.sweep(options)],
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

  async #takeOver(clock: { now?: Date; limit: number }): Promise<void> {
    const exhausted = await findExhaustedTurns(this.#runtime.pool, { ...clock, maxAttempts: MAX_ATTEMPTS });
    const lost = new KernelError('attempts_exhausted', {
      message: `The turn lost its worker ${MAX_ATTEMPTS} times at the same step.`,
    }).toJSON();
    await this.#end(exhausted, 'failed', lost);
    const rings = await takeOver(this.#runtime.pool, { ...clock, maxAttempts: MAX_ATTEMPTS });
    if (rings.length > 0)
      this.#runtime.log('info', 'sweep.taken_over', { turn_ids: rings.map((ring) => ring.turnId) });
    this.#runtime.ring(rings);
  }

  async #endOverdue(clock: { now?: Date; limit: number }): Promise<void> {
    const turns = await findOverdueTurns(this.#runtime.pool, clock);
    await this.#end(turns, 'timeout', new KernelError('deadline_exceeded').toJSON());
  }

  async #end(turns: readonly EndableTurn[], status: Ending['status'], error: ErrorBody): Promise<void> {
    const ended: TurnId[] = [];
    for (const turn of turns) {
      const withIds = { ...error, details: { ...error.details, turn_id: turn.turn_id } };
      const target = {
        turnId: turn.turn_id,
        projectId: turn.project_id,
        agentId: turn.agent_id,
        parentTurnId: turn.parent_turn_id,
        parentToolCallId: turn.parent_tool_call_id,
        isAwaited: turn.is_awaited,
        primitive: turn.primitive,
        contextBoxId: turn.context_box_id,
        outputBoxId: turn.output_box_id,
      };
      const built = buildEnd(target, {
        status,
        deliverable: fallbackDeliverable(withIds, turn.step_count, null),
        error: withIds,
      });
      try {
        const result = await commitSteps(this.#runtime.pool, [
          {
            turnId: turn.turn_id,
            projectId: turn.project_id,
            agentId: turn.agent_id,
            epoch: turn.epoch,
            hasParent: turn.parent_turn_id !== null,
            holderId: turn.holder_id,
            step: null,
            cards: built.cards,
            entries: built.entries,
            calls: [],
            emptyReplies: 0,
            results: [],
            end: built.end,
          },
        ]);
        this.#runtime.ring(result.rings);
        this.#options.announceEnds(result);
        ended.push(...result.endedTurnIds);
      } catch (failure) {
        // A poison row must not keep the others from their end.
        this.#runtime.log('error', 'sweep.end_failed', {
          turn_id: turn.turn_id,
          error: failure instanceof Error ? failure.message : String(failure),
        });
      }
    }
    await hastenLooks(this.#runtime.pool, ended);
  }

  async #answerOverdue(clock: { now?: Date; limit: number }): Promise<void> {
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
        await this.#recorder.add(settlement);
      } catch (failure) {
        this.#runtime.log('error', 'sweep.call_failed', {
          tool_call_id: call.id,
          error: failure instanceof Error ? failure.message : String(failure),
        });
      }
    };
    await Promise.all(calls.map(answer));
    // Nobody waits for them any more; a worker that has one in hand finds its answer a duplicate.
    await this.#runtime.outside?.forget(calls);
  }

  async #ringLost(clock: { now?: Date; limit: number }): Promise<void> {
    const stale = await findStaleRings(this.#runtime.pool, {
      ...clock,
      lostRingMs: this.#options.lostRingMs,
    });
    const lost = await this.#runtime.doorbell.findLost(stale);
    if (lost === undefined) this.deafen();
    if (lost === undefined || lost.length === 0) return;
    const again = await ringAgain(this.#runtime.pool, lost);
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

  async #knock(clock: { now?: Date; limit: number }): Promise<void> {
    const doors = await findWaitingDoors(this.#runtime.pool, clock);
    const gone = new Set(await this.#runtime.doorbell.knock(doors.map((door) => door.job_id)));
    for (const door of doors) if (gone.has(door.job_id)) await closeDoor(this.#runtime.pool, door);
  }
}
