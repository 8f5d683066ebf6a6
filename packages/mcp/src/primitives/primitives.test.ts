/** Primitives and turns as tools, with the rights of the client. */
import type { JsonObject } from '@boxcar/kernel';
import type { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { McpClientScope } from '../client-scope.js';
import { CLIENTS, openStage, type Stage } from '../testing/stage.js';

let stage: Stage;
let release: () => void = () => undefined;
const held = new Promise<void>((resolve) => {
  release = resolve;
});

beforeAll(async () => {
  stage = await openStage({
    functions: {
      held: async () => {
        await held;
        return { text: 'at last' };
      },
    },
  });
  await stage.profile('writer', [{ say: 'It is written.' }], {
    delegation_policy: { target_profiles: ['writer'] },
  });
  await stage.profile('slow', [], { model: 'scripted:held', script: undefined as never });
  await stage.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const name of ['ada', 'bob']) await stage.agent(name, 'writer');
});
afterAll(async () => {
  release();
  await stage[Symbol.asyncDispose]();
});

async function call(name: string, args: JsonObject, rest: Partial<McpClientScope> = {}) {
  await using connection = await stage.connect(rest);
  return await connection.call(name, args);
}

const turnIn = ({ body }: { readonly body: JsonObject }): string =>
  String((body.answer as JsonObject).turn_id);

test('every primitive but submit_result is offered, with a description of its effects', async () => {
  await using connection = await stage.connect({ groups: new Set(['primitives']) });
  const { tools } = await (connection.client as OldClient).listTools();
  const offered = Object.fromEntries(tools.map(({ name, annotations }) => [name, annotations]));
  expect(Object.keys(offered).sort()).toEqual([
    'ask_expert',
    'cancel',
    'collect',
    'context_handoff',
    'create_box',
    'delegate_async',
    'fork_join',
    'get_turn',
    'grant_box',
    'launch_principal',
    'provision_agent',
    'raise_budget',
    'wait_for_turn',
  ]);
  expect(offered.cancel).toMatchObject({ destructiveHint: true, readOnlyHint: false });
  expect(offered.get_turn).toMatchObject({ readOnlyHint: true, destructiveHint: false });
  expect(offered.delegate_async).toMatchObject({ openWorldHint: true });
});

describe.each(CLIENTS)('client %s', (kind) => {
  test('starts a turn, waits for it and reads it', async () => {
    await using connection = await stage.connect({}, kind);
    const launched = await connection.call('launch_principal', {
      profile_name: 'writer',
      instruction: 'Write.',
    });
    expect(launched.body).toMatchObject({ success: true, status: 'done' });
    const turn_id = turnIn(launched);
    expect((await connection.call('wait_for_turn', { turn_id })).body).toMatchObject({
      success: true,
      is_over: true,
      turn: { turn_id, status: 'success', result: 'It is written.' },
    });
    expect((await connection.call('get_turn', { turn_id })).body).toMatchObject({
      turn: { turn_id, status: 'success', result: 'It is written.' },
    });
  });
});

test('makes one turn with the same idempotency key', async () => {
  const request = { profile_name: 'idle', instruction: 'Go.', idempotency_key: 'once' };
  const first = await call('launch_principal', request);
  expect(turnIn(await call('launch_principal', request))).toBe(turnIn(first));
  expect((await call('launch_principal', { ...request, instruction: 'Stop.' })).body).toMatchObject({
    error_code: 'IDEMPOTENCY_CONFLICT',
  });
});

test('gets the result of a primitive that waits', async () => {
  const { body } = await call('fork_join', {
    tasks: [1, 2].map((n) => ({ target_strategy: 'new', target_ref: 'writer', instruction: `Write ${n}.` })),
  });
  expect(body).toMatchObject({ success: true, status: 'done', answer: { status: 'success' } });
});

test('ends a wait in time, and the turn continues', async () => {
  const turn_id = turnIn(await call('launch_principal', { profile_name: 'idle', instruction: 'Go.' }));
  expect((await call('wait_for_turn', { turn_id, timeout_seconds: 0.01 })).body).toMatchObject({
    success: true,
    is_over: false,
    turn: { turn_id, result: null },
  });
});

test('gets progress of a wait on request, and may cancel it', async () => {
  const turn_id = turnIn(await call('launch_principal', { profile_name: 'slow', instruction: 'Go.' }));
  await using connection = await stage.connect();
  const abort = new AbortController();
  const told: string[] = [];
  const waiting = (connection.client as OldClient).callTool(
    { name: 'wait_for_turn', arguments: { turn_id } },
    undefined,
    {
      signal: abort.signal,
      onprogress: ({ message = '' }) => {
        told.push(message);
        abort.abort();
      },
    },
  );
  await expect(waiting).rejects.toThrow(/abort/i);
  expect(told[0]).toContain(turn_id);
  // The connection continues, and so does the turn.
  release();
  expect((await connection.call('wait_for_turn', { turn_id })).body).toMatchObject({
    turn: { result: 'at last' },
  });
});

describe('an agent', () => {
  test('sees its own turns and the turns that it has requested, and no others', async () => {
    const asked = await call(
      'delegate_async',
      { target_strategy: 'new', target_ref: 'writer', instruction: 'Write.' },
      { as: 'ada' },
    );
    expect(asked.body).toMatchObject({ success: true });
    const turn_id = turnIn(asked);
    expect((await call('wait_for_turn', { turn_id }, { as: 'ada' })).body).toMatchObject({ is_over: true });
    for (const tool of ['get_turn', 'wait_for_turn'])
      expect((await call(tool, { turn_id }, { as: 'bob' })).body).toMatchObject({ error_code: 'NOT_FOUND' });
    expect((await call('get_turn', { turn_id })).body).toMatchObject({ success: true });
  });

  test('may do everything that its profile allows', async () => {
    await stage.profile('closed', [{ say: 'done' }]);
    await stage.agent('carl', 'closed');
    const request = { target_strategy: 'new', target_ref: 'writer', instruction: 'Write.' };
    expect((await call('delegate_async', request, { as: 'carl' })).body).toMatchObject({
      success: false,
      error_code: 'DELEGATION_DENIED',
    });
  });
});

test.each([
  ['a missing turn', 'get_turn', {}, 'VALIDATION_ERROR'],
  ['an id that is not valid', 'get_turn', { turn_id: 'x' }, 'NOT_FOUND'],
  ['an unknown turn', 'wait_for_turn', { turn_id: '00000000-0000-7000-8000-00000000000f' }, 'NOT_FOUND'],
  [
    'a wait without a valid limit',
    'wait_for_turn',
    { turn_id: 'x', timeout_seconds: 1e9 },
    'VALIDATION_ERROR',
  ],
  ['an unknown profile', 'launch_principal', { profile_name: 'nobody', instruction: 'Go.' }, 'NOT_FOUND'],
  ['a missing instruction', 'launch_principal', { profile_name: 'writer' }, 'VALIDATION_ERROR'],
])('%s is a failure of %s', async (_what, tool, args, error_code) => {
  expect(await call(tool, args as JsonObject)).toMatchObject({ isError: true, body: { error_code } });
});

test.each([[null], [7], [{}]])(
  'an idempotency_key with the value %j is a failure that the client can read',
  async (idempotency_key) => {
    const args = { idempotency_key, profile_name: 'writer', instruction: 'Write.' };
    expect(await call('delegate_async', args)).toMatchObject({
      isError: true,
      body: {
        error_code: 'VALIDATION_ERROR',
        error: expect.stringContaining('arguments.idempotency_key'),
      },
    });
  },
);
