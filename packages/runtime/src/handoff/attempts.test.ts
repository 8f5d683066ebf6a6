/** The beginning of an attempt while another worker takes the turn over. */
import type { TurnId, WorkerId } from '@boxcar/kernel';
import { beginAttempt } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

const TAKE_OVER = `
  update boxcar.turns
  set status = 'running', epoch = $2, holder_id = $3
  where id = $1`;

test('a turn is taken over before the beginning of an attempt or after it, even if the beginning waits for a lock', async () => {
  await using h = await harness({ connections: 6, handoffs: { enabled: true } });
  await h.profile('helper', [{ say: 'never' }], { worker_target: 'nowhere' });
  const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  const { handoff_id: handoffId } = await tool.handoff({
    source_agent: 'main',
    target_agent: 'helper',
    task: 'once',
    wait: false,
  });
  const [row] = await h.rows<{ turn_id: TurnId }>('select turn_id from boxcar.handoffs where id = $1', [
    handoffId,
  ]);
  const turnId = row?.turn_id as TurnId;
  const first = '00000000-0000-7000-8000-00000000000a' as WorkerId;
  const second = '00000000-0000-7000-8000-00000000000b' as WorkerId;
  const { pool } = h.runtime;
  await h.rows(TAKE_OVER, [turnId, 1, first]);

  const waiting = (label: string): Promise<unknown> =>
    waitFor(
      async () =>
        (
          await h.rows(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like $1",
            [`%${label}%`],
          )
        ).length > 0,
      { message: `${label} waits for a lock` },
    );
  const holder = await pool.connect();
  try {
    await holder.query('begin');
    await holder.query('select from boxcar.handoffs where id = $1 for update', [handoffId]);
    const began = beginAttempt(pool, { turnId, epoch: 1, holderId: first, attempt: 1 });
    await waiting('handoff-changes.begin_attempt');
    const takenOver = h.rows(TAKE_OVER, [turnId, 2, second]);
    // The takeover waits for the attempt of the first worker, so the second worker sees that this attempt is open.
    await waiting('update boxcar.turns');
    await holder.query('rollback');
    expect(await began).toBeGreaterThan(0);
    await takenOver;
  } finally {
    holder.release();
  }
  expect(
    await h.rows('select attempts, is_attempt_open from boxcar.handoffs where id = $1', [handoffId]),
  ).toEqual([{ attempts: 1, is_attempt_open: true }]);
  expect(await beginAttempt(pool, { turnId, epoch: 1, holderId: first, attempt: 2 })).toBeUndefined();
});
