import { AsyncLocalStorage } from 'node:async_hooks';
import type { Model, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { HandoffTool } from '../handoff/handoff-tool.js';
import { newId } from '../lib/new-id.js';
import { openRuntime } from '../open.js';
import { sendAllRings } from '../testing/far-rings.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';
import { createWorker } from './worker.js';

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

test.each(queueBackends())(
  'with queues on %s, a handoff that waits for another handoff keeps no memory that the other needs',
  async (kind) => {
    await using backend = await testBackend(kind);
    const opened = openRuntime({
      ...backend.urls,
      model: createModelRouter({}),
      handoffs: { enabled: true },
    });
    const tool = new HandoffTool({ runtime: opened.runtime, concurrency: 0 });
    tool.registerAgent('inner', async () => 'inner');
    tool.registerAgent(
      'outer',
      async (_input, { handoff }) => (await handoff({ target_agent: 'inner', task: 'x' })).result,
    );
    // There is room for one view at a time.
    const worker = await createWorker(opened.runtime, { concurrency: 4, viewBytes: 0 });
    expect(
      await tool.handoff({ source_agent: 'main', target_agent: 'outer', task: 'x', wait: true }),
    ).toMatchObject({ status: 'completed', result: 'inner' });
    await worker.close();
    await checkInvariants(backend.database.pool);
    await opened.close();
  },
);

test.each(queueBackends())(
  'with queues on %s, rings are delivered outside the asynchronous context of the function that has lent its slot',
  async (kind) => {
    await using backend = await testBackend(kind);
    const request = new AsyncLocalStorage<string>();
    const model = createModelRouter({});
    const opened = openRuntime({ ...backend.urls, model, handoffs: { enabled: true } });
    const submitter = openRuntime({ ...backend.urls, model });
    const { doorbell } = opened.runtime;
    const seen: unknown[] = [];
    const listen = doorbell.listen.bind(doorbell);
    doorbell.listen = (of) =>
      listen({
        ...of,
        admit: (ring) => {
          if (of.workerTarget === '') seen.push(request.getStore());
          return of.admit?.(ring) ?? true;
        },
      });
    const tool = new HandoffTool({ runtime: opened.runtime, concurrency: 0 });
    let asks = 0;
    let letAsk = (): void => undefined;
    const mayAsk = new Promise<void>((settle) => {
      letAsk = settle;
    });
    tool.registerAgent(
      'clerk',
      (_input, { ask }) =>
        request.run('of one handoff', async () => {
          asks += 1;
          await mayAsk;
          return ask('Well?');
        }),
      { retry: 'safe' },
    );
    await submitter.runtime.applyProfile({
      name: 'quick',
      instructions: 'Answer.',
      model: 'scripted',
      script: [{ say: 'quick' }],
    });
    const worker = await createWorker(opened.runtime, { concurrency: 1, takesOwnRings: false });
    await tool.handoff({ source_agent: 'main', target_agent: 'clerk', task: 'x', wait: false });
    await waitFor(() => asks === 1, { message: 'the function runs' });
    const launch = async (): Promise<TurnId> => {
      const { answer } = await submitter.runtime.accept('launch_principal', {
        profile_name: 'quick',
        instruction: 'go',
      });
      return (answer as { turn_id: TurnId }).turn_id;
    };
    const end = (turnId: TurnId) => submitter.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    const first = await launch();
    await waitFor(() => seen.length > 0, { message: 'the ring is refused, and the queue is paused' });
    letAsk();
    await end(first);
    await end(await launch());
    expect(seen.length).toBeGreaterThan(2);
    expect(new Set(seen)).toEqual(new Set([undefined]));
    await worker.close({ graceMs: 0 });
    await opened.close();
    await submitter.close();
  },
);
