import { beforeAll, describe, expect, test } from 'vitest';
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
import { coverageOf, survive } from '../testing/faults/survive.js';

describe('cancels and budgets, cut at every kind of statement, end as they may', { timeout: 600_000 }, () => {
  let covered: Set<string>;
  beforeAll(async () => {
    covered = await coverageOf([delegations, forkJoin]);
  });

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
