import { afterAll, beforeAll, describe, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import { approvals } from '../testing/faults/scenarios-approvals.js';
import {
  handoffCache,
  handoffChains,
  handoffEnds,
  handoffOnce,
  handoffQuestions,
  handoffStreams,
  handoffs,
  publicPushes,
  publicTasks,
} from '../testing/faults/scenarios-handoffs.js';
import { Survival } from '../testing/faults/survival.js';

describe('handoffs, cut at every kind of statement, are served once, and never before their approval', {
  timeout: 600_000,
}, () => {
  const ELSEWHERE = [delegations, approvals];
  const SCENARIOS = [
    handoffs,
    handoffOnce,
    handoffChains,
    handoffCache,
    handoffQuestions,
    handoffStreams,
    handoffEnds,
    publicTasks,
    publicPushes,
  ];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([...ELSEWHERE, ...SCENARIOS]);
    await survival.leaveOut(ELSEWHERE);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    await survival.survive(scenario);
  });
});
