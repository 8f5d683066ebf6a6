/** Erasure of the request of a handoff before any turn has served it. */
import type { CardId, HandoffId, ProjectId } from '@boxcar/kernel';
import { eraseCards } from '@boxcar/store';
import { expect, test } from 'vitest';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

test.each(['task', 'context', 'payload'])(
  'a function is not run on the remaining input after the %s was erased',
  async (part) => {
    await using h = await harness();
    const ran: unknown[] = [];
    const asking = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
    asking.registerAgent('desk', (input) => ran.push(input));
    const { handoff_id } = await asking.handoff({
      ...{ source_agent: 'main', target_agent: 'desk', task: 'Refund it.', wait: false },
      ...{ payload: { order: 7 }, context: { customer: 3 } },
    });
    const [row] = await h.rows<{ card: CardId; project_id: ProjectId }>(
      `select ${part}_card_id as card, project_id from boxcar.handoffs where id = $1`,
      [handoff_id as HandoffId],
    );
    if (row === undefined) throw new Error('no handoff');
    await eraseCards(h.database.pool, [row.card], { projectId: row.project_id, reason: 'asked for' });
    await using serving = new HandoffTool({ runtime: h.runtime });
    expect(await serving.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
      status: 'failed',
      attempts: 0,
      error: { code: 'card_damaged' },
    });
    expect(ran).toEqual([]);
  },
);
