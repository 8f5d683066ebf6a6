import { createHash } from 'node:crypto';
import type { ProjectId, Scope } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { purgeRuns } from '../purge/index.js';
import { archiveProject, createProject } from '../submit/index.js';
import { DEFAULT_PROJECT, newId, World } from '../testing/world.js';
import {
  findKeyRow,
  findUsableKey,
  hasUsableKey,
  insertKey,
  listKeyRows,
  type NewKey,
  noteKeyUse,
  revokeKeyRow,
  rotateKeyRow,
} from './keys.js';

let world: World;

beforeAll(async () => {
  world = await World.open();
});
afterAll(() => world[Symbol.asyncDispose]());

const sha256 = (text: string): Buffer => createHash('sha256').update(text).digest();
const keyOf = (text: string, rest: Partial<NewKey> = {}): NewKey => ({
  id: newId<'key'>(),
  projectId: DEFAULT_PROJECT,
  agentId: null,
  name: 'reviewer',
  sha256: sha256(text),
  hint: text.slice(-4),
  scopes: ['approvals:read'] satisfies Scope[],
  isLocal: false,
  lifetimeMs: null,
  ...rest,
});
const make = (text: string, rest: Partial<NewKey> = {}) => insertKey(world.pool, keyOf(text, rest));
const find = (text: string) => findUsableKey(world.pool, sha256(text));
const past = (id: string, column: 'expires_at' | 'last_used_at' | 'revoked_at', age: string) =>
  world.pool.query(`update boxcar.api_keys set ${column} = now() - $2::interval where id = $1`, [id, age]);

test('a key is found by the digest of its text until it is revoked or expires, and no row contains its text', async () => {
  expect(await hasUsableKey(world.pool)).toBe(false);
  const key = await make('first-key-text', { lifetimeMs: 60_000 });
  expect(key).toMatchObject({ status: 'usable', hint: 'text', agent: null, scopes: ['approvals:read'] });
  expect(await find('first-key-text')).toMatchObject({ id: key.id, project_id: DEFAULT_PROJECT });
  expect(await find('another')).toBeUndefined();
  expect(await hasUsableKey(world.pool)).toBe(true);
  const { rows } = await world.pool.query('select k::text as row from boxcar.api_keys k');
  expect(JSON.stringify(rows)).not.toContain('first-key-text');

  await past(key.id, 'expires_at', '1 second');
  expect(await find('first-key-text')).toBeUndefined();
  expect(await hasUsableKey(world.pool)).toBe(false);
  expect(await findKeyRow(world.pool, { keyId: key.id, projectId: DEFAULT_PROJECT })).toMatchObject({
    status: 'expired',
  });

  const other = await make('second-key-text');
  const revoked = await revokeKeyRow(world.pool, { keyId: other.id, projectId: DEFAULT_PROJECT });
  expect(revoked).toMatchObject({ status: 'revoked', revoked_at: expect.any(Date) });
  expect(await find('second-key-text')).toBeUndefined();
  expect(await revokeKeyRow(world.pool, { keyId: other.id, projectId: DEFAULT_PROJECT })).toEqual(revoked);
});

test('a key that is made again under its id is the same key', async () => {
  const key = keyOf('again');
  const first = await insertKey(world.pool, key);
  expect(await insertKey(world.pool, key)).toEqual(first);
});

test('the use of a key is recorded at most once a minute', async () => {
  const key = await make('used');
  expect(await find('used')).toMatchObject({ is_use_due: true });
  await noteKeyUse(world.pool, key.id);
  expect(await find('used')).toMatchObject({ is_use_due: false });
  const used = async () =>
    (await findKeyRow(world.pool, { keyId: key.id, projectId: DEFAULT_PROJECT }))?.last_used_at;
  const at = await used();
  await noteKeyUse(world.pool, key.id);
  expect(await used()).toEqual(at);
  await past(key.id, 'last_used_at', '2 minutes');
  expect(await find('used')).toMatchObject({ is_use_due: true });
});

const rotate = (keyId: NewKey['id'], text: string, graceMs = 0) =>
  rotateKeyRow(world.pool, {
    keyId,
    projectId: DEFAULT_PROJECT,
    id: newId<'key'>(),
    sha256: sha256(text),
    hint: text.slice(-4),
    graceMs,
  });

test('a rotation makes one successor with the key’s rights and lifetime, and ends the key at once or after its grace period', async () => {
  const old = await make('old-1', { scopes: ['approvals:read', 'approvals:write'], lifetimeMs: 3_600_000 });
  const made = await rotate(old.id, 'new-1');
  expect(made).toMatchObject({
    name: 'reviewer',
    scopes: old.scopes,
    rotated_from: old.id,
    status: 'usable',
  });
  expect(Number(made?.expires_at) - Number(made?.created_at)).toBe(3_600_000);
  expect(await find('old-1')).toBeUndefined();
  expect(await find('new-1')).toMatchObject({ id: made?.id });

  // A statement whose answer was lost is sent again.
  const repeated = { keyId: made?.id ?? old.id, id: newId<'key'>(), hint: 'ew-r', graceMs: 0 };
  const rotation = { ...repeated, projectId: DEFAULT_PROJECT, sha256: sha256('new-r') };
  const first = await rotateKeyRow(world.pool, rotation);
  expect(await rotateKeyRow(world.pool, rotation)).toEqual(first);

  const kept = await make('old-2');
  const results = await Promise.all(['a', 'b', 'c'].map((text) => rotate(kept.id, `new-2${text}`, 60_000)));
  expect(results.filter((result) => result !== undefined)).toHaveLength(1);
  expect(await find('old-2')).toMatchObject({ id: kept.id });
  expect(await rotate(kept.id, 'new-2d', 60_000)).toBeUndefined();
  await past(kept.id, 'revoked_at', '1 second');
  expect(await find('old-2')).toBeUndefined();
  expect(await rotate(kept.id, 'new-2e')).toBeUndefined();
});

test('a project sees only its own keys, and an archived project has no working key', async () => {
  const projectId = newId<'project'>() as ProjectId;
  await createProject(world.pool, {
    id: projectId,
    name: 'other',
    limits: {},
    operatorAgentId: newId<'agent'>(),
    bootstrapCardId: newId<'card'>(),
  });
  const key = await make('of-other', { projectId });
  const list = (isAll: boolean) => listKeyRows(world.pool, { projectId, isAll, limit: 10 });
  expect(await list(false)).toMatchObject([{ id: key.id }]);
  const wrong = { keyId: key.id, projectId: DEFAULT_PROJECT };
  expect(await revokeKeyRow(world.pool, wrong)).toBeUndefined();
  expect(await findKeyRow(world.pool, wrong)).toBeUndefined();
  expect(await rotate(key.id, 'stolen')).toBeUndefined();
  await archiveProject(world.pool, projectId, true);
  expect(await find('of-other')).toBeUndefined();
  await archiveProject(world.pool, projectId, false);
  expect(await find('of-other')).toMatchObject({ id: key.id });
  await revokeKeyRow(world.pool, { keyId: key.id, projectId });
  expect(await list(false)).toEqual([]);
  expect(await list(true)).toMatchObject([{ id: key.id, status: 'revoked' }]);
});

test('a purge removes keys that ended before its time, and no other keys', async () => {
  const [long, short, usable] = await Promise.all(['p1', 'p2', 'p3'].map((text) => make(text)));
  if (long === undefined || short === undefined || usable === undefined) throw new Error('no keys');
  await past(long.id, 'revoked_at', '10 days');
  await past(short.id, 'expires_at', '1 day');
  const ids = async () =>
    (await world.pool.query<{ id: string }>('select id from boxcar.api_keys')).rows.map(({ id }) => id);
  const before = new Date(Date.now() - 5 * 86_400_000);
  await purgeRuns(world.pool, { before, isDryRun: true });
  expect(await ids()).toContain(long.id);
  await purgeRuns(world.pool, { before });
  expect(await ids()).not.toContain(long.id);
  expect(await ids()).toEqual(expect.arrayContaining([short.id, usable.id]));
});
