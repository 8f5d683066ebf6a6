import { afterAll, beforeAll, describe, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import {
  batchDeadline,
  collectLater,
  failFast,
  forkJoin,
  minSuccess,
  nestedForkJoin,
  warmCache,
} from '../testing/faults/scenarios-joins.js';
import { Survival } from '../testing/faults/survival.js';

describe('joins, cut at every kind of statement, give the same answer as without faults', {
  timeout: 600_000,
}, () => {
  const SCENARIOS = [forkJoin, failFast, minSuccess, batchDeadline, nestedForkJoin, collectLater, warmCache];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([delegations, ...SCENARIOS]);
    await survival.leaveOut([delegations]);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    await survival.survive(scenario);
  });
});
