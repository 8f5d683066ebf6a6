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

/** So many are cut all. */
const FEW = 6;

/** The cuts of the other files do not know who rings; these leave jobs behind that a dead process had in hand. */
describe.each(queueBackends())('rung by queues on %s, killed after what it has written', (kind) => {
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
        // Every third where there are many: the same places are cut in more ways elsewhere.
        return deaths.filter((_fault, index) => deaths.length <= FEW || index % 3 === 0);
      },
    });
  });
});
