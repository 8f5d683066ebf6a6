/** A policy finds the target of a call, in whatever form the call names it. */
import type { JsonValue, TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { afterEach, expect, test } from 'vitest';
import { z } from 'zod';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';

const POLICY = `
rules:
  - condition: { tool_name: "*" }
    permission: ALWAYS
  - condition: { tool_name: "*", context: { target_agent: "external-*" } }
    permission: NEVER
`;

let h: Harness;
afterEach(async () => {
  await h[Symbol.asyncDispose]();
});

/** Runs one call of a turn, and returns the code with which it ended. */
async function codeOf(tool: string, args: JsonValue): Promise<string> {
  await h.profile('caller', [{ calls: [{ tool, arguments: args }] }, { say: 'done' }], {
    tools: [tool],
    delegation_policy: { target_profiles: null },
  });
  await h.worker();
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'caller',
    instruction: 'go',
  })) as { turn_id: TurnId };
  await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  const [row] = await h.rows<{ code: string | null; status: string }>(
    `select k.status, c.content->'error'->>'code' as code from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1`,
    [turn_id],
  );
  return row?.code ?? row?.status ?? 'none';
}

async function open(text = POLICY): Promise<void> {
  h = await harness({ permissionEvaluator: new PermissionEvaluator({ text, environment: 'production' }) });
  await h.profile('external-a', [{ say: 'hello' }]);
  await h.profile('writer', [{ say: 'hello' }]);
}

const TASK = { target_strategy: 'new', instruction: 'x' };
test.each([
  ['delegate_async', { ...TASK, target_ref: 'external-a' }],
  ['delegate_async', { ...TASK, target_ref: ' external-a ' }],
  ['launch_principal', { profile_name: '\texternal-a', instruction: 'x' }],
  ['ask_expert', { expert_profile: ' external-a', question: 'x' }],
  ['context_handoff', { target_ref: 'profile: external-a', reason: 'x', summary: 'y' }],
  [
    'fork_join',
    {
      tasks: [
        { ...TASK, target_ref: 'writer' },
        { ...TASK, target_ref: 'external-a' },
      ],
    },
  ],
])('%s cannot reach a target that a policy forbids as %j', async (tool, args) => {
  await open();
  expect(await codeOf(tool, args)).toBe('permission_denied');
  expect(await h.rows('select from boxcar.turns')).toHaveLength(1);
});

test('the id of an agent counts as its name', async () => {
  await open();
  const { agent_id } = (await h.runtime.submit('provision_agent', {
    action: 'create',
    agent_id: 'external-b',
    profile_name: 'writer',
    shared: true,
  })) as { agent_id: string };
  const reuse = { target_strategy: 'reuse', instruction: 'x' };
  expect(await codeOf('delegate_async', { ...reuse, target_ref: agent_id })).toBe('permission_denied');
  const shouted = ` ${agent_id.toUpperCase()}`;
  expect(await codeOf('delegate_async', { ...reuse, target_ref: shouted })).toBe('permission_denied');
});

test('targets that a policy allows are reached', async () => {
  await open();
  expect(
    await codeOf('fork_join', {
      tasks: [
        { ...TASK, target_ref: 'writer' },
        { ...TASK, target_ref: ' writer' },
      ],
      wait: true,
    }),
  ).toBe('success');
});

test('the calls of a step look up the name of their agent once', async () => {
  await open();
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.object({ at: z.int() }),
    run: () => ({ seen: true }),
  });
  await h.worker({ sweepMs: 3_600_000 });
  const namesAskedOf = async (profile_name: string, count: number): Promise<number> => {
    const calls = Array.from({ length: count }, (_, at) => ({ tool: 'look', arguments: { at } }));
    await h.profile(profile_name, [{ calls }, { say: 'done' }], { tools: ['look'] });
    const statements = await statementsOf(h.database, async () => {
      const { turn_id } = (await h.runtime.submit('launch_principal', {
        profile_name,
        instruction: 'go',
      })) as { turn_id: TurnId };
      await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    });
    return statements.filter((text) => text.includes('agents.names')).length;
  };
  // The first turn of a runtime reads more.
  await namesAskedOf('first_caller', 1);
  expect(await namesAskedOf('caller_of_twenty', 20)).toBe(await namesAskedOf('caller_of_ten', 10));
});
