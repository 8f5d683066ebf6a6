/** Handoffs that need an approval, with clients that can ask their user. */
import type { JsonObject } from '@boxcar/kernel';
import { Client as NewClient } from '@modelcontextprotocol/client';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { McpClientScope } from '../client-scope.js';
import { CLIENTS, type ClientKind, type McpClient, openStage, type Stage } from '../testing/stage.js';

let stage: Stage;
let n = 0;

beforeAll(async () => {
  stage = await openStage({ works: false, policy: 'tools: { handoff: { permission: REQUIRE_APPROVAL } }' });
  const open = { worker_target: 'nowhere', delegation_policy: { target_profiles: null } };
  await stage.profile('idle', [{ say: 'done' }], open);
  for (const name of ['ada', 'bob']) await stage.agent(name, 'idle', { shared: true });
});
afterAll(() => stage[Symbol.asyncDispose]());

interface Said {
  readonly action: 'accept' | 'decline' | 'cancel';
  readonly content?: Record<string, string>;
}

/** A client whose user always gives the same answer, and the questions that the user received. */
function clientSaying(
  kind: ClientKind,
  said: Said,
): { readonly client: McpClient; readonly asked: string[] } {
  const asked: string[] = [];
  const info = { name: 'asking', version: '1' };
  const capabilities = { elicitation: { form: {} } };
  const answer = ({ params }: { params: { message: string } }) => {
    asked.push(params.message);
    return { ...said };
  };
  if (kind === '1.x') {
    const client = new OldClient(info, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, answer);
    return { client, asked };
  }
  const isNew = kind === '2.x on 2026-07-28';
  const client = new NewClient(info, {
    capabilities,
    ...(isNew ? { versionNegotiation: { mode: { pin: '2026-07-28' } } } : {}),
  });
  client.setRequestHandler('elicitation/create', answer);
  return { client, asked };
}

/** Hands a new session over. */
async function pass(
  client: McpClient,
  { request_type, ...rest }: Partial<McpClientScope> & { request_type?: string } = {},
) {
  const session_key = `s-${++n}`;
  await using connection = await stage.connect(rest, client);
  await connection.call('register_session', { session_key, agent_from: rest.as ?? 'claude' });
  const args: JsonObject = { session_key, target_agent: 'bob', ...(request_type ? { request_type } : {}) };
  const { isError, body } = await connection.call('request_handoff', args);
  return { isError, body, session_key };
}

async function isReadByBob(session_key: string): Promise<boolean> {
  await using bob = await stage.connect({ as: 'bob' });
  return !(await bob.call('get_summary', { session_key })).isError;
}

const handoffsOf = async (session_key: string): Promise<number> => {
  const { rows } = await stage.database.pool.query(
    'select from boxcar.handoffs h join boxcar.handoff_sessions s on s.id = h.session_id where s.session_key = $1',
    [session_key],
  );
  return rows.length;
};

describe.each(CLIENTS)('client %s', (kind) => {
  test('hands the session on when a person approves', async () => {
    const { client, asked } = clientSaying(kind, {
      action: 'accept',
      content: { decision: 'approve', reason: 'order 77' },
    });
    const { body, session_key } = await pass(client, { request_type: 'full_handoff' });
    expect(asked).toEqual([expect.stringContaining(session_key)]);
    expect(body).toMatchObject({ success: true, handoff: { status: 'completed' } });
    expect(await isReadByBob(session_key)).toBe(true);
    expect(await handoffsOf(session_key)).toBe(1);
  });

  test('keeps the session when a person denies', async () => {
    const { client } = clientSaying(kind, { action: 'accept', content: { decision: 'deny' } });
    const { isError, body, session_key } = await pass(client);
    expect(isError).toBe(true);
    expect(body).toMatchObject({ success: false, error_code: 'HANDOFF_FAILED', current_status: 'denied' });
    expect(await isReadByBob(session_key)).toBe(false);
  });

  test('leaves the ticket unchanged when a person does not answer', async () => {
    const { client, asked } = clientSaying(kind, { action: 'decline' });
    const { body, session_key } = await pass(client);
    expect(asked).toHaveLength(1);
    expect(body).toMatchObject({
      success: true,
      handoff: { status: 'pending_approval', ticket_id: expect.any(String) },
    });
    expect(await isReadByBob(session_key)).toBe(false);
    expect(await handoffsOf(session_key)).toBe(1);
  });

  test.each<[string, Partial<McpClientScope>]>([
    ['a principal without approvals:write', { scopes: ['handoffs:read', 'handoffs:write'] }],
    ['an agent', { as: 'ada' }],
  ])('does not ask when the caller is %s', async (_who, rest) => {
    const said = { action: 'accept', content: { decision: 'approve' } } as const;
    const { client, asked } = clientSaying(kind, said);
    const { body, session_key } = await pass(client, rest);
    expect(asked).toEqual([]);
    expect(body).toMatchObject({ handoff: { status: 'pending_approval' } });
    expect(await isReadByBob(session_key)).toBe(false);
  });
});

test('an agent lists its own requests, and nothing of an outside session that only has its name', async () => {
  await using operator = await stage.connect();
  await using ada = await stage.connect({ as: 'ada' });
  const ids = async (tool: string, list: string, id: string) =>
    ((await ada.call(tool)).body[list] as JsonObject[]).map((one) => one[id]);
  const request = async (connection: typeof ada, session_key: string) => {
    await connection.call('register_session', { session_key, agent_from: 'ada' });
    const { body } = await connection.call('request_handoff', { session_key, target_agent: 'bob' });
    return body.handoff as JsonObject;
  };
  const other = await request(operator, `list-${++n}`);
  const own = await request(ada, `list-${++n}`);
  const handoffs = await ids('list_handoffs', 'handoffs', 'handoff_id');
  expect(handoffs).toContain(own.handoff_id);
  expect(handoffs).not.toContain(other.handoff_id);
  const tickets = await ids('list_approvals', 'approvals', 'ticket_id');
  expect(tickets).toContain(own.ticket_id);
  expect(tickets).not.toContain(other.ticket_id);
});
