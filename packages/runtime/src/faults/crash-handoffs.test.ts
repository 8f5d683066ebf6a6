import { beforeAll, describe, expect, test } from 'vitest';
import { delegations, overflows, tapeCommands } from '../testing/faults/scenarios.js';
import { handoffs } from '../testing/faults/scenarios-tape.js';
import { coverageOf, survive } from '../testing/faults/survive.js';

describe('what is done with tapes, cut at every kind of statement, ends as without faults', {
  timeout: 600_000,
}, () => {
  let covered: Set<string>;
  beforeAll(async () => {
    covered = await coverageOf([delegations]);
  });

  test.each([overflows, handoffs, tapeCommands])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });
});
