import { afterAll, beforeAll, describe, test } from 'vitest';
import { deathsAtCommits, type Fault, type Sent } from '../testing/faults/crash-points.js';
import { budgetThatFits, cancelTree } from '../testing/faults/scenarios-ends.js';
import { nestedForkJoin } from '../testing/faults/scenarios-joins.js';
import { Survival } from '../testing/faults/survival.js';

/** The death at the middle one of all commits. */
const inTheMiddle = (sent: Sent): Fault => {
  const deaths = deathsAtCommits(sent);
  const middle = deaths[Math.floor(deaths.length / 2)];
  if (middle === undefined) throw new Error('the scenario writes nothing');
  return middle;
};

describe('after a worker has died, the worker that takes over dies as well', { timeout: 600_000 }, () => {
  const SCENARIOS = [nestedForkJoin, cancelTree, budgetThatFits];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open(SCENARIOS);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    await survival.survive(scenario, {
      atLeast: 2,
      afterDeathAt: inTheMiddle,
      choose: (sent) =>
        deathsAtCommits(sent).filter((_fault, index) => index % 2 === 0 || scenario === cancelTree),
    });
  });
});
