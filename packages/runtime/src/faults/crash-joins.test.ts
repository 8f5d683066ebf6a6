import { beforeAll, describe, expect, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import {
  batchDeadline,
  collectLater,
  failFast,
  forkJoin,
  minSuccess,
  nestedForkJoin,
} from '../testing/faults/scenarios-joins.js';
import { coverageOf, survive } from '../testing/faults/survive.js';

describe('joins, cut at every kind of statement, answer as without faults', { timeout: 600_000 }, () => {
  let covered: Set<string>;
  beforeAll(async () => {
    covered = await coverageOf([delegations]);
  });

  test.each([forkJoin, failFast, minSuccess, batchDeadline, nestedForkJoin, collectLater])(
    '$name',
    async (scenario) => {
      const { struck } = await survive(scenario, { covered });
      expect(struck).toBeGreaterThan(0);
    },
  );
});
