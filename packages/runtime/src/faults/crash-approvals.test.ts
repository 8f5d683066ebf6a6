import { afterAll, beforeAll, describe, test } from 'vitest';
import { delegations, tools } from '../testing/faults/scenarios.js';
import { approvals } from '../testing/faults/scenarios-approvals.js';
import { Survival } from '../testing/faults/survival.js';

describe('calls that wait for an approval, cut at every kind of statement, run once and only when they may', {
  timeout: 600_000,
}, () => {
  const ELSEWHERE = [delegations, tools];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([...ELSEWHERE, approvals]);
    await survival.leaveOut(ELSEWHERE);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test(approvals.name, async () => {
    await survival.survive(approvals);
  });
});
