import { queueBackends } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, test } from 'vitest';
import { silentLog } from '../lib/log.js';
import { BullMqDoorbell } from '../queue/doorbell-bullmq.js';
import { openQueues } from '../queue/queues.js';
import { deathsAtCommits } from '../testing/faults/crash-points.js';
import { delegations } from '../testing/faults/scenarios.js';
import { approvals } from '../testing/faults/scenarios-approvals.js';
import { cancelTree } from '../testing/faults/scenarios-ends.js';
import { handoffEnds, handoffOnce, handoffs } from '../testing/faults/scenarios-handoffs.js';
import { forkJoin } from '../testing/faults/scenarios-joins.js';
import { Survival } from '../testing/faults/survival.js';
import { type TestBackend, testBackend } from '../testing/queue-backend.js';

/** Up to this number, all deaths are played. */
const FEW = 6;

/** The cuts in the other files do not depend on the doorbell. These deaths leave jobs in the queue that the dead process had taken. */
describe.each(queueBackends())(
  'with rings through queues on %s, and workers killed after their writes',
  (kind) => {
    const SCENARIOS = [delegations, forkJoin, cancelTree, approvals, handoffs, handoffOnce, handoffEnds];
    let backend: TestBackend;
    let survival: Survival;
    beforeAll(async () => {
      backend = await testBackend(kind);
      survival = await Survival.open(SCENARIOS, {
        doorbell: () => new BullMqDoorbell(openQueues(backend.connection), silentLog),
      });
    });
    afterAll(async () => {
      await survival[Symbol.asyncDispose]();
      await backend.close();
    });

    test.each(SCENARIOS)('$name', { timeout: 600_000 }, async (scenario) => {
      await survival.survive(scenario, {
        atLeast: 2,
        choose: (sent) => {
          const deaths = deathsAtCommits(sent);
          // With many deaths, every third is played: other files cut the same places in more ways.
          return deaths.filter((_fault, index) => deaths.length <= FEW || index % 3 === 0);
        },
      });
    });
  },
);
