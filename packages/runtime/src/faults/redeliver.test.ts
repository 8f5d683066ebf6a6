import { queueBackends } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { redeliverEverything } from '../testing/faults/redeliver-everything.js';
import { delegations, queueTools, tools } from '../testing/faults/scenarios.js';
import * as ends from '../testing/faults/scenarios-ends.js';
import * as joins from '../testing/faults/scenarios-joins.js';

const SCENARIOS = [tools, delegations, queueTools, ...Object.values(joins), ...Object.values(ends)];

describe.each(queueBackends())('everything delivered twice, late and out of order, queues on %s', (kind) => {
  test.each(SCENARIOS)('$name', async (scenario) => {
    const report = await redeliverEverything(scenario, kind);
    expect(report.failures.join('\n')).toBe('');
    // A cancel may come before anything was delivered.
    if (scenario === ends.cancelRacingSpawn) return;
    expect(report.jobs).toBeGreaterThan(0);
    expect(report.redelivered).toBeGreaterThanOrEqual(report.jobs);
  });
});
