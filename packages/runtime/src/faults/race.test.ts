import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Race } from '../testing/faults/race.js';
import { delegations, overflows, tools } from '../testing/faults/scenarios.js';
import * as ends from '../testing/faults/scenarios-ends.js';
import * as joins from '../testing/faults/scenarios-joins.js';
import { servedTools } from '../testing/faults/scenarios-served.js';
import { handoffs } from '../testing/faults/scenarios-tape.js';
import { notifyParent } from '../testing/faults/scenarios-tapes.js';

const SCENARIOS = [
  tools,
  delegations,
  servedTools,
  handoffs,
  overflows,
  notifyParent,
  ...Object.values(joins),
  ...Object.values(ends),
];

describe('two workers race for every claim and every commit', () => {
  let race: Race;
  beforeAll(async () => {
    race = await Race.open(SCENARIOS);
  });
  afterAll(() => race[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    const report = await race.run(scenario);
    expect(report.failures.join('\n')).toBe('');
    // These scenarios may end before two sides meet. In all others, one side of each race must lose.
    if (scenario === ends.cancelRacingSpawn || scenario === ends.tightBudget) return;
    expect(report.races).toBeGreaterThanOrEqual(1);
    expect(report.lost).toBeGreaterThanOrEqual(1);
  });
});
