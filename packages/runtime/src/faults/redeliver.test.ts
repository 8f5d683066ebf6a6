import { queueBackends } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Outcome } from '../testing/faults/outcome.js';
import { Redelivery } from '../testing/faults/redelivery.js';
import type { Scenario } from '../testing/faults/scenario.js';
import { delegations, queueTools, tools } from '../testing/faults/scenarios.js';
import * as ends from '../testing/faults/scenarios-ends.js';
import * as joins from '../testing/faults/scenarios-joins.js';
import { servedTools } from '../testing/faults/scenarios-served.js';
import { handoffs } from '../testing/faults/scenarios-tape.js';
import { isThorough } from '../testing/faults/survival.js';

const SCENARIOS = [
  tools,
  servedTools,
  delegations,
  queueTools,
  handoffs,
  ...Object.values(joins),
  ...Object.values(ends),
];

/**
 * The other scenarios differ only in the kernel, not in the jobs that are queued. So a few scenarios are enough for the second kind of
 * queue.
 */
const FEW = [
  tools,
  delegations,
  queueTools,
  joins.failFast,
  joins.collectLater,
  ends.cancelRacingSpawn,
  ends.cancelRacingCompletion,
  ends.budgetRaised,
  ends.retriesSpent,
];

const calm = new Map<Scenario, Outcome>();

describe.each(queueBackends())(
  'with everything delivered twice, late and out of order, and queues on %s',
  (kind) => {
    let redelivery: Redelivery;
    beforeAll(async () => {
      redelivery = await Redelivery.open(kind, calm);
    });
    afterAll(() => redelivery[Symbol.asyncDispose]());

    test.each(kind === queueBackends()[0] || isThorough() ? SCENARIOS : FEW)('$name', async (scenario) => {
      const report = await redelivery.run(scenario);
      expect(report.failures.join('\n')).toBe('');
      // The cancel may arrive before any job was delivered.
      if (scenario === ends.cancelRacingSpawn) return;
      expect(report.jobs).toBeGreaterThan(0);
      expect(report.redelivered).toBeGreaterThanOrEqual(report.jobs);
    });
  },
);
