/** The examples of the source document, as programs of this kernel. */
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { checkWire } from '../testing/check-wire.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

const POLICY = `
tools:
  handoff:
    permission: REQUIRE_APPROVAL
rules:
  # Allow handoffs in development
  - condition:
      environment: development
      tool_name: handoff
    permission: ALWAYS
  # Require approval for cross-platform handoffs
  - condition:
      tool_name: handoff
      context:
        platform: ["openai", "anthropic"]
    permission: REQUIRE_APPROVAL
  # Block handoffs to external systems
  - condition:
      tool_name: handoff
      context:
        target_agent: "external-*"
    permission: NEVER
`;

let h: Harness;
let gate: ApprovalGate;

beforeEach(async () => {
  h = await harness({ connections: 8 });
  gate = new ApprovalGate({ runtime: h.runtime, defaultTimeoutMinutes: 30 });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
});

const policy = (environment = 'production') => new PermissionEvaluator({ text: POLICY, environment });

test('specialist delegation: the result is returned, and the request can be read', async () => {
  await h.profile('specialist-analyzer', [{ say: 'mostly glad' }]);
  await h.worker();
  const tool = new HandoffTool({ runtime: h.runtime });
  const result = await tool.handoff({
    source_agent: 'main-orchestrator',
    target_agent: 'specialist-analyzer',
    task: 'Analyze customer sentiment from recent reviews',
    payload: { reviews: ['Great support turnaround', 'Rep resolved billing quickly'] },
    context: { customer_id: '12345', time_range: 'last_7_days' },
    platform: 'agdd',
    run_id: 'run-123',
  });
  expect(result).toEqual({ handoff_id: result.handoff_id, status: 'completed', result: 'mostly glad' });
  const request = await tool.getHandoff(result.handoff_id);
  expect(request).toMatchObject({
    status: 'completed',
    source_agent: 'main-orchestrator',
    target_agent: 'specialist-analyzer',
    task: 'Analyze customer sentiment from recent reviews',
    context: { customer_id: '12345', time_range: 'last_7_days' },
    payload: { reviews: ['Great support turnaround', 'Rep resolved billing quickly'] },
    platform: 'agdd',
    run_id: 'run-123',
    result: 'mostly glad',
    error: null,
  });
  expect(request?.created_at).toBeInstanceOf(Date);
  expect(await tool.getWire(result.handoff_id)).toMatchObject({
    request: { from_run_id: 'run-123', from_agent: 'main-orchestrator', to_agent: 'specialist-analyzer' },
    response: { status: 'completed', to_run_id: request?.target_run_id, result: { output: 'mostly glad' } },
  });
  expect((await tool.listHandoffs({ source_agent: 'main-orchestrator' })).handoffs).toHaveLength(1);
  expect((await tool.listHandoffs({ status: 'completed' })).handoffs).toHaveLength(1);
  expect((await tool.listHandoffs({ status: 'pending' })).handoffs).toEqual([]);
  expect((await tool.listHandoffs({ status: 'failed' })).handoffs).toEqual([]);
  const events = await tool.getEvents(result.handoff_id);
  expect(events.map(({ event_type, seq }) => [seq, event_type])).toEqual([
    [1, 'handoff.requested'],
    [2, 'handoff.completed'],
  ]);
  expect(events[0]).toMatchObject({
    handoff_id: result.handoff_id,
    source_agent: 'main-orchestrator',
    target_agent: 'specialist-analyzer',
    platform: 'agdd',
  });
  expect(events[1]).toMatchObject({ status: 'completed', duration_ms: expect.any(Number) });
  expect(h.log.filter(({ event }) => event.startsWith('handoff.')).map(({ event }) => event)).toEqual([
    'handoff.requested',
    'handoff.completed',
  ]);
});

test('human in the loop: the handoff waits for the approval, and then runs', async () => {
  await h.profile('payment-processor', [{ say: 'refunded' }]);
  await h.worker();
  const tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy(), approvalGate: gate });
  const running = tool.handoff({
    source_agent: 'sales-agent',
    target_agent: 'payment-processor',
    task: 'Process refund of $5000',
    context: { order_id: '12345', amount: 5000 },
    platform: 'agdd',
  });
  const ticket = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
    message: 'a request for approval',
  });
  expect(ticket).toMatchObject({
    agent_slug: 'sales-agent',
    tool_name: 'handoff',
    tool_args: { target_agent: 'payment-processor', task: 'Process refund of $5000', platform: 'agdd' },
    metadata: { handoff: { target_agent: 'payment-processor', platform: 'agdd' } },
  });
  expect(await h.rows('select from boxcar.turns')).toEqual([]);
  expect((await tool.listHandoffs({ status: 'pending' })).handoffs).toMatchObject([
    { phase: 'awaiting_approval', ticket_id: ticket.ticket_id },
  ]);
  await gate.approve(ticket.ticket_id, { reason: 'checked' });
  const { handoff_id, ...rest } = await running;
  expect(rest).toEqual({ status: 'completed', result: 'refunded' });
  expect((await tool.getEvents(handoff_id)).map(({ event_type }) => event_type)).toEqual([
    'handoff.requested',
    'approval.required',
    'approval.updated',
    'handoff.completed',
  ]);
});

test('an approval that is denied, or not given in time, is a PermissionError', async () => {
  await h.profile('external', [{ say: 'never' }]);
  const tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy(), approvalGate: gate });
  const ask = (run_id: string) => ({
    source_agent: 'main',
    target_agent: 'external',
    task: 'Submit payment',
    platform: 'agdd',
    run_id,
  });
  const denied = failureOf(tool.handoff(ask('run-1')));
  const ticketOf = (run_id: string) =>
    waitFor(async () => (await gate.list({ run_id, status: 'pending' })).approvals[0], {
      message: 'a request for approval',
    });
  await gate.deny((await ticketOf('run-1')).ticket_id, { reason: 'too much' });
  expect(await denied).toMatchObject({
    code: 'permission_denied',
    message: 'Handoff to external denied: too much',
    details: { handoff_id: expect.any(String) },
  });
  const late = failureOf(tool.handoff(ask('run-2')));
  const { ticket_id } = await ticketOf('run-2');
  await h.rows("update boxcar.approvals set expires_at = now() - interval '1 second' where id = $1", [
    ticket_id,
  ]);
  expect(await gate.expireDue()).toEqual([ticket_id]);
  expect(await late).toMatchObject({
    code: 'permission_denied',
    message: 'Handoff to external denied: Approval request expired',
  });
  expect((await tool.listHandoffs({ status: 'rejected' })).handoffs).toHaveLength(2);
  expect(await h.rows('select from boxcar.turns')).toEqual([]);
});

test('denied by policy: the handoff is recorded as rejected, and nothing runs', async () => {
  await h.profile('external-system', [{ say: 'never' }]);
  for (const environment of ['production', 'development']) {
    const tool = new HandoffTool({
      runtime: h.runtime,
      permissionEvaluator: policy(environment),
      approvalGate: gate,
    });
    for (const target_agent of ['external-system', 'external-api', 'profile:external-system']) {
      const error = await failureOf(
        tool.handoff({ source_agent: 'restricted-agent', target_agent, task: 'Access data' }),
      );
      expect(error).toMatchObject({
        code: 'permission_denied',
        message: `Handoff to ${target_agent} not allowed by policy`,
      });
      expect(await tool.getHandoff(String(error.details.handoff_id))).toMatchObject({
        status: 'rejected',
        decision: { level: 'never', rule_id: 'rules.2' },
      });
    }
  }
  expect(await h.rows('select from boxcar.turns')).toEqual([]);
});

test('without a gate, a handoff that needs an approval is refused', async () => {
  await h.profile('external', [{ say: 'never' }]);
  const tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy(), approvalGate: null });
  expect(
    await failureOf(tool.handoff({ source_agent: 'main', target_agent: 'external', task: 'Submit payment' })),
  ).toMatchObject({
    code: 'permission_denied',
    message: 'Handoff to external requires approval but approval gate is not configured',
  });
});

test('in development a handoff runs without an approval', async () => {
  await h.profile('helper', [{ say: 'ok' }]);
  await h.worker();
  const tool = new HandoffTool({ runtime: h.runtime, permissionEvaluator: policy('development') });
  expect(await tool.handoff({ source_agent: 'main', target_agent: 'helper', task: 'Help' })).toMatchObject({
    status: 'completed',
    result: 'ok',
  });
});

test('an unknown platform fails with the text of the source, and is recorded', async () => {
  const tool = new HandoffTool({ runtime: h.runtime });
  const error = await failureOf(
    tool.handoff({ source_agent: 'main', target_agent: 'x', task: 'go', platform: 'gemini' }),
  );
  expect(error).toMatchObject({ code: 'bad_request', message: 'Unsupported platform: gemini' });
  expect(await tool.getHandoff(String(error.details.handoff_id))).toMatchObject({
    status: 'failed',
    platform: 'gemini',
  });
});

test('with the switch off the error has the text of the source', async () => {
  const tool = new HandoffTool({ runtime: h.runtime, handoffEnabled: false });
  expect(
    await failureOf(tool.handoff({ source_agent: 'main', target_agent: 'x', task: 'go' })),
  ).toMatchObject({ code: 'feature_disabled', message: 'Handoff feature is disabled' });
  expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
});
