/** Sessions that clients hand over. The first test is the example of the manual, with exactly its calls. */
import { migrateQueues } from '@boxcar/runtime';
import { nodeArguments } from '@boxcar/testkit';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CLIENTS, openStage, type Stage } from '../testing/stage.js';

const POLICY = `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: mallory } }, permission: NEVER }
  - { condition: { context: { target_agent: carol } }, permission: REQUIRE_APPROVAL }
`;

let stage: Stage;
let n = 0;
const fresh = (): string => `s-${++n}`;

beforeAll(async () => {
  stage = await openStage({ works: false, policy: POLICY });
  await migrateQueues(stage.database.url);
  await stage.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const name of ['ada', 'bob', 'carol', 'mallory']) await stage.agent(name, 'idle');
});
afterAll(() => stage[Symbol.asyncDispose]());

/** A session of `source-agent-id` with the given number of entries. */
async function session(entries: number, session_key = fresh()): Promise<string> {
  await using connection = await stage.connect();
  await connection.call('register_session', { session_key, agent_from: 'source-agent-id' });
  const more = Array.from({ length: entries - 1 }, (_, index) => ({
    context_type: 'message',
    content: `message ${index}`,
  }));
  await connection.call('update_context', { session_key, entries: more });
  return session_key;
}

/** The payload in the form of the manual. */
interface Payload {
  readonly success: boolean;
  readonly handoff: { readonly context_summary: string; readonly handoff_id: string };
}

test('the program of the manual gets the answer of the manual', async () => {
  await session(42, 'session-1722600000000');
  const transport = new StdioClientTransport({
    command: 'node',
    args: nodeArguments(new URL('../server.ts', import.meta.url)),
    env: { ...(process.env as Record<string, string>), DATABASE_URL: stage.database.url },
    stderr: 'ignore',
  });
  const client = new Client({ name: 'docs-example', version: '1.0.0' }, { capabilities: {} });
  await client.connect(transport);

  const session_key = 'session-1722600000000';

  const res = (await client.callTool({
    name: 'request_handoff',
    arguments: {
      session_key,
      target_agent: 'downstream-assistant',
      request_type: 'context_transfer', // context_transfer | full_handoff | collaboration
      request_data: {
        instructions: 'Continue conversation, focus on implementation details',
        priority: 'normal',
      },
    },
  })) as unknown as { readonly content: [{ readonly text: string }] };

  const payload: Payload = JSON.parse(res.content[0].text);
  await client.close();
  const { context_summary, handoff_id } = payload.handoff;
  expect(context_summary).toContain('Total of 42 context entries');
  expect(handoff_id).toMatch(/^[0-9a-f-]{36}$/);
  expect(payload).toEqual({
    success: true,
    message: 'Handoff request processed successfully',
    handoff: {
      session_key: 'session-1722600000000',
      source_agent: 'source-agent-id',
      target_agent: 'downstream-assistant',
      request_type: 'context_transfer',
      context_summary,
      context_entries: 42,
      cache_key: 'handoff:downstream-assistant:session-1722600000000',
      status: 'active',
      handoff_id,
    },
    instructions: {
      message: "The context has been prepared for agent 'downstream-assistant'.",
      next_steps: [
        'The target agent can retrieve the context using session_key: session-1722600000000',
        'Context is cached and immediately available',
        'Full context history includes 42 entries',
        'Session remains active for continued collaboration',
      ],
    },
  });
});

describe.each(CLIENTS)('client %s', (kind) => {
  test('hands a session on, and the target reads it up to the handoff', async () => {
    const session_key = await session(3);
    await using connection = await stage.connect({}, kind);
    await using bob = await stage.connect({ as: 'bob' }, kind);
    expect((await bob.call('get_context', { session_key })).body).toMatchObject({
      error_code: 'SESSION_NOT_FOUND',
    });
    const { body } = await connection.call('request_handoff', { session_key, target_agent: 'bob' });
    expect(body).toMatchObject({ handoff: { status: 'active', context_entries: 3 } });
    await connection.call('update_context', { session_key, context_type: 'message', content: 'later' });
    const { body: page } = await bob.call('get_context', { session_key });
    expect(page).toMatchObject({ entries: { length: 4, 3: { content: 'Handoff requested to agent: bob' } } });
    expect(JSON.stringify(page)).not.toContain('later');
    expect(
      (await bob.call('update_context', { session_key, context_type: 'message', content: 'x' })).body,
    ).toMatchObject({ success: false, error_code: 'BOX_NOT_AUTHORIZED' });
  });

  test('hands all of it on, and the session then accepts no more entries', async () => {
    const session_key = await session(2);
    await using connection = await stage.connect({}, kind);
    const asked = { session_key, target_agent: 'bob', request_type: 'full_handoff' };
    const { body } = await connection.call('request_handoff', asked);
    expect(body).toMatchObject({
      handoff: { status: 'completed' },
      instructions: {
        next_steps: { 3: 'Session has been marked as completed - original agent handoff is complete' },
      },
    });
    const again = await connection.call('request_handoff', asked);
    expect(again.body).toMatchObject({
      success: false,
      error: 'Session is not active',
      error_code: 'SESSION_NOT_ACTIVE',
      current_status: 'completed',
    });
  });

  test('accepts, rejects and completes waiting packages', async () => {
    await using connection = await stage.connect({}, kind);
    const asked = { session_key: await session(2), target_agent: 'far-away' };
    const request = async (): Promise<string> => {
      const { body } = await connection.call('request_handoff', asked);
      return (body as unknown as Payload).handoff.handoff_id;
    };
    const handoff_id = await request();
    expect((await connection.call('complete_handoff', { handoff_id })).body).toMatchObject({
      error: 'It has not been accepted yet.',
      error_code: 'HANDOFF_NOT_POSSIBLE',
      current_status: 'pending',
    });
    expect((await connection.call('accept_handoff', { handoff_id })).body).toMatchObject({
      success: true,
      message: 'Handoff accepted successfully',
      handoff: { handoff_id, status: 'in_progress', target_agent: 'far-away', context_entries: 2 },
    });
    expect(
      (await connection.call('complete_handoff', { handoff_id, result: { done: 1 } })).body,
    ).toMatchObject({
      handoff: { status: 'completed' },
    });
    const rejected = await connection.call('reject_handoff', { handoff_id: await request(), reason: 'busy' });
    expect(rejected.body).toMatchObject({ success: true, handoff: { status: 'rejected' } });
    const unknown = { handoff_id: '00000000-0000-7000-8000-00000000000f' };
    expect((await connection.call('accept_handoff', unknown)).body).toMatchObject({
      error_code: 'HANDOFF_NOT_FOUND',
      ...unknown,
    });
  });
});

const ask = async (args: Record<string, string | string[]>) => {
  await using connection = await stage.connect();
  return await connection.call('request_handoff', args);
};

test('a handoff that needs an approval is answered at once, with its ticket, and changes nothing yet', async () => {
  const session_key = await session(2);
  const { isError, body } = await ask({ session_key, target_agent: 'carol', request_type: 'full_handoff' });
  expect(isError).toBe(false);
  expect(body).toMatchObject({
    success: true,
    handoff: { status: 'pending_approval', ticket_id: expect.stringMatching(/^[0-9a-f-]{36}$/) },
  });
  await using connection = await stage.connect();
  expect((await connection.call('get_summary', { session_key })).body).toMatchObject({ status: 'active' });
});

test('a handoff that the policy forbids is a failure that says so', async () => {
  const session_key = await session(2);
  expect(await ask({ session_key, target_agent: 'mallory' })).toMatchObject({
    isError: true,
    body: { success: false, error_code: 'PERMISSION_DENIED', error: expect.stringContaining('mallory') },
  });
});

test('several targets are answered with the handoff of each', async () => {
  const session_key = await session(2);
  const request = { session_key, target_agent: 'ada', target_agents: ['bob'], request_type: 'collaboration' };
  expect((await ask(request)).body).toMatchObject({
    handoff: {
      target_agent: 'ada',
      targets: [
        { target_agent: 'ada', status: 'active' },
        { target_agent: 'bob', status: 'active' },
      ],
    },
  });
});

test('the same idempotency key is one handoff, also when the arguments are in camelCase', async () => {
  const sessionKey = await session(2);
  const request = { sessionKey, targetAgent: 'bob', idempotencyKey: 'one' };
  const first = await ask(request);
  expect(first.isError).toBe(false);
  expect((await ask(request)).body).toEqual(first.body);
});

test.each([
  ['an unknown session', { session_key: 'nowhere', target_agent: 'bob' }, 'SESSION_NOT_FOUND'],
  ['a missing target', { session_key: 'x' }, 'VALIDATION_ERROR'],
  ['an unknown type', { session_key: 'x', target_agent: 'bob', request_type: 'loan' }, 'VALIDATION_ERROR'],
])('%s is a failure that the client can read', async (_what, args, error_code) => {
  expect(await ask(args as Record<string, string>)).toMatchObject({ isError: true, body: { error_code } });
});
