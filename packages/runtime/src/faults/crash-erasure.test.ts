import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { delegations } from '../testing/faults/scenarios.js';
import { erasures } from '../testing/faults/scenarios-erasure.js';
import { Survival } from '../testing/faults/survival.js';

describe('erasures, cut at every kind of statement, leave none of the erased words', {
  timeout: 600_000,
}, () => {
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([delegations, erasures]);
    await survival.leaveOut([delegations]);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test(erasures.name, async () => {
    const { statements } = await survival.survive(erasures);
    expect(statements.some((text) => text.includes('erase_cards'))).toBe(true);
  });
});
