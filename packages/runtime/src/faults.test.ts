import { queueBackends } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { silentLog } from './log.js';
import { openQueues } from './queues.js';
import { type CrashReport, crashEverywhere } from './testing/faults/crash-everywhere.js';
import { serveOutside } from './testing/faults/outside.js';
import { raceEverywhere } from './testing/faults/race-everywhere.js';
import { redeliverEverything } from './testing/faults/redeliver-everything.js';
import { delegations, queueTools, tools } from './testing/faults/scenarios.js';
import { testBackend } from './testing/queue-backend.js';
import { ToolQueue } from './tool-queue.js';

const show = (failures: readonly string[]): string => failures.slice(0, 3).join('\n\n');

function expectStruck({ cases, struck, absent, rescued }: CrashReport): void {
  expect(struck + absent).toBe(cases);
  expect(struck).toBeGreaterThan(3 * 15);
  expect(absent).toBeLessThan(cases / 5);
  expect(rescued).toBeGreaterThan(0);
}

describe('cut at every statement, all ends as without faults', () => {
  test.each([tools, delegations])('$name', { timeout: 120_000 }, async (scenario) => {
    const report = await crashEverywhere(scenario);
    expect(show(report.failures)).toBe('');
    expectStruck(report);
  });

  test(queueTools.name, { timeout: 120_000 }, async () => {
    await using backend = await testBackend(queueBackends()[0] ?? 'postgres');
    serveOutside(backend, queueTools);
    const queues = openQueues(backend.connection);
    const report = await crashEverywhere(queueTools, { toolQueue: new ToolQueue(queues, silentLog) });
    await queues.close();
    expect(show(report.failures)).toBe('');
    expectStruck(report);
  });
});

describe.each(queueBackends())('everything delivered twice, late and out of order, queues on %s', (kind) => {
  test.each([tools, delegations, queueTools])('$name', async (scenario) => {
    const report = await redeliverEverything(scenario, kind);
    expect(show(report.failures)).toBe('');
    expect(report.jobs).toBeGreaterThan(0);
    expect(report.redelivered).toBeGreaterThanOrEqual(report.jobs);
  });
});

describe('two workers race for every claim and every commit', () => {
  test.each([tools, delegations])('$name', async (scenario) => {
    const report = await raceEverywhere(scenario);
    expect(show(report.failures)).toBe('');
    expect(report.races).toBeGreaterThanOrEqual(3);
    // Of each race one side must lose.
    expect(report.lost).toBeGreaterThanOrEqual(3);
  });
});
