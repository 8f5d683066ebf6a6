import { describe, expect, test } from 'vitest';
import { providerRoom, retries, retriesSpent } from '../testing/faults/scenarios-ends.js';
import { newCoverage, survive } from '../testing/faults/survive.js';

describe('turns that wait for a provider, cut at every kind of statement, go on', {
  timeout: 600_000,
}, () => {
  const covered = newCoverage();

  test.each([retries, retriesSpent, providerRoom])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });
});
