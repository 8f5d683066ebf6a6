import { afterAll, beforeAll, describe, test } from 'vitest';
import { delegations, overflows, tapeCommands } from '../testing/faults/scenarios.js';
import { handoffs } from '../testing/faults/scenarios-tape.js';
import { tapeFiles } from '../testing/faults/scenarios-tape-files.js';
import {
  forkAndMerge,
  notifyParent,
  resetAndReplace,
  sessionByName,
} from '../testing/faults/scenarios-tapes.js';
import { Survival } from '../testing/faults/survival.js';

describe('work with tapes, cut at every kind of statement, ends as without faults', {
  timeout: 600_000,
}, () => {
  const SCENARIOS = [
    tapeCommands,
    overflows,
    handoffs,
    tapeFiles,
    forkAndMerge,
    resetAndReplace,
    notifyParent,
    sessionByName,
  ];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([delegations, ...SCENARIOS]);
    await survival.leaveOut([delegations]);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    await survival.survive(scenario);
  });
});
