import { afterAll, beforeAll, describe, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import {
  budgetRaised,
  budgetSpent,
  budgetThatFits,
  cancelRacingCompletion,
  cancelRacingSpawn,
  cancelTree,
  raiseRacingPause,
  tightBudget,
} from '../testing/faults/scenarios-ends.js';
import { forkJoin } from '../testing/faults/scenarios-joins.js';
import { Survival } from '../testing/faults/survival.js';

describe('cancels and budgets, cut at every kind of statement, end correctly', { timeout: 600_000 }, () => {
  const ELSEWHERE = [delegations, forkJoin];
  const SCENARIOS = [
    cancelTree,
    cancelRacingSpawn,
    cancelRacingCompletion,
    budgetThatFits,
    budgetSpent,
    tightBudget,
    budgetRaised,
    raiseRacingPause,
  ];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([...ELSEWHERE, ...SCENARIOS]);
    await survival.leaveOut(ELSEWHERE);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    await survival.survive(scenario);
  });
});
