/** A lookup of the result of an identical handoff reads one handoff, however many there are. */
import type { HandoffId, ProjectId, TurnId } from '@boxcar/kernel';
import { findCached, findFlight, lead } from '@boxcar/store';
import { expect, test } from 'vitest';
import { readsOf } from '../testing/count-reads.js';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

const COUNT = 5_000;

test('a search for an identical result reads no results that are too old', async () => {
  await using h = await harness({ connections: 1 });
  const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  tool.registerAgent('desk', () => 'served');
  const { handoff_id } = await tool.handoff({
    ...{ source_agent: 'main', target_agent: 'desk', task: 'do it', wait: false, cache: { ttl_seconds: 60 } },
  });
  // Half of the handoffs have failed a moment ago, the others are an hour old.
  await h.rows(
    `insert into boxcar.handoffs (id, project_id, created_at, ended_at, phase, source_agent, source_agent_id, target_agent, platform, context_box_id,
       task_card_id, root_handoff_id, timeout_ms, retry, request_hash, cache_key, cache_seconds)
     select gen_random_uuid(), project_id, now() - o.age, now() - o.age, o.phase, source_agent, source_agent_id, target_agent, platform,
       context_box_id, task_card_id, root_handoff_id, timeout_ms, retry, request_hash, cache_key, cache_seconds
     from boxcar.handoffs h, (
       select 'failed' as phase, n * interval '1 millisecond' as age from generate_series(1, ${COUNT}) n
       union all select 'completed', interval '1 hour' from generate_series(1, ${COUNT}) n) o where h.id = $1`,
    [handoff_id as HandoffId],
  );
  await h.rows('analyze boxcar.handoffs');
  const [row] = await h.rows<{ project_id: ProjectId; cache_key: string; turn_id: TurnId }>(
    'select project_id, cache_key, turn_id from boxcar.handoffs where id = $1',
    [handoff_id],
  );
  if (row === undefined) throw new Error('the handoff has no row');
  const { project_id: projectId, cache_key: cacheKey, turn_id: turnId } = row;
  const { pool } = h.database;
  const looks: Record<string, () => Promise<unknown>> = {
    request: async () => expect(await findCached(pool, { projectId, cacheKey, seconds: 60 })).toBeUndefined(),
    turn: async () => expect(await findFlight(pool, turnId)).toMatchObject({ cached_from: null }),
    lead: async () => {
      await h.rows('update boxcar.handoffs set is_leading = false where id = $1', [handoff_id]);
      expect(await lead(pool, turnId)).toBe(true);
    },
  };
  for (const [name, look] of Object.entries(looks)) {
    // Postgres makes a generic plan after a few executions.
    for (let n = 0; n < 8; n += 1) await look();
    const reads = await readsOf(pool, look);
    expect(
      [...reads.values()].reduce((sum, n) => sum + n, 0),
      name,
    ).toBeLessThan(100);
  }
});
