/** Turns of several runs that wait for each other in a circle. */
import { findWaitCycles, KernelError, type ProjectId, type ToolCallId, type WaitCycle } from '@boxcar/kernel';
import { type LockLimit, loadLongWaits, recordResults } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { buildResult, leaveBatch } from '../end/index.js';
import type { Clock, SweepContext } from './sweep-rows.js';

/** Circles of waits are rare, and the search for them reads more than other searches. */
const CYCLES_EVERY_MS = 5_000;
/**
 * Turns from which one search starts. For almost all queued turns one index lookup shows that they are not in a circle.
 */
const CYCLE_STARTS = 5_000;

/** A circle whose youngest wait is given up. */
type KnownCycle = WaitCycle & { readonly id: ToolCallId; readonly project_id: ProjectId };

export class WaitCycles {
  readonly #runtime: RuntimeCore;
  readonly #rows: SweepContext['rows'];
  #cyclesLookedAt = Number.NEGATIVE_INFINITY;
  #cyclesAfter: string | undefined;

  constructor(context: SweepContext) {
    this.#runtime = context.runtime;
    this.#rows = context.rows;
  }

  /** When turns of several runs wait for each other, the youngest wait is answered and its turn continues. */
  async breakCycles(clock: Clock): Promise<void> {
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
    await this.#rows.each('wait_cycles', clock, { rows: cycles, key: 'id', work });
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
