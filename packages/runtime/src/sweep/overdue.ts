/** Turns, calls, batches, notices and forks whose time has passed, or whose worker is lost. */
import { KernelError } from '@boxcar/kernel';
import {
  discardFork,
  findDeadTurns,
  findDueBatches,
  findDueHandoffNotices,
  findDueNotices,
  findExhaustedTurns,
  findFailedTurns,
  findLeftForks,
  findOverdueCalls,
  findOverdueTurns,
  findRunFailures,
  isServerTrouble,
  type LockLimit,
  type OverdueCall,
  type OverdueTurn,
  recordResults,
  takeOver,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import {
  buildResult,
  type EndSubtrees,
  finishBatch,
  fromCause,
  tellParent,
  tellSource,
} from '../end/index.js';
import { MAX_ATTEMPTS } from '../turn/index.js';
import type { Clock, SweepContext } from './sweep-rows.js';

/** A turn that was given up ends as `failed`, unless the noted cause is an end from outside. */
const STATUS_OF: Readonly<Record<string, 'canceled' | 'timeout' | 'partial'>> = {
  canceled: 'canceled',
  batch_closed: 'canceled',
  deadline_exceeded: 'timeout',
  budget_exceeded: 'partial',
};
const statusOf = (code: string): EndSubtrees['status'] => STATUS_OF[code] ?? 'failed';

export class Overdue {
  readonly #runtime: RuntimeCore;
  readonly #rows: SweepContext['rows'];
  readonly #queue: SweepContext['queue'];

  constructor(context: SweepContext) {
    this.#runtime = context.runtime;
    this.#rows = context.rows;
    this.#queue = context.queue;
  }

  async takeOver(clock: Clock): Promise<void> {
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
      await this.#rows.end('dead_leases', [turn], { status: 'failed', error, ...clock });
    }
    const rings = await this.#rows.orAlone('dead_leases', clock, {
      all: () => takeOver(pool, options),
      find: () => findDeadTurns(pool, options),
      alone: (turn) => takeOver(pool, { ...options, turnIds: [turn.turn_id] }),
    });
    if (rings.length > 0)
      this.#runtime.log('info', 'sweep.taken_over', { turn_ids: rings.map((ring) => ring.turnId) });
    this.#runtime.ring(rings);
  }

  async endOverdue(clock: Clock): Promise<void> {
    const turns = await findOverdueTurns(this.#runtime.pool, clock);
    const isOver = (turn: OverdueTurn): boolean => turn.over_budget_id !== null;
    const late = turns.filter((turn) => !isOver(turn));
    const error = new KernelError('deadline_exceeded').toJSON();
    await this.#rows.end('overdue_turns', late, { status: 'timeout', error, ...clock });
    // The deadline was the deadline of an account. The error is the same as when a worker meets that deadline before a
    // step.
    const spent = new KernelError('budget_exceeded', {
      message: 'The time of its budget is over.',
      details: { limit: 'seconds' },
    }).toJSON();
    await this.#rows.end('overdue_turns', turns.filter(isOver), {
      status: 'partial',
      error: spent,
      ...clock,
    });
  }

  /** Ends each turn that was given up, with the noted cause. */
  async endFailed(clock: Clock): Promise<void> {
    for (const turn of await findFailedTurns(this.#runtime.pool, clock)) {
      const error = fromCause(turn.last_error, { attempts: turn.attempts });
      await this.#rows.end('turn_ends', [turn], { status: statusOf(error.code), error, ...clock });
    }
  }

  async answerOverdue(clock: Clock): Promise<void> {
    const calls = await findOverdueCalls(this.#runtime.pool, clock);
    const answered: OverdueCall[] = [];
    const answer = async (of: readonly OverdueCall[], limit: LockLimit): Promise<void> => {
      await this.#answer(of, limit);
      answered.push(...of);
    };
    try {
      await answer(calls, { lockMs: this.#rows.lockMs });
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      const work = (call: OverdueCall, limit: LockLimit) => answer([call], limit);
      await this.#rows.each('overdue_calls', clock, { rows: calls, key: 'id', work });
    }
    // These calls need no answer any more. A worker that still runs such a call will find that its result is a
    // duplicate.
    if (!this.#queue.isDoorbellUnavailable && (await this.#runtime.outside?.forget(answered)) === false)
      this.#queue.markDoorbellUnavailable();
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

  /** Batches that are due and were not ended, or whose deadline has passed. */
  async finishBatches(clock: Clock): Promise<void> {
    await this.#rows.each('due_batches', clock, {
      rows: await findDueBatches(this.#runtime.pool, clock),
      key: 'id',
      work: ({ id }, limit) => finishBatch(this.#runtime, id, { ...clock, ...limit }),
    });
  }

  /** Ends of sessions' turns that were not reported yet. */
  async tell(clock: Clock): Promise<void> {
    await this.#rows.each('notices', clock, {
      rows: await findDueNotices(this.#runtime.pool, clock),
      key: 'turn_id',
      work: ({ turn_id: turnId }, limit) => tellParent(this.#runtime, turnId, limit),
    });
  }

  /** Ends of handoffs that were not reported yet to the agents that asked. */
  async tellSources(clock: Clock): Promise<void> {
    await this.#rows.each('handoff_notices', clock, {
      rows: await findDueHandoffNotices(this.#runtime.pool, clock),
      key: 'id',
      work: ({ id }, limit) => tellSource(this.#runtime, id, limit),
    });
  }

  /** A fork that belongs to a turn ends with that turn. */
  async discardForks(clock: Clock): Promise<void> {
    await this.#rows.each('left_forks', clock, {
      rows: await findLeftForks(this.#runtime.pool, clock),
      key: 'id',
      work: async (fork, limit) => void (await discardFork(this.#runtime.pool, fork, limit)),
    });
  }
}
