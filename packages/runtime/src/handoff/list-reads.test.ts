/** A list of open handoffs reads only open handoffs, however many have ended. */
import type { HandoffId } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { readsOf } from '../testing/count-reads.js';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

const COUNT = 5_000;

test('a list of open handoffs reads no ended handoff', async () => {
  await using h = await harness({ connections: 1 });
  const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  tool.registerAgent('desk', () => 'served');
  const { handoff_id } = await tool.handoff({
    ...{ source_agent: 'main', target_agent: 'desk', task: 'do it', wait: false },
  });
  await h.rows(
    `insert into boxcar.handoffs (id, project_id, created_at, ended_at, phase, source_agent, source_agent_id, target_agent, platform, context_box_id,
       task_card_id, root_handoff_id, timeout_ms, retry, request_hash)
     select gen_random_uuid(), project_id, created_at + n * interval '1 second', created_at, 'rejected', source_agent, source_agent_id, target_agent, platform,
       context_box_id, task_card_id, root_handoff_id, timeout_ms, retry, request_hash
     from boxcar.handoffs, generate_series(1, ${COUNT}) n where id = $1`,
    [handoff_id as HandoffId],
  );
  await h.rows('analyze boxcar.handoffs');
  const list = async (): Promise<void> => {
    const { handoffs } = await tool.listHandoffs({ status: 'pending' });
    expect(handoffs.map((one) => one.handoff_id)).toEqual([handoff_id]);
  };
  // Postgres makes a generic plan after a few executions.
  for (let n = 0; n < 8; n += 1) await list();
  const reads = await readsOf(h.database.pool, list);
  expect([...reads.values()].reduce((sum, n) => sum + n, 0)).toBeLessThan(100);
});
