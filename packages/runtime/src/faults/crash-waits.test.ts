import { beforeAll, describe, expect, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import { providerRoom, retries, retriesSpent } from '../testing/faults/scenarios-ends.js';
import { forkJoin } from '../testing/faults/scenarios-joins.js';
import { coverageOf, survive } from '../testing/faults/survive.js';

describe('turns that wait for a provider, cut at every kind of statement, go on', {
  timeout: 600_000,
}, () => {
  let covered: Set<string>;
  beforeAll(async () => {
    covered = await coverageOf([delegations, forkJoin]);
  });

  test.each([retries, retriesSpent, providerRoom])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });
});
