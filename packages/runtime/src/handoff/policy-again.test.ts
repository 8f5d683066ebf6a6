/** An approved handoff is checked against the policy as it is when the handoff begins. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PermissionEvaluator } from '@boxcar/policy';
import { expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { openRuntime } from '../open.js';
import { harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

const ASKS = 'tools:\n  handoff: { permission: REQUIRE_APPROVAL }\n';
const asking = { source_agent: 'main', target_agent: 'desk', task: 'Refund it.', wait: false } as const;

/** An evaluator with a file that changes and a clock that advances. */
function changing(text: string) {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-policy-'));
  const file = join(folder, 'policy.yaml');
  writeFileSync(file, text);
  let aheadMs = 0;
  const clock = { monotonicMs: () => performance.now() + aheadMs, wallMs: () => Date.now() + aheadMs };
  const evaluator = new PermissionEvaluator({ file, environment: 'production', clock });
  return {
    file,
    evaluator,
    change: (changed: string): void => {
      writeFileSync(file, changed);
      aheadMs += 10_000;
    },
    [Symbol.dispose]: () => rmSync(folder, { recursive: true, force: true }),
  };
}

test('a policy that only the tool has is asked again', async () => {
  using policy = changing(ASKS);
  await using h = await harness();
  await using tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy.evaluator });
  tool.registerAgent('desk', () => 'refunded');
  const { handoff_id, ticket_id } = await tool.handoff(asking);
  policy.change('tools:\n  handoff: { permission: NEVER }\n');
  await new ApprovalGate({ runtime: h.runtime }).approve(String(ticket_id));
  expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
    phase: 'rejected',
    attempts: 0,
    error: { message: 'Handoff to desk not allowed by policy' },
  });
});

test('the policy of a tool is asked again after a restart of its process, also when it has changed meanwhile', async () => {
  using policy = changing(ASKS);
  await using h = await harness();
  const { handoff_id, ticket_id } = await (async () => {
    await using tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy.evaluator });
    tool.registerAgent('desk', () => 'refunded');
    return await tool.handoff(asking);
  })();
  policy.change('tools:\n  handoff: { permission: NEVER }\n');
  await using process = openRuntime({ databaseUrl: h.database.url, model: h.runtime.model });
  const { runtime } = process;
  await using tool = new HandoffTool({
    runtime,
    permissionEvaluator: new PermissionEvaluator({ file: policy.file, environment: 'production' }),
  });
  tool.registerAgent('desk', () => 'refunded');
  await new ApprovalGate({ runtime }).approve(String(ticket_id));
  expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
    phase: 'rejected',
    attempts: 0,
    error: { message: 'Handoff to desk not allowed by policy' },
  });
});

test('a rule about the caller’s run is asked again', async () => {
  using policy = changing(ASKS);
  await using h = await harness({ permissionEvaluator: policy.evaluator });
  await using tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAgent('desk', () => 'refunded');
  const { handoff_id, ticket_id } = await tool.handoff({ ...asking, run_id: 'live-7' });
  policy.change(
    `${ASKS}rules:\n  - { condition: { context: { args: { run_id: "live-*" } } }, permission: NEVER }\n`,
  );
  await new ApprovalGate({ runtime: h.runtime }).approve(String(ticket_id));
  expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
    phase: 'rejected',
    error: { message: 'Handoff to desk not allowed by policy' },
  });
});

test('a rule about the passed box is asked again', async () => {
  using policy = changing(ASKS);
  await using h = await harness({ permissionEvaluator: policy.evaluator });
  await using tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAgent('desk', () => 'refunded');
  const box = await h.runtime.packer.createBox({
    projectId: 'default',
    sourceAgentId: 'operator',
    cards: [{ type: 'note', content: { kind: 'text', text: 'For this office alone.' } }],
  });
  const { handoff_id, ticket_id } = await tool.handoff({ ...asking, context_box_id: box });
  policy.change(
    `${ASKS}rules:\n  - { condition: { context: { args: { context_box_id: "${box}" } } }, permission: NEVER }\n`,
  );
  await new ApprovalGate({ runtime: h.runtime }).approve(String(ticket_id));
  expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
    phase: 'rejected',
    error: { message: 'Handoff to desk not allowed by policy' },
  });
});
