import { describe, expect, test } from 'vitest';
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
import { newCoverage, survive } from '../testing/faults/survive.js';

describe('cancels and budgets, cut at every kind of statement, end as they may', { timeout: 600_000 }, () => {
  const covered = newCoverage();

  test.each([
    cancelTree,
    cancelRacingSpawn,
    cancelRacingCompletion,
    budgetThatFits,
    budgetSpent,
    tightBudget,
    budgetRaised,
    raiseRacingPause,
  ])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });
});
