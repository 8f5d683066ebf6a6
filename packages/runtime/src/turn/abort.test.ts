import { parseId } from '@boxcar/kernel';
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { tcpProxy, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { Runtime } from '../runtime.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { createWorker } from '../worker/worker.js';

let h: Harness;
/** The turns that began, and the turns that were told to stop. */
const begun = new Set<string>();
const aborted = new Set<string>();
/** Lets the calls that ignore their signal answer. */
const released = new Map<string, () => void>();

const gate = (key: string): Promise<void> => new Promise((resolve) => released.set(key, resolve));

beforeAll(async () => {
  const hang: ScriptedFunction = async ({ turn }, { pause, signal }) => {
    signal.addEventListener('abort', () => aborted.add(turn.turnId));
    begun.add(turn.turnId);
    await pause(3_600_000);
    return { text: 'never' };
  };
  const callHold: ScriptedFunction = ({ turn }, { call }) =>
    turn.step === 1 ? { toolCalls: [call('hold', {}, 'a'), call('deaf', {}, 'b')] } : { text: 'went on' };
  h = await harness({
    model: {
      generate: async (request, options) => {
        if (request.model !== 'scripted:deaf') return scripted.generate(request, options);
        // An adapter that ignores its signal.
        begun.add(request.turn.turnId);
        await gate(request.turn.turnId);
        return {
          text: 'too late',
          toolCalls: [],
          usage: { inputTokens: 17, outputTokens: 4 },
          finishReason: 'stop',
        };
      },
    },
  });
  const scripted = createModelRouter({ scripted: { functions: { hang, callHold } } });
  h.runtime.registerTool({
    name: 'hold',
    description: 'Waits for its signal.',
    input: z.strictObject({}),
    run: async (_input, { turnId, signal }) => {
      begun.add(turnId);
      await new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    },
  });
  h.runtime.registerTool({
    name: 'deaf',
    description: 'Does not listen to its signal.',
    input: z.strictObject({}),
    run: async (_input, { turnId, agentId, signal, tape }) => {
      const own = await tape({ agent: agentId });
      signal.addEventListener('abort', () => aborted.add(turnId));
      await gate(turnId);
      await own.handoff('too late').catch(() => undefined);
      return { paid: 12 };
    },
  });
  await h.profile('sleeper', [], { model: 'scripted:hang' });
  await h.profile('quick', [{ say: 'quick' }]);
  await h.profile('deaf-model', [], { model: 'scripted:deaf' });
  await h.profile('holder', [], { model: 'scripted:callHold', tools: ['hold', 'deaf'] });
});
afterAll(() => h[Symbol.asyncDispose]());

const launch = async (profile: string): Promise<string> =>
  (
    (await h.runtime.submit('launch_principal', {
      profile_name: profile,
      instruction: 'go',
    })) as unknown as TurnResult
  ).turn_id;
const started = (turnId: string) => waitFor(() => begun.has(turnId), { message: `${turnId} has begun` });
const evidence = (turnId: string) =>
  h.rows<Record<string, unknown>>(
    'select kind, step, attempt, epoch, holder_id, tool_call_id, body, usage from boxcar.evidence where turn_id = $1 order by id',
    [turnId],
  );
const cancel = (turnId: string) => h.runtime.submit('cancel', { turn_id: turnId });

test('a running model call is aborted by the notice of its cancel, and its slot is free again', async () => {
  // The heartbeat is too rare to help.
  await using worker = await h.worker({ concurrency: 1, heartbeatMs: 60_000, leaseMs: 600_000 });
  const turnId = await launch('sleeper');
  await started(turnId);
  await cancel(turnId);
  await waitFor(() => aborted.has(turnId), { message: 'the call is aborted' });
  expect(await h.runtime.waitForTurn(await launch('quick'), { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
  });
  await waitFor(() => worker.activeCount === 0, { message: 'the worker runs no turn' });
});

test('when notices are lost, the next heartbeat aborts the call, and does not affect other turns', async () => {
  await using proxy = await tcpProxy(h.database.url);
  const { pool, doorbell, model } = h.runtime;
  const deaf = new Runtime({ pool, doorbell, model, directUrl: proxy.url });
  await using worker = await createWorker(deaf, { concurrency: 2, heartbeatMs: 100, sweepMs: 600_000 });
  const [canceled, kept] = [await launch('sleeper'), await launch('sleeper')];
  await Promise.all([started(canceled), started(kept)]);
  proxy.stall();
  await cancel(canceled);
  await waitFor(() => aborted.has(canceled), { message: 'the call is aborted' });
  await waitFor(() => worker.activeCount === 1, { message: 'the worker runs a turn' });
  expect(aborted.has(kept)).toBe(false);
  await cancel(kept);
  await waitFor(() => worker.activeCount === 0, { message: 'the worker runs no turn' });
  await proxy.restore();
});

test('running tools are aborted by their signals; a result that arrives all the same is only evidence', async () => {
  await using worker = await h.worker({ concurrency: 1 });
  const turnId = await launch('holder');
  await started(turnId);
  await waitFor(() => released.has(turnId), { message: 'both tools run' });
  await cancel(turnId);
  await waitFor(() => worker.activeCount === 0, { message: 'the slot is free while the tool goes on' });
  expect(aborted.has(turnId)).toBe(true);
  expect(await evidence(turnId)).toEqual([]);
  released.get(turnId)?.();
  const [row] = await waitFor(
    async () => {
      const rows = await evidence(turnId);
      return rows.length > 0 && rows;
    },
    { message: 'the late result is kept' },
  );
  const calls = await h.rows<{ id: string; name: string; status: string }>(
    'select id, name, status from boxcar.tool_calls where turn_id = $1 order by ordinal',
    [turnId],
  );
  expect(calls).toMatchObject([
    { name: 'hold', status: 'canceled' },
    { name: 'deaf', status: 'canceled' },
  ]);
  expect(row).toMatchObject({
    kind: 'result',
    step: 1,
    epoch: 1,
    holder_id: worker.id,
    tool_call_id: calls[1]?.id,
    body: { status: 'success', result: { paid: 12 } },
  });
  // The tool already had its tape.
  const written = await h.rows(
    "select from boxcar.tape_entries e join boxcar.turns t on t.output_box_id = e.box_id where t.id = $1 and e.anchor_name = 'too late'",
    [turnId],
  );
  expect(written).toEqual([]);
  await checkInvariants(h.database.pool, { isSettled: false });
});

test('the answer of a model that did not stop is stored with its usage, and never applied', async () => {
  await using worker = await h.worker({ concurrency: 1 });
  const turnId = await launch('deaf-model');
  await started(turnId);
  await cancel(turnId);
  await waitFor(() => worker.activeCount === 0, { message: 'the slot is free while the model goes on' });
  released.get(turnId)?.();
  const [row] = await waitFor(
    async () => {
      const rows = await evidence(turnId);
      return rows.length > 0 && rows;
    },
    { message: 'the late answer is kept' },
  );
  expect(row).toMatchObject({
    kind: 'reply',
    step: 1,
    attempt: 1,
    epoch: 1,
    holder_id: worker.id,
    body: { text: 'too late', finish_reason: 'stop' },
    usage: { input_tokens: 17, output_tokens: 4 },
  });
  expect(await h.runtime.getTurn(turnId)).toMatchObject({ status: 'canceled', result: { last_text: null } });
  const tape = await h.rows(
    "select from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.turn_id = $1 and c.content::text like '%too late%'",
    [turnId],
  );
  expect(tape).toEqual([]);
});

test('a worker that has lost its turn to another worker appends nothing to the tape; its answer is evidence', async () => {
  await using stale = await h.worker({ concurrency: 1, heartbeatMs: 600_000, leaseMs: 6_000_000 });
  const turnId = await launch('deaf-model');
  await started(turnId);
  const lateAnswer = released.get(turnId);
  // Simulates a takeover from a worker that seemed dead.
  await h.rows(
    "update boxcar.turns set status = 'dispatched', epoch = epoch + 1, holder_id = null, dispatched_at = now() where id = $1",
    [turnId],
  );
  begun.delete(turnId);
  await using next = await h.worker({ concurrency: 1 });
  h.runtime.ring([{ turnId: parseId(turnId, 'turn'), epoch: 2, workerTarget: '' }]);
  await started(turnId);
  lateAnswer?.();
  const [row] = await waitFor(
    async () => {
      const rows = await evidence(turnId);
      return rows.length > 0 && rows;
    },
    { message: 'the late answer is kept' },
  );
  expect(row).toMatchObject({
    kind: 'reply',
    step: 1,
    attempt: 1,
    epoch: 1,
    holder_id: stale.id,
    usage: { input_tokens: 17 },
  });
  released.get(turnId)?.();
  expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  const [entries] = await h.rows<{ n: number }>(
    "select count(*)::int as n from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.turn_id = $1 and c.content::text like '%too late%'",
    [turnId],
  );
  expect(entries?.n).toBe(1);
  expect(next.id).not.toBe(stale.id);
  await checkInvariants(h.database.pool, { isSettled: false });
});
