/** Programs make keys and end them. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { authenticateKey } from './authenticate-key.js';
import { createKey, listKeys, revokeKey, rotateKey } from './keys.js';

let h: Harness;

beforeAll(async () => {
  h = await harness();
  await h.runtime.createProject({ name: 'team' });
});
afterAll(() => h[Symbol.asyncDispose]());

const make = (rest: object = {}) =>
  createKey(h.database.pool, { scopes: ['approvals:read'], ...rest } as Parameters<typeof createKey>[1]);
const principalOf = (text: string) => authenticateKey(h.database.pool, text);

test('a key is returned once with its text, which no list contains, and is recognized by one statement', async () => {
  const made = await make({ scopes: ['approvals:write', 'approvals:read', 'approvals:read'], name: 'desk' });
  expect(made).toMatchObject({
    key: expect.stringMatching(/^boxcar_[\w-]{43}$/),
    project: 'default',
    scopes: ['approvals:read', 'approvals:write'],
    name: 'desk',
    status: 'usable',
  });
  expect(made.key.endsWith(made.hint)).toBe(true);
  expect(JSON.stringify(await listKeys(h.database.pool))).not.toContain(made.key);
  expect(await principalOf(made.key)).toMatchObject({
    id: made.key_id,
    kind: 'key',
    scopes: made.scopes,
    projectId: made.project_id,
    agent: null,
  });
  expect(await statementsOf(h.database, () => principalOf(made.key))).toHaveLength(1);
});

test('a text that is not a key causes no query', async () => {
  for (const text of [
    '',
    'boxcar_',
    `boxcar_${'a'.repeat(42)}`,
    `boxcar_${'a'.repeat(44)}`,
    'x'.repeat(1e6),
  ]) {
    expect(await principalOf(text)).toBeUndefined();
    expect(await statementsOf(h.database, () => principalOf(text))).toEqual([]);
  }
  expect(await principalOf(`boxcar_${'a'.repeat(43)}`)).toBeUndefined();
});

test('a key of an agent acts as this agent, and may not decide approvals', async () => {
  await h.profile('worker', [{ say: 'done' }]);
  await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'worker', agent_id: 'sam' });
  const made = await make({ agent: 'sam' });
  expect(made).toMatchObject({ agent: 'sam' });
  expect(await principalOf(made.key)).toMatchObject({
    id: made.agent_id,
    kind: 'agent',
    agent: { name: 'sam' },
  });
  await expect(make({ agent: 'nobody' })).rejects.toMatchObject({ code: 'not_found' });
  await expect(make({ agent: 'sam', scopes: ['approvals:write'] })).rejects.toMatchObject({
    code: 'bad_request',
    message: expect.stringContaining('an agent never decides'),
  });
});

test('invalid settings of a key are refused', async () => {
  for (const options of [
    { scopes: [] },
    { scopes: ['all'] },
    { scopes: undefined },
    { name: ' ' },
    { lifetimeMs: 0 },
    { lifetimeMs: Infinity },
    { scope: ['approvals:read'] },
  ])
    await expect(make(options)).rejects.toMatchObject({ code: 'bad_request' });
  await expect(make({ projectId: 'nowhere' })).rejects.toMatchObject({ code: 'not_found' });
});

test('keys are listed page by page for one project, and are revoked or rotated by a prefix of their ids', async () => {
  const keys = [];
  for (const name of ['one', 'two', 'three']) keys.push(await make({ projectId: 'team', name }));
  const [one, two, three] = keys;
  if (one === undefined || two === undefined || three === undefined) throw new Error('no keys');
  const list = (rest: object = {}) => listKeys(h.database.pool, { projectId: 'team', ...rest });
  const first = await list({ limit: 2 });
  expect(first.keys.map(({ name }) => name)).toEqual(['three', 'two']);
  const rest = await list({ limit: 2, cursor: first.next_cursor });
  expect(rest).toMatchObject({ keys: [{ name: 'one' }], next_cursor: null });
  await expect(list({ cursor: 'keys:x' })).rejects.toMatchObject({ code: 'bad_request' });

  await expect(revokeKey(h.database.pool, one.key_id)).rejects.toMatchObject({ code: 'not_found' });
  const revoked = await revokeKey(h.database.pool, one.key_id, { projectId: 'team' });
  expect(revoked).toMatchObject({ status: 'revoked' });
  expect(await revokeKey(h.database.pool, one.key_id, { projectId: 'team' })).toEqual(revoked);
  expect(await principalOf(one.key)).toBeUndefined();

  const made = await rotateKey(h.database.pool, two.key_id, { projectId: 'team', graceMs: 60_000 });
  expect(made).toMatchObject({ name: 'two', rotated_from: two.key_id, project: 'team' });
  expect(await principalOf(made.key)).toMatchObject({ keyId: made.key_id });
  expect(await principalOf(two.key)).toMatchObject({ keyId: two.key_id });
  for (const [key, message] of [
    [two, 'was rotated before'],
    [one, 'is revoked'],
  ] as const)
    await expect(rotateKey(h.database.pool, key.key_id, { projectId: 'team' })).rejects.toMatchObject({
      code: 'conflict',
      message: expect.stringContaining(message),
    });
  expect((await list({ all: true })).keys).toHaveLength(4);
  expect((await list()).keys.map(({ name }) => name)).toEqual(['two', 'three', 'two']);
});
