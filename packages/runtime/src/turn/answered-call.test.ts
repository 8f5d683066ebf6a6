import type { TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { Sweeper } from '../sweep/sweeper.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

test.each([
  ['that waits for a batch', true],
  ['that only starts turns', false],
])('a primitive %s makes nothing after its call was answered as timed out', async (_name, wait) => {
  await using h = await harness();
  await h.profile('child', [{ say: 'done' }]);
  let open = (): void => undefined;
  let isAtWork = false;
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  h.runtime.registerHandler('slow_fork', {
    description: 'Makes a child in its own time.',
    input: z.strictObject({}),
    handle: async (_input, tools) => {
      isAtWork = true;
      await gate;
      const { contextBoxId } = await tools.packer.packContextWithInstruction({
        projectId: tools.ctx.projectId,
        toolSuffix: 'slow_fork',
        sourceAgentId: tools.ctx.source.agentId,
        profileName: 'child',
        instruction: 'go',
      });
      const target = { kind: 'new' as const, profile: await tools.findProfile('child') };
      const turns = await tools.submitTurns([{ target, contextBoxId }]);
      await tools.joinTurns(
        turns.map((turn) => turn.turnId),
        { wait },
      );
      return {};
    },
  });
  await h.profile('lead', [{ calls: [{ tool: 'slow_fork', arguments: {} }] }, { say: 'went on' }], {
    tools: ['slow_fork'],
  });
  await h.worker({ sweepMs: 3_600_000, leaseMs: 3_600_000 });
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'lead',
    instruction: 'go',
  })) as { turn_id: TurnId };
  await waitFor(() => isAtWork, { message: 'the handler is at work' });
  const sweeper = new Sweeper(h.runtime, {
    lostRingMs: 1e9,
    claimFromRows: async () => undefined,
    wakeProvider: async () => undefined,
  });
  await sweeper.sweep({ now: new Date(Date.now() + 200_000) });
  expect(await h.rows('select status from boxcar.tool_calls')).toEqual([{ status: 'timeout' }]);
  open();
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ result: 'went on' });
  expect(await h.rows('select id from boxcar.turns')).toEqual([{ id: turn_id }]);
  expect(await h.rows('select id from boxcar.batches')).toEqual([]);
  await checkInvariants(h.database.pool);
});
