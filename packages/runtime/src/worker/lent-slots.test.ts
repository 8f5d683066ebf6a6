import type { Model, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { HandoffTool } from '../handoff/handoff-tool.js';
import { newId } from '../lib/new-id.js';
import { sendAllRings } from '../testing/far-rings.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

const SLOTS = 2;

test.each(['stay in the process', 'go to the queue'])(
  'a handoff that asks leaves all slots to others, also when the turn before it came by the queue: rings %s',
  async (way) => {
    // The models of turns without tools wait until there is one in each slot.
    let quick = 0;
    let fill = (): void => undefined;
    const isFull = new Promise<void>((settle) => {
      fill = settle;
    });
    const router = createModelRouter({});
    const model: Model = {
      ...router,
      generate: async (request, options) => {
        if (request.tools.length === 0) {
          if (++quick === SLOTS) fill();
          await isFull;
        }
        return router.generate(request, options);
      },
    };
    await using h = await harness({ connections: 8, handoffs: { enabled: true }, model });
    const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
    tool.registerAgent('clerk', async (_input, { ask }) => ask('Well?'), { retry: 'safe' });
    const handing = { tool: 'handoff', arguments: { target_agent: 'clerk', task: 'do it' } };
    await h.profile('boss', [{ calls: [handing] }, { say: 'done' }], {
      tools: ['handoff'],
      delegation_policy: { target_profiles: null },
    });
    await h.profile('quick', [{ say: 'quick' }]);
    const launch = async (profile_name: string): Promise<TurnId> =>
      (
        (await h.runtime.submit('launch_principal', { profile_name, instruction: 'go' })) as {
          turn_id: TurnId;
        }
      ).turn_id;
    const end = (turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 30_000 });

    await h.worker({ concurrency: SLOTS, sweepMs: 3_600_000 });
    if (way === 'go to the queue') sendAllRings(h.runtime);
    else
      await waitFor(
        () =>
          [...h.runtime.localWorkers].some(
            (worker) => worker.keep([{ turnId: newId<'turn'>(), epoch: 1, workerTarget: '' }]).length === 0,
          ),
        { message: 'rings stay in the process' },
      );
    // Callers come by their rings: no turn is claimed by the commit that dispatches it, or before its ring arrives.
    for (const worker of h.runtime.localWorkers)
      Object.assign(worker, { reserve: () => undefined, takeHinted: () => undefined });
    const boss = await launch('boss');
    const asked = await waitFor(
      async () => (await tool.listHandoffs({})).handoffs.find(({ phase }) => phase === 'waiting_input'),
      { message: 'the handoff asks' },
    );
    const others = [await launch('quick'), await launch('quick')];
    for (const turnId of others) expect(await end(turnId)).toMatchObject({ result: 'quick' });
    await tool.reply(asked.handoff_id, 'yes');
    expect(await end(boss)).toMatchObject({ result: 'done' });
    await checkInvariants(h.database.pool);
  },
);
