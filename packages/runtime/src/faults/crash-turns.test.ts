import { queueBackends } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { silentLog } from '../log.js';
import { openQueues } from '../queues.js';
import { serveOutside } from '../testing/faults/outside.js';
import { delegations, queueTools, tools } from '../testing/faults/scenarios.js';
import { survive } from '../testing/faults/survive.js';
import { testBackend } from '../testing/queue-backend.js';
import { ToolQueue } from '../tool-queue.js';

describe('turns and their tools, cut at every kind of statement, end as without faults', {
  timeout: 600_000,
}, () => {
  const covered = new Set<string>();

  test.each([tools, delegations])('$name', async (scenario) => {
    const { struck } = await survive(scenario, { covered });
    expect(struck).toBeGreaterThan(0);
  });

  test.each(queueBackends())(`${queueTools.name} on %s`, async (kind) => {
    await using backend = await testBackend(kind);
    serveOutside(backend, queueTools);
    const queues = openQueues(backend.connection);
    const toolQueue = new ToolQueue(queues, silentLog);
    // Few are left once they have been cut on the other kind.
    const { struck } = await survive(queueTools, { covered, toolQueue, atLeast: 3 });
    await queues.close();
    expect(struck).toBeGreaterThan(0);
  });
});
