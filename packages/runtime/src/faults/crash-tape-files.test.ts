import { beforeAll, describe, expect, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import { tapeFiles } from '../testing/faults/scenarios-tape-files.js';
import { coverageOf, survive } from '../testing/faults/survive.js';

describe('tapes, cut at every kind of statement, are written to and begun anew once', {
  timeout: 600_000,
}, () => {
  let covered: Set<string>;
  beforeAll(async () => {
    covered = await coverageOf([delegations]);
  });

  test.each([tapeFiles])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });
});
