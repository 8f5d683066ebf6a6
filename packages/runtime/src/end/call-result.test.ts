import type { ProjectId, ToolCallId, TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { expect, test } from 'vitest';
import { harness } from '../testing/harness.js';
import { createRecorder } from './call-result.js';
import { buildResult } from './ending.js';

interface Call extends Record<string, unknown> {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
}

test('results of locked turns do not delay results of other turns, and are recorded when the turns are free', async () => {
  await using h = await harness();
  const ask = { target_strategy: 'new', target_ref: 'absent', instruction: 'go', wait: true };
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  await h.profile('asker', [{ calls: [{ tool: 'delegate_async', arguments: ask }] }, { say: 'went on' }], {
    tools: ['delegate_async'],
    delegation_policy: { target_profiles: null },
  });
  await h.worker({ sweepMs: 3_600_000 });
  for (let n = 0; n < 6; n += 1)
    await h.runtime.submit('launch_principal', { profile_name: 'asker', instruction: 'go' });
  const calls = await waitFor(
    async () => {
      const rows = await h.rows<Call>(
        "select k.id, k.turn_id, k.project_id, k.name from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id where t.status = 'suspended' order by k.id",
      );
      return rows.length === 6 ? rows : undefined;
    },
    { message: 'all wait' },
  );
  const locked = calls.slice(0, 4);
  const free = calls.slice(4);
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  await stranger.query('begin');
  await stranger.query('select from boxcar.turns where id = any ($1) for update', [
    locked.map((call) => call.turn_id),
  ]);
  const recorder = createRecorder(h.runtime);
  const record = ({ id: toolCallId, turn_id: turnId, project_id: projectId, name }: Call) =>
    recorder.add(
      buildResult(
        { toolCallId, turnId, projectId, name },
        { status: 'success', result: 'answered' },
        { authorId: 'kernel' },
      ),
    );
  // The first two are in an earlier batch, the other two share a batch with results of free turns.
  const waiting = locked.slice(0, 2).map(record);
  await waitFor(
    async () =>
      (
        await h.rows(
          'select from pg_locks l join pg_stat_activity a on a.pid = l.pid where not l.granted and a.datname = current_database()',
        )
      ).length > 0,
    { message: 'a result waits for its turn', intervalMs: 5 },
  );
  waiting.push(...locked.slice(2).map(record));
  expect(await Promise.all(free.map(record))).toEqual(['recorded', 'recorded']);
  await stranger.query('rollback');
  await stranger.end();
  expect(await Promise.all(waiting)).toEqual(locked.map(() => 'recorded'));
});
