import { queueBackends } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { openQueues } from '../queue/queues.js';
import { serveOutside } from '../testing/faults/outside.js';
import { delegations, queueTools, tools } from '../testing/faults/scenarios.js';
import { Survival } from '../testing/faults/survival.js';
import { testBackend } from '../testing/queue-backend.js';
import { ToolQueue } from '../tool-queue/tool-queue.js';

const TIMEOUT = { timeout: 600_000 };

describe('turns and their tools, cut at every kind of statement, end as without faults', TIMEOUT, () => {
  const SCENARIOS = [tools, delegations];
  let survival: Survival;
  beforeAll(async () => {
    survival = await Survival.open(SCENARIOS);
  });
  afterAll(() => survival[Symbol.asyncDispose]());

  test.each(SCENARIOS)('$name', async (scenario) => {
    await survival.survive(scenario);
  });

  test.each(queueBackends())(`${queueTools.name} on %s`, async (kind) => {
    await using backend = await testBackend(kind);
    serveOutside(backend, queueTools);
    const queues = openQueues(backend.connection);
    await using outside = await Survival.open([queueTools], {
      toolQueue: new ToolQueue(queues, silentLog),
      covered: survival.covered,
    });
    // Only a few kinds of statements are left after the cuts with the other kind of queue.
    await outside.survive(queueTools);
    await queues.close();
  });
});
