import { spawnNode, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { harness } from '../testing/harness.js';

test('the watchdog of a process hands back the turns of all its workers before it ends, and charges only the culprit', async () => {
  await using h = await harness();
  const target = { spin: 'spins', rest: 'rests' };
  for (const [tool, worker_target] of Object.entries(target))
    await h.profile(tool, [{ calls: [{ tool, arguments: {} }] }, { say: 'done' }], {
      tools: [tool],
      worker_target,
    });
  const launch = (profile_name: string) =>
    h.runtime.submit('launch_principal', { profile_name, instruction: 'go' });
  await using child = spawnNode(new URL('../testing/two-workers.ts', import.meta.url), [h.database.url]);
  await child.line(/^ready$/, { deadlineMs: 60_000 });
  for (let n = 0; n < 4; n++) await launch('rest');
  await waitFor(async () => (await h.rows('select from boxcar.tool_calls')).length === 4, {
    message: 'the other worker runs its turns',
    deadlineMs: 60_000,
  });
  await launch('spin');
  expect(await child.exited).toEqual({ code: 4, signal: null });
  const turns = await h.rows<{ name: string }>(
    `select p.name, t.status, t.losses, t.holder_id from boxcar.turns t join boxcar.agents a on a.id = t.agent_id
    join boxcar.profiles p on p.id = a.profile_id order by p.name`,
  );
  const free = { status: 'dispatched', holder_id: null };
  expect(turns).toEqual([
    ...Array.from({ length: 4 }, () => ({ name: 'rest', losses: 0, ...free })),
    { name: 'spin', losses: 1, ...free },
  ]);
  expect(await h.rows('select from boxcar.workers')).toEqual([]);
  expect(child.stderr.match(/"worker\.blocked"/g)).toHaveLength(1);
});
