import { queueBackends } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { BullMqDoorbell } from '../doorbell/bullmq.js';
import { silentLog } from '../log.js';
import { openQueues } from '../queues.js';
import { deathsAtCommits } from '../testing/faults/crash-points.js';
import { delegations } from '../testing/faults/scenarios.js';
import { cancelTree } from '../testing/faults/scenarios-ends.js';
import { forkJoin } from '../testing/faults/scenarios-joins.js';
import { survive } from '../testing/faults/survive.js';
import { testBackend } from '../testing/queue-backend.js';

/** The cuts of the other files do not know who rings; these leave jobs behind that a dead process had in hand. */
describe.each(queueBackends())('rung by queues on %s, killed after what it has written', (kind) => {
  test.each([delegations, forkJoin, cancelTree])('$name', { timeout: 600_000 }, async (scenario) => {
    await using backend = await testBackend(kind);
    const { struck } = await survive(scenario, {
      covered: new Set(),
      atLeast: 2,
      // Every third: the same places are cut in more ways elsewhere.
      choose: (sent) => deathsAtCommits(sent).filter((_fault, index) => index % 3 === 0),
      doorbell: () => new BullMqDoorbell(openQueues(backend.connection), silentLog),
    });
    expect(struck).toBeGreaterThan(0);
  });
});
