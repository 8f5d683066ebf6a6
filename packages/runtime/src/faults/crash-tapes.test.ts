import { beforeAll, describe, expect, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import { forkAndMerge, notifyParent, resetAndReplace } from '../testing/faults/scenarios-tapes.js';
import { coverageOf, survive } from '../testing/faults/survive.js';

describe('forks and sessions, cut at every kind of statement, end as without faults', {
  timeout: 600_000,
}, () => {
  let covered: Set<string>;
  beforeAll(async () => {
    covered = await coverageOf([delegations]);
  });

  test.each([forkAndMerge, resetAndReplace, notifyParent])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });
});
