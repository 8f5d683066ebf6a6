/** Turns that have lent their slots while an identical handoff is carried out. */
import { createModelRouter } from '@boxcar/llm';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { expect, test, vi } from 'vitest';
import { z } from 'zod';
import { HandoffTool } from '../handoff/handoff-tool.js';
import { openRuntime } from '../open.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { testBackend } from '../testing/queue-backend.js';
import { recordingModel } from '../testing/recording-model.js';
import { createWorker } from './worker.js';

const cached = (target_agent: string, rest: object = {}) => ({
  source_agent: 'main',
  target_agent,
  task: 'x',
  cache: { ttl_seconds: 60 },
  wait: false,
  ...rest,
});

test.each(queueBackends())(
  'a worker that closes begins no handoff that has waited for another handoff, on %s',
  async (kind) => {
    await using backend = await testBackend(kind);
    const open = () =>
      openRuntime({ ...backend.urls, model: createModelRouter({}), handoffs: { enabled: true } });
    const own = open();
    const tool = new HandoffTool({ runtime: own.runtime, concurrency: 0 });
    let begun = 0;
    let fail = (): void => undefined;
    tool.registerAgent('slow', async (_input, { signal }) => {
      begun += 1;
      if (begun === 1) {
        await new Promise<void>((settle) => {
          fail = settle;
        });
        throw new Error('the first fails');
      }
      return new Promise((_settle, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    });
    const waiting = vi.spyOn(own.runtime.watcher, 'wait');
    const worker = await createWorker(own.runtime, { concurrency: 4, graceMs: 2_000 });
    await tool.handoff(cached('slow'));
    await waitFor(() => begun === 1, { message: 'the first is carried out' });
    const { handoff_id } = await tool.handoff(cached('slow'));
    await waitFor(() => waiting.mock.calls.length === 1, { message: 'the second waits for the first' });
    const closing = worker.close();
    fail();
    await closing;
    await own.close();
    expect(begun).toBe(1);

    const next = open();
    const nextTool = new HandoffTool({ runtime: next.runtime, concurrency: 0 });
    nextTool.registerAgent('slow', async () => 'done elsewhere');
    const other = await createWorker(next.runtime, { concurrency: 4 });
    expect(await nextTool.waitForHandoff(handoff_id, { timeoutMs: 30_000 })).toMatchObject({
      phase: 'completed',
      result: 'done elsewhere',
    });
    await other.close();
    await next.close();
    await checkInvariants(backend.database.pool);
  },
);

test('a native target that waited for an identical handoff which failed has the prompt that its rows give', async () => {
  const model = recordingModel();
  await using h = await harness({ connections: 8, handoffs: { enabled: true }, model });
  const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  let looks = 0;
  let go = (): void => undefined;
  const gone = new Promise<void>((settle) => {
    go = settle;
  });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    isReadOnly: true,
    run: async () => {
      looks += 1;
      await gone;
      return 'seen';
    },
  });
  await h.profile('clerk', [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'done' }], {
    tools: ['look'],
  });
  await h.worker({ concurrency: 4, viewBytes: 1024 * 1024 });
  const ask = () => tool.handoff(cached('clerk', { platform: 'boxcar', task: 'word '.repeat(20_000) }));
  const first = await ask();
  await waitFor(() => looks === 1, { message: 'the first looks' });
  const rest = [await ask(), await ask(), await ask()];
  await waitFor(
    async () => (await h.rows("select from boxcar.turns where status = 'running'")).length === 4,
    { message: 'the others wait' },
  );
  const { turn_id } = (await tool.getHandoff(first.handoff_id)) ?? {};
  await h.runtime.submit('cancel', { turn_id, reason: 'enough' });
  go();
  for (const { handoff_id } of rest)
    expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 60_000 })).toMatchObject({
      phase: 'completed',
    });
  await checkPrompts(h.database.pool, model.requests);
  await checkInvariants(h.database.pool, { isSettled: false });
});
