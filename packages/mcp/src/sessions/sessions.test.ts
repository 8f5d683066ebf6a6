/** Tools of sessions, as real clients of both generations call them. */
import type { JsonObject } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CLIENTS, type Connection, openStage, type Stage } from '../testing/stage.js';

let stage: Stage;
let n = 0;
const fresh = (): string => `s-${++n}`;

beforeAll(async () => {
  stage = await openStage({ works: false });
  await stage.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const name of ['ada', 'bob']) await stage.agent(name, 'idle');
});
afterAll(() => stage[Symbol.asyncDispose]());

const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT/);
const id = expect.stringMatching(/^[0-9a-f-]{36}/);

describe.each(CLIENTS)('client %s', (kind) => {
  let connection: Connection;
  beforeAll(async () => {
    connection = await stage.connect({}, kind);
  });

  test('registers, adds, reads and closes', async () => {
    const session_key = fresh();
    const metadata = { topic: 'cranes' };
    const registered = await connection.call('register_session', {
      session_key,
      agent_from: 'claude',
      metadata,
    });
    expect(registered.body).toEqual({
      success: true,
      message: 'Session registered successfully',
      session: {
        id,
        session_key,
        status: 'active',
        agent_from: 'claude',
        created_at: time,
        metadata,
        retention_policy: 'standard',
        expires_at: time,
      },
    });
    const one = await connection.call('update_context', {
      session_key,
      context_type: 'message',
      content: 'Hello 😀',
    });
    expect(one.body).toEqual({
      success: true,
      message: 'Context updated successfully',
      context_entry: {
        id: expect.any(String),
        sequence_number: 2,
        context_type: 'message',
        content_length: 8,
        created_at: time,
      },
      session: { id, session_key, status: 'active' },
    });
    const entries = [
      { context_type: 'file', content: 'a.ts', metadata: { lines: 3 } },
      { context_type: 'tool_call', content: 'grep' },
    ];
    const batch = await connection.call('update_context', { session_key, entries });
    expect(batch.body).toMatchObject({
      context_entry: { sequence_number: 4 },
      context_entries: [{ sequence_number: 3 }, { sequence_number: 4 }],
    });
    const page = await connection.call('get_context', { session_key, limit: 3 });
    expect(page.body).toMatchObject({ success: true, session_key, has_more: true, next_cursor: 3 });
    const rest = await connection.call('get_context', { session_key, cursor: 3 });
    expect(rest.body).toEqual({
      success: true,
      session_key,
      entries: [
        {
          sequence_number: 4,
          context_type: 'tool_call',
          content: 'grep',
          metadata: {},
          created_at: time,
        },
      ],
      has_more: false,
      next_cursor: null,
    });
    const { body: summary } = await connection.call('get_summary', { session_key });
    expect(summary).toMatchObject({
      success: true,
      session_key,
      summary: expect.stringContaining('Total of 4 context entries'),
      context_entries: 4,
      generated_at: time,
    });
    const closed = await connection.call('close_session', { session_key });
    expect(closed.body).toEqual({
      success: true,
      message: 'Session closed successfully',
      session: { id, session_key, status: 'completed' },
    });
  });

  test('gets equal text and structured content in an answer, and an own id for each call', async () => {
    const session_key = fresh();
    const answers = [
      await connection.call('register_session', { session_key, agent_from: 'x' }),
      await connection.call('get_summary', { session_key }),
    ];
    for (const { isError, body, structured } of answers) {
      expect(isError).toBe(false);
      expect(structured).toEqual(body);
    }
    const ids = answers.map(({ meta }) => String(meta.request_id));
    expect(new Set(ids).size).toBe(2);
    for (const request_id of ids)
      expect(stage.log.filter(({ fields }) => fields.request_id === request_id)).toMatchObject([
        { level: 'info', event: 'mcp.call', fields: { outcome: 'success' } },
      ]);
  });

  test('a cursor that no page has returned is a failure that the client can read', async () => {
    const failed = await connection.call('get_context', { session_key: fresh(), cursor: 2 ** 31 });
    expect(failed).toMatchObject({ isError: true, body: { error_code: 'VALIDATION_ERROR' } });
  });

  test.each(['update_context', 'get_context', 'get_summary', 'close_session'])(
    'an unknown session is a failure of %s that the client can read',
    async (tool) => {
      const args: JsonObject = { session_key: 'nowhere' };
      if (tool === 'update_context') Object.assign(args, { context_type: 'message', content: 'x' });
      const { isError, body, structured, meta } = await connection.call(tool, args);
      expect(isError).toBe(true);
      expect(structured).toBeUndefined();
      expect(body).toEqual({
        success: false,
        error: 'Session not found',
        error_code: 'SESSION_NOT_FOUND',
        session_key: 'nowhere',
        timestamp: time,
        request_id: meta.request_id,
      });
    },
  );

  test('an unknown tool is an error of the protocol', async () => {
    await expect(connection.call('no_such_tool', {})).rejects.toMatchObject({ code: -32602 });
  });
});

const call = async (name: string, args: JsonObject, rest: object = {}) => {
  await using connection = await stage.connect(rest);
  return await connection.call(name, args);
};

const registered = async (rest: object = {}): Promise<string> => {
  const session_key = fresh();
  const { body } = await call('register_session', { session_key, agent_from: 'x', ...rest });
  expect(body.success).toBe(true);
  return session_key;
};

describe('bad input to a session tool:', () => {
  test.each<[string, string, JsonObject, string]>([
    ['a missing key', 'register_session', { agent_from: 'x' }, 'VALIDATION_ERROR'],
    ['an empty key', 'register_session', { session_key: '', agent_from: 'x' }, 'VALIDATION_ERROR'],
    ['a wrong type', 'register_session', { session_key: 7, agent_from: 'x' }, 'VALIDATION_ERROR'],
    [
      'an unknown member',
      'register_session',
      { session_key: 'a', agent_from: 'x', b: 1 },
      'VALIDATION_ERROR',
    ],
    ['an unknown agent', 'register_session', { session_key: 'a' }, 'VALIDATION_ERROR'],
    [
      'an unknown policy',
      'register_session',
      { session_key: 'a', agent_from: 'x', retention_policy: 'y' },
      'VALIDATION_ERROR',
    ],
    ['missing content', 'update_context', { session_key: 'a', context_type: 'message' }, 'VALIDATION_ERROR'],
    [
      'an empty content',
      'update_context',
      { session_key: 'a', context_type: 'message', content: '' },
      'VALIDATION_ERROR',
    ],
    [
      'an unknown type',
      'update_context',
      { session_key: 'a', context_type: 'x', content: 'y' },
      'VALIDATION_ERROR',
    ],
    ['both forms of content', 'get_summary', { session_key: 'a', sessionKey: 'b' }, 'VALIDATION_ERROR'],
    [
      'a NUL',
      'update_context',
      { session_key: 'a', context_type: 'message', content: '\0' },
      'VALIDATION_ERROR',
    ],
  ])('%s is a failure of %s', async (_what, tool, args, error_code) => {
    const { isError, body } = await call(tool, args);
    expect(isError).toBe(true);
    expect(body).toMatchObject({ success: false, error: expect.any(String), error_code });
    expect(body.details).toMatchObject({ code: expect.stringMatching(/^(bad_request|payload_too_large)$/) });
  });

  test('content of 1 MiB is accepted, and a byte more is refused', async () => {
    const session_key = await registered();
    const most = 'ä'.repeat(524_288);
    const entry = { session_key, context_type: 'message' };
    expect(await call('update_context', { ...entry, content: most })).toMatchObject({ isError: false });
    expect(await call('update_context', { ...entry, content: `${most}a` })).toMatchObject({
      isError: true,
      body: { error_code: 'VALIDATION_ERROR', details: { code: 'payload_too_large' } },
    });
  });

  test('a used session key returns the session that has it', async () => {
    const session_key = await registered();
    const { isError, body } = await call('register_session', { session_key, agent_from: 'other' });
    expect(isError).toBe(true);
    expect(body).toMatchObject({
      success: false,
      error: 'Session already exists',
      error_code: 'SESSION_EXISTS',
      session_key,
      existing_session: { id, status: 'active', agent_from: 'x', created_at: time },
    });
  });

  test('a session that has ended or expired accepts no more entries', async () => {
    const closed = await registered();
    await call('close_session', { session_key: closed, status: 'cancelled' });
    const expired = await registered();
    const archived = await registered();
    for (const [key, hours] of [
      [expired, 25],
      [archived, 24 * 31],
    ] as const)
      await stage.database.pool.query(
        `update boxcar.handoff_sessions set last_write_at = last_write_at - $2 * interval '1 hour' where session_key = $1`,
        [key, hours],
      );
    const said = { context_type: 'message', content: 'x' };
    const answers = [closed, expired, archived].map((session_key) =>
      call('update_context', { session_key, ...said }),
    );
    expect((await Promise.all(answers)).map(({ body }) => body)).toMatchObject([
      { error: 'Session is not active', error_code: 'SESSION_NOT_ACTIVE', current_status: 'cancelled' },
      { error: 'Session is not active', error_code: 'SESSION_EXPIRED', current_status: 'expired' },
      {
        error: 'Cannot add context to archived session',
        error_code: 'SESSION_EXPIRED',
        current_status: 'expired',
      },
    ]);
  });
});

test('arguments in camelCase are the same arguments', async () => {
  const sessionKey = fresh();
  expect(await call('register_session', { sessionKey, agentFrom: 'x' })).toMatchObject({ isError: false });
  const entries = [{ contextType: 'file', content: 'a.ts' }];
  expect((await call('update_context', { sessionKey, entries })).body).toMatchObject({
    context_entry: { context_type: 'file', sequence_number: 2 },
  });
});

test('the same idempotency key is the same write', async () => {
  const session_key = await registered();
  const entry = { session_key, context_type: 'message', content: 'x', idempotency_key: 'k' };
  const first = await call('update_context', entry);
  expect((await call('update_context', entry)).body).toEqual(first.body);
  expect((await call('update_context', { ...entry, content: 'y' })).body).toMatchObject({
    error_code: 'IDEMPOTENCY_CONFLICT',
  });
  expect((await call('get_summary', { session_key })).body).toMatchObject({ context_entries: 2 });
});

describe('access to sessions:', () => {
  test('an agent registers in its own name, and sees nothing of another agent’s sessions', async () => {
    const session_key = fresh();
    const { body } = await call('register_session', { session_key }, { as: 'ada' });
    expect(body).toMatchObject({ session: { agent_from: 'ada' } });
    for (const tool of ['get_context', 'get_summary', 'close_session'])
      expect((await call(tool, { session_key }, { as: 'bob' })).body).toMatchObject({
        error_code: 'SESSION_NOT_FOUND',
      });
    const taken = await call('register_session', { session_key }, { as: 'bob' });
    expect(taken.body).toMatchObject({ error_code: 'SESSION_EXISTS' });
    expect(taken.body).not.toHaveProperty('existing_session');
  });

  test('another project sees nothing', async () => {
    const session_key = await registered();
    await stage.opened.runtime.createProject({ name: 'elsewhere' });
    expect((await call('get_summary', { session_key }, { projectId: 'elsewhere' })).body).toMatchObject({
      error_code: 'SESSION_NOT_FOUND',
    });
  });

  test('tools without the required scope are neither listed nor callable', async () => {
    await using connection = await stage.connect({
      scopes: ['handoffs:read'],
      groups: new Set(['sessions']),
    });
    const { tools } = await connection.client.listTools();
    expect(tools.map(({ name }) => name).sort()).toEqual(['get_context', 'get_summary', 'list_handoffs']);
    await expect(connection.call('register_session', { session_key: 'x' })).rejects.toMatchObject({
      code: -32602,
    });
  });
});

test('every tool has a title, a description, annotations, and object schemas in snake_case', async () => {
  await using connection = await stage.connect();
  const { tools } = await connection.client.listTools();
  for (const { name, title, description, annotations, inputSchema, outputSchema } of tools) {
    expect(name).toMatch(/^[a-z_]+$/);
    expect([title, description].join()).not.toMatch(/undefined/);
    expect(annotations).toMatchObject({
      readOnlyHint: expect.any(Boolean),
      openWorldHint: expect.any(Boolean),
      idempotentHint: expect.any(Boolean),
    });
    expect([inputSchema.type, outputSchema?.type]).toEqual(['object', 'object']);
    for (const property of Object.keys(inputSchema.properties ?? {})) expect(property).toMatch(/^[a-z_]+$/);
  }
});
