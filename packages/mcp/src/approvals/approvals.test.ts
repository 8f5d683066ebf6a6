/** Tools for tickets and their decisions. */
import { type JsonObject, SCOPES } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { McpClientScope } from '../client-scope.js';
import { openStage, type Stage } from '../testing/stage.js';

const POLICY = `
tools:
  handoff: { permission: REQUIRE_APPROVAL }
`;

let stage: Stage;
let n = 0;

beforeAll(async () => {
  stage = await openStage({ works: false, policy: POLICY });
  const open = { worker_target: 'nowhere', delegation_policy: { target_profiles: null } };
  await stage.profile('idle', [{ say: 'done' }], open);
  for (const name of ['ada', 'bob']) await stage.agent(name, 'idle', { shared: true });
});
afterAll(() => stage[Symbol.asyncDispose]());

async function call(name: string, args: JsonObject, rest: Partial<McpClientScope> = {}) {
  await using connection = await stage.connect(rest);
  return await connection.call(name, args);
}

/** A waiting handoff of the agent ada. */
async function ask(): Promise<{ readonly session_key: string; readonly ticket_id: string }> {
  const session_key = `s-${++n}`;
  await call('register_session', { session_key }, { as: 'ada' });
  const { body } = await call('request_handoff', { session_key, target_agent: 'bob' }, { as: 'ada' });
  expect(body).toMatchObject({ success: true, handoff: { status: 'pending_approval' } });
  return { session_key, ticket_id: String((body.handoff as JsonObject).ticket_id) };
}

test('the operator lists tickets and approves one, and then the target reads the session', async () => {
  const { session_key, ticket_id } = await ask();
  expect((await call('list_approvals', { status: 'pending' })).body).toMatchObject({
    success: true,
    approvals: [{ ticket_id, status: 'pending', tool_name: 'handoff' }],
    next_cursor: null,
  });
  expect((await call('get_summary', { session_key }, { as: 'bob' })).isError).toBe(true);
  const decided = await call('decide_approval', { ticket_id, decision: 'approve', reason: 'order 77' });
  expect(decided.body).toMatchObject({
    success: true,
    approval: { ticket_id, status: 'approved', decision_reason: 'order 77', resolved_by: 'operator' },
  });
  expect((await call('get_summary', { session_key }, { as: 'bob' })).isError).toBe(false);
  expect((await call('decide_approval', { ticket_id, decision: 'deny' })).body).toMatchObject({
    error_code: 'APPROVAL_RESOLVED',
    error: `Approval ticket ${ticket_id} already approved`,
  });
});

test('a denied handoff changes nothing', async () => {
  const { session_key, ticket_id } = await ask();
  const principal = { id: 'desk', kind: 'key', scopes: ['approvals:write'] } as const;
  expect((await call('decide_approval', { ticket_id, decision: 'deny' }, { principal })).body).toMatchObject({
    approval: { status: 'denied', resolved_by: 'desk' },
  });
  expect((await call('get_summary', { session_key }, { as: 'bob' })).isError).toBe(true);
});

test('an agent sees the tickets of its own requests, and decides none of them', async () => {
  const { ticket_id } = await ask();
  const own = await call('list_approvals', { status: 'pending' }, { as: 'ada' });
  expect(own.body).toMatchObject({ approvals: [{ ticket_id }] });
  for (const args of [{}, { agent: 'ada' }])
    expect((await call('list_approvals', args, { as: 'bob' })).body).toMatchObject({ approvals: [] });
  const decided = await call('decide_approval', { ticket_id, decision: 'approve' }, { as: 'ada' });
  expect(decided.body).toMatchObject({ success: false, error_code: 'PERMISSION_DENIED' });
  // Without the scope the tool does not exist.
  const scopes = SCOPES.filter((scope) => scope !== 'approvals:write');
  await expect(call('decide_approval', { ticket_id, decision: 'approve' }, { scopes })).rejects.toMatchObject(
    { code: -32602 },
  );
});

test('another project sees no ticket', async () => {
  const { ticket_id } = await ask();
  await stage.opened.runtime.createProject({ name: 'elsewhere' });
  const rest = { projectId: 'elsewhere' };
  expect((await call('list_approvals', {}, rest)).body).toMatchObject({ approvals: [] });
  expect((await call('decide_approval', { ticket_id, decision: 'deny' }, rest)).body).toMatchObject({
    error_code: 'NOT_FOUND',
  });
});

test('handoffs are listed for the operator, and for the agent that requested them', async () => {
  const { session_key } = await ask();
  await call('register_session', { session_key: `${session_key}-more` }, { as: 'ada' });
  expect((await call('list_handoffs', { limit: 1 })).body).toMatchObject({
    success: true,
    handoffs: [{ source_agent: 'ada', target_agent: 'bob' }],
    next_cursor: expect.any(String),
  });
  expect((await call('list_handoffs', {}, { as: 'ada' })).body).toMatchObject({
    handoffs: expect.arrayContaining([expect.objectContaining({ target_agent: 'bob' })]),
  });
  expect((await call('list_handoffs', {}, { as: 'bob' })).body).toMatchObject({ handoffs: [] });
  expect((await call('list_handoffs', { source_agent: 'ada' }, { as: 'bob' })).body).toMatchObject({
    handoffs: [],
  });
});

test.each([
  ['a missing decision', 'decide_approval', { ticket_id: 'x' }, 'VALIDATION_ERROR'],
  ['another decision', 'decide_approval', { ticket_id: 'x', decision: 'maybe' }, 'VALIDATION_ERROR'],
  ['an unknown status', 'list_approvals', { status: 'x' }, 'VALIDATION_ERROR'],
  ['a wrong cursor', 'list_handoffs', { cursor: 'x' }, 'VALIDATION_ERROR'],
])('%s is a failure of %s', async (_what, tool, args, error_code) => {
  expect(await call(tool, args as JsonObject)).toMatchObject({ isError: true, body: { error_code } });
});
