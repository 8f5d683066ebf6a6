import type { Ring } from '@boxcar/kernel';
import {
  type AdvanceOutcome,
  advanceTurns,
  findLockedSteps,
  finishSteps,
  type LimitedTry,
} from '@boxcar/store';
import type pg from 'pg';
import { LOCKED } from '../lib/index.js';
import type { StepResults } from '../turn/index.js';

/**
 * Completely answered steps take the fast path (`finishSteps`). Steps that it does not finish, and all other steps,
 * take the slow path (`advanceTurns`).
 */
export async function advanceSteps(
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
