/** A thousand handoffs that wait for an approval consist of rows only. */
import type { TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { loadWaitFacts } from '@boxcar/store/report';
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { Sweeper } from '../sweep/sweeper.js';
import { statementsOf } from '../testing/count-statements.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

const COUNT = 1_000;
const AT_ONCE = 50;

const timers = (): number => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length;

test('a thousand waiting handoffs hold no slot, no connection and no timer, and cost a sweep nothing', {
  timeout: 120_000,
}, async () => {
  await using h = await harness({
    connections: 8,
    handoffs: { enabled: true },
    permissionEvaluator: new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: REQUIRE_APPROVAL }\n',
      environment: 'production',
    }),
  });
  await h.profile('guarded', [{ say: 'guarded' }]);
  await h.profile('quick', [{ say: 'quick' }]);
  const handing = { tool: 'handoff', arguments: { target_agent: 'guarded', task: 'do it' } };
  await h.profile('boss', [{ calls: [handing] }, { say: 'done' }], {
    tools: ['handoff'],
    delegation_policy: { target_profiles: null },
  });
  const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  const gate = new ApprovalGate({ runtime: h.runtime });
  const sweeper = new Sweeper(h.runtime, {
    lostRingMs: 600_000_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });
  const park = (n: number) =>
    tool.handoff({ source_agent: 'main', target_agent: 'guarded', task: `do ${n}`, wait: false });
  const sweep = (): Promise<string[]> => statementsOf(h.database, () => sweeper.sweep());

  await park(0);
  await sweep();
  const [before, timersBefore] = [await sweep(), timers()];
  for (let first = 1; first < COUNT; first += AT_ONCE)
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, COUNT - first) }, (_, n) => park(first + n)));
  expect(timers() - timersBefore).toBeLessThan(20);
  expect(h.database.pool.waitingCount).toBe(0);
  expect(await sweep()).toEqual(before);
  expect(await h.rows('select from boxcar.turns')).toEqual([]);

  const worker = await h.worker({ concurrency: 1 });
  const launch = async (profile_name: string): Promise<TurnId> =>
    ((await h.runtime.submit('launch_principal', { profile_name, instruction: 'go' })) as { turn_id: TurnId })
      .turn_id;
  const boss = await launch('boss');
  await waitFor(
    async () => (await h.rows("select from boxcar.turns where status = 'suspended'")).length === 1,
    { message: 'the boss waits' },
  );
  expect(await h.runtime.waitForTurn(await launch('quick'), { timeoutMs: 60_000 })).toMatchObject({
    result: 'quick',
  });
  await waitFor(() => worker.activeCount === 0, { message: 'the place is free' });

  const { handoffs, next_cursor } = await tool.listHandoffs({ status: 'pending', limit: COUNT });
  expect([handoffs.length, next_cursor === null]).toEqual([COUNT, false]);
  const [asked] = handoffs.filter(({ calling_run_id }) => calling_run_id !== null);
  // The reason why the boss waits is reported in spite of all other waits.
  expect(JSON.stringify(await loadWaitFacts(h.database.pool, boss))).toContain(String(asked?.ticket_id));
  await gate.approve(String(asked?.ticket_id));
  expect(await h.runtime.waitForTurn(boss, { timeoutMs: 60_000 })).toMatchObject({ result: 'done' });
  await checkInvariants(h.database.pool, { isSettled: false });
});
