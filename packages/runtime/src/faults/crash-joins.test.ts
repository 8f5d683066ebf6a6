import { describe, expect, test } from 'vitest';
import {
  batchDeadline,
  collectLater,
  failFast,
  forkJoin,
  minSuccess,
  nestedForkJoin,
} from '../testing/faults/scenarios-joins.js';
import { newCoverage, survive } from '../testing/faults/survive.js';

describe('joins, cut at every kind of statement, answer as without faults', { timeout: 600_000 }, () => {
  const covered = newCoverage();

  test.each([forkJoin, failFast, minSuccess, batchDeadline, nestedForkJoin, collectLater])(
    '$name',
    async (scenario) => {
      const { struck } = await survive(scenario, { covered });
      expect(struck).toBeGreaterThan(0);
    },
  );
});
