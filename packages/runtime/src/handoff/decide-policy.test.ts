import { PermissionEvaluator } from '@boxcar/policy';
import { expect, test } from 'vitest';
import { failureOf } from '../testing/failure-of.js';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

test('a runner that serves any name is not given a name that a policy forbids, in any spelling', async () => {
  await using h = await harness({
    permissionEvaluator: new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: ALWAYS }\nrules:\n  - { condition: { context: { target_agent: [bank, "external-*"] } }, permission: NEVER }\n',
      environment: 'production',
    }),
  });
  const asked: string[] = [];
  await using tool = new HandoffTool({
    runtime: h.runtime,
    agentRunner: { invokeMag: (slug) => asked.push(slug) },
  });
  const hand = (target_agent: string) => tool.handoff({ source_agent: 'main', target_agent, task: 'do it' });
  for (const name of ['bank', 'external-a'])
    for (const target of [name, `agent:${name}`, `profile:${name}`, ` ${name} `, `agent: ${name}`])
      expect([target, await failureOf(hand(target))]).toMatchObject([target, { code: 'permission_denied' }]);
  expect(asked).toEqual([]);
  await hand('agent:clerk');
  expect(asked).toEqual(['agent:clerk']);
});

test('a rule can check each argument of the request', async () => {
  await using h = await harness({
    permissionEvaluator: new PermissionEvaluator({
      text: `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { args: { timeout: { greater_than: 60 } } } }, permission: NEVER }
  - { condition: { context: { args: { retry: { max_attempts: { greater_than: 2 } } } } }, permission: NEVER }
  - { condition: { context: { args: { idempotency_key: "live-*" } } }, permission: NEVER }
  - { condition: { context: { args: { run_id: "live-*" } } }, permission: NEVER }
`,
      environment: 'production',
    }),
  });
  await using tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAgent('clerk', () => 'served');
  const hand = (rest: object) =>
    tool.handoff({ source_agent: 'main', target_agent: 'clerk', task: 'do it', ...rest });
  for (const rest of [
    { timeout: 61 },
    { retry: { max_attempts: 3 } },
    { idempotency_key: 'live-1' },
    { run_id: 'live-1' },
  ])
    expect([rest, await failureOf(hand(rest))]).toMatchObject([rest, { code: 'permission_denied' }]);
  const allowed = { timeout: 60, retry: { max_attempts: 2 }, idempotency_key: 'test-1', run_id: 'test-1' };
  expect(await hand(allowed)).toMatchObject({ result: 'served' });
});

test('a function’s own handoffs are judged by the tool of its process', async () => {
  await using h = await harness();
  await using tool = new HandoffTool({
    runtime: h.runtime,
    permissionEvaluator: new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: ALWAYS }\nrules:\n  - { condition: { context: { target_agent: bank } }, permission: NEVER }\n',
      environment: 'production',
    }),
  });
  tool.registerAgent('clerk', () => 'served');
  tool.registerAgent('bank', () => 'paid');
  tool.registerAgent('boss', async (to, { handoff }) => {
    const { result } = await handoff({ target_agent: String(to), task: 'do it' });
    return `${to} ${result}`;
  });
  const hand = (payload: string) =>
    tool.handoff({ source_agent: 'main', target_agent: 'boss', task: 'do it', payload });
  expect(await hand('clerk')).toMatchObject({ result: 'clerk served' });
  const error = await failureOf(hand('bank'));
  expect(error.message).toContain('Handoff to bank not allowed by policy');
});
