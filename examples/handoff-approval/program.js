// A handoff that waits for a person. Needs no network: the agent is a function of this program, the database is the embedded one or that of
// DATABASE_URL.
import { fileURLToPath } from 'node:url';
import { startBoxcar } from '@boxcar/cli';
import { PermissionEvaluator } from '@boxcar/policy';
import { ApprovalGate, HandoffTool } from '@boxcar/runtime';

const boxcar = await startBoxcar();
const { runtime } = boxcar;
const gate = new ApprovalGate({ runtime, defaultTimeoutMinutes: 5 });
const tool = new HandoffTool({
  runtime,
  permissionEvaluator: new PermissionEvaluator({
    file: fileURLToPath(new URL('policy.yaml', import.meta.url)),
  }),
  approvalGate: gate,
});

// The payload is its input. A refund must not run twice, so it is not registered as `retry: 'safe'`.
tool.registerAgent('refund-desk', ({ order, amount }) => ({ order, refunded: amount }));

try {
  const request = {
    source_agent: 'sales-agent',
    target_agent: 'refund-desk',
    task: 'Refund order 12345 in full and answer with the amount.',
    payload: { order: '12345', amount: 50 },
    timeout: 60,
    idempotency_key: `refund-12345-${process.pid}-${Date.now()}`,
  };

  // It returns at once: nothing runs before the decision. Without `wait: false` the call would resolve with the result.
  const { handoff_id, status, ticket_id } = await tool.handoff({ ...request, wait: false });
  const ticket = await gate.get(ticket_id);
  console.log(`handoff  ${status}: ${ticket.agent_slug} asks for ${JSON.stringify(ticket.tool_args)}`);

  // In another process a person would do this: boxcar approvals approve <ticket>
  const { resolved_by } = await gate.approve(ticket_id, { reason: 'The order was never delivered.' });
  console.log(`ticket   approved by ${resolved_by}`);

  const ended = await tool.waitForHandoff(handoff_id);
  console.log(`result   ${ended.status}: ${JSON.stringify(ended.result)}`);

  // The same key gives the same handoff, and nothing is refunded twice.
  const again = await tool.handoff(request);
  console.log(`again    ${again.handoff_id === handoff_id ? 'the same handoff' : 'another handoff'}`);

  for (const { seq, event_type } of await tool.getEvents(handoff_id))
    console.log(`log      ${seq} ${event_type}`);

  await tool
    .handoff({ ...request, target_agent: 'external-bank', idempotency_key: undefined })
    .catch((error) => console.log(`refused  ${error.code}: ${error.message}`));
} finally {
  await boxcar.close();
}
