/** A handoff counts against the account of the tree that requested it, and ends with that tree. */
import type { JsonValue, TurnId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checkWire } from '../testing/check-wire.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let tool: HandoffTool;
let asked: number;
let stopped: string[];
let hangs: boolean;

beforeEach(async () => {
  h = await harness({ connections: 8, handoffs: { enabled: true } });
  tool = new HandoffTool({
    runtime: h.runtime,
    targets: undefined,
  });
  asked = 0;
  stopped = [];
  hangs = false;
  tool.registerAdapter({
    platform: 'acme',
    retry: 'never',
    capabilities: {
      streaming: false,
      cancel: true,
      messages: false,
      max_context_tokens: null,
      carries: ['text', 'json'],
    },
    supportsPlatform: (name) => name.toLowerCase() === 'acme',
    executeHandoff: async (request, { onRemoteId, signal }) => {
      asked += 1;
      onRemoteId?.('task-1');
      if (hangs)
        await new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => reject(signal.reason));
        });
      return {
        result: `did ${request.task}`,
        usage: { input_tokens: 11, output_tokens: 7 },
        remote_id: 'task-1',
        loss: { sent_cards: [], lost: [] },
      };
    },
    cancel: async (_request, { remoteId }) => {
      stopped.push(remoteId);
      return true;
    },
  });
  // A worker that also serves the adapter.
  await h.profile(
    'main',
    [
      { calls: [{ tool: 'handoff', arguments: { target_agent: 'robot', task: 'it', platform: 'acme' } }] },
      { say: 'done' },
    ],
    {
      tools: ['handoff'],
      delegation_policy: { target_profiles: null },
    },
  );
  await h.worker({ targets: ['', ...h.runtime.handoffs.workerTargets] });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
});

const launch = async (budget?: object): Promise<{ turn_id: TurnId; run_id: string }> =>
  (await h.runtime.submit('launch_principal', {
    profile_name: 'main',
    instruction: 'go',
    ...(budget === undefined ? {} : { budget }),
  })) as unknown as { turn_id: TurnId; run_id: string };
const only = async () => {
  const [handoff] = (await tool.listHandoffs()).handoffs;
  if (handoff === undefined) throw new Error('there is no handoff');
  return handoff;
};

test('the platform’s usage is charged to the run', async () => {
  const { turn_id, run_id } = await launch({ tokens: 100_000 });
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 30_000 })).toMatchObject({ status: 'success' });
  const [turn] = await h.rows<{ spent: string }>(
    "select spent_tokens as spent from boxcar.turns where primitive = 'handoff'",
  );
  expect(Number(turn?.spent)).toBe(18);
  expect(await only()).toMatchObject({
    status: 'completed',
    result: 'did it',
    calling_run_id: run_id,
    target_run_id: run_id,
  });
});

test('a handoff is refused before anything is sent when its account has no room', async () => {
  h.runtime.handoffs.addTargets({ robot: { platform: 'acme', max_output_tokens: 500_000 } });
  const { turn_id } = await launch({ tokens: 50_000 });
  await h.runtime.waitForTurn(turn_id, { timeoutMs: 30_000 });
  expect(asked).toBe(0);
  expect(await only()).toMatchObject({ status: 'failed', error: { code: 'budget_exceeded' } });
});

test('a cancel of the tree stops the attempt, and the platform is told to stop', async () => {
  hangs = true;
  const { turn_id } = await launch();
  await waitFor(() => asked === 1, { message: 'the platform works' });
  await h.runtime.submit('cancel', { turn_id, reason: 'enough' });
  await waitFor(() => stopped.length === 1, { message: 'the platform was told to stop' });
  expect(await tool.waitForHandoff((await only()).handoff_id, { timeoutMs: 20_000 })).toMatchObject({
    phase: 'canceled',
    error: { code: 'canceled' },
  });
});

test('a function is limited by the delegation policy of the requesting agent', async () => {
  tool.registerAgent('helper', () => 'helped');
  await h.profile(
    'shy',
    [{ calls: [{ tool: 'handoff', arguments: { target_agent: 'helper', task: 'it' } }] }, { say: 'done' }],
    {
      tools: ['handoff'],
    },
  );
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'shy',
    instruction: 'go',
  })) as unknown as { turn_id: TurnId };
  await h.runtime.waitForTurn(turn_id, { timeoutMs: 30_000 });
  const [call] = await h.rows<{ content: JsonValue }>(
    'select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1',
    [turn_id],
  );
  expect(call?.content).toMatchObject({ status: 'failed', error: { code: 'delegation_denied' } });
  expect(await only()).toMatchObject({ status: 'failed', error: { code: 'delegation_denied' } });
});
