import { afterAll, beforeAll, describe, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import { providerRoom, retries, retriesSpent } from '../testing/faults/scenarios-ends.js';
import { forkJoin } from '../testing/faults/scenarios-joins.js';
import { Survival } from '../testing/faults/survival.js';

describe('turns that wait for a provider, cut at every kind of statement, continue', {
  timeout: 600_000,
}, () => {
  const ELSEWHERE = [delegations, forkJoin];
  const SCENARIOS = [retries, retriesSpent, providerRoom];
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
