import { afterAll, beforeAll, describe, test } from 'vitest';
import { servedTools } from '../testing/faults/scenarios-served.js';
import { Survival } from '../testing/faults/survival.js';

describe('calls to tools of MCP servers, cut at every kind of statement, reach a server once, unless they may run again', {
  timeout: 600_000,
}, () => {
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open([servedTools]);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test(servedTools.name, async () => {
    await survival.survive(servedTools);
  });
});
