import { KernelError } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;

beforeAll(async () => {
  h = await harness();
  await h.profile('b', [{ say: 'one' }], { tags: ['code', 'x'], description: 'first' });
  await h.profile('b', [{ say: 'two' }], { tags: ['code'], worker_target: 'gpu' });
  await h.profile('a', [{ say: 'x' }]);
});

afterAll(() => h[Symbol.asyncDispose]());

const create = (args: object) => h.runtime.submit('provision_agent', { action: 'create', ...args });
const codeOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'done',
    (error: unknown) => (error instanceof KernelError ? error.code : error),
  );

test('the list has the current version of each profile with its agents, by name, filtered by a tag', async () => {
  for (const profile_version of [1, 2, 2]) await create({ profile_name: 'b', profile_version });
  const list = await h.runtime.listProfiles();
  expect(list).toMatchObject([
    { name: 'a', version: 1, model: 'scripted', tags: [], agents: 0, agents_behind: 0, description: null },
    { name: 'b', version: 2, tags: ['code'], worker_target: 'gpu', agents: 3, agents_behind: 1 },
  ]);
  expect(list[1]?.applied_at).toBeInstanceOf(Date);
  expect((await h.runtime.listProfiles({ tag: 'code' })).map((line) => line.name)).toEqual(['b']);
  // Only an older version has this tag.
  expect(await h.runtime.listProfiles({ tag: 'x' })).toEqual([]);
});

test('every version is kept as it was stored, and can be applied again', async () => {
  const first = await h.runtime.getProfile('b', { version: 1 });
  expect(first).toMatchObject({
    name: 'b',
    version: 1,
    is_current: false,
    latest_version: 2,
    profile: { name: 'b', description: 'first', tags: ['code', 'x'], script: [{ say: 'one' }] },
  });
  const current = await h.runtime.getProfile('b');
  expect(current).toMatchObject({ version: 2, is_current: true });
  expect(await h.runtime.applyProfile(current.profile)).toMatchObject({ version: 2, changed: false });
  const both = await h.runtime.findProfileVersions([
    { name: 'nothing' },
    { name: 'b', version: 1 },
    { name: 'a' },
  ]);
  expect(both.map(({ name, version }) => `${name}@${version}`)).toEqual(['b@1', 'a@1']);
  expect(await h.runtime.findProfileVersions([])).toEqual([]);
});

test('an unknown profile or version is not found in this project; a version is a whole number from 1', async () => {
  const [project, operator] = [newId(), newId()];
  await h.rows(
    `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
     select $1, 'elsewhere', $2, bootstrap_card_id from boxcar.projects limit 1`,
    [project, operator],
  );
  expect(await codeOf(h.runtime.getProfile('b', { version: 3 }))).toBe('not_found');
  expect(await codeOf(h.runtime.getProfile('B'))).toBe('not_found');
  expect(await codeOf(h.runtime.getProfile('b', { projectId: 'elsewhere' }))).toBe('not_found');
  expect(await h.runtime.listProfiles({ projectId: project })).toEqual([]);
  expect(await codeOf(h.runtime.listProfiles({ projectId: 'nowhere' }))).toBe('not_found');
  for (const version of [0, -1, 1.5, Number.NaN, 2 ** 31])
    expect(await codeOf(h.runtime.getProfile('b', { version }))).toBe('bad_request');
  expect(await codeOf(h.runtime.getProfile(''))).toBe('bad_request');
});

test('lists and single reads take two statements for any number of profiles and agents', async () => {
  const cost = async (work: () => Promise<unknown>) => (await statementsOf(h.database, work)).length;
  for (let n = 0; n < 10; n++) await h.profile(`many-${n}`, [{ say: 'x' }]);
  const names = Array.from({ length: 10 }, (_, n) => ({ name: `many-${n}` }));
  expect(await cost(() => h.runtime.listProfiles())).toBe(2);
  expect(await cost(() => h.runtime.getProfile('b'))).toBe(2);
  expect(await cost(() => h.runtime.findProfileVersions(names))).toBe(2);
});

describe('several profiles that are applied together', () => {
  const named = (name: string, rest: object = {}) => ({
    name,
    instructions: 'x',
    model: 'scripted',
    script: [{ say: 'x' }],
    ...rest,
  });

  test('take as many statements as one, and each gets a version of its own', async () => {
    const many = Array.from({ length: 30 }, (_, n) => named(`lot-${String(n).padStart(2, '0')}`));
    const first = await statementsOf(h.database, () => h.runtime.applyProfiles(many.slice(0, 1)));
    const rest = await statementsOf(h.database, () => h.runtime.applyProfiles(many));
    expect(rest).toHaveLength(first.length);
    const changed = many.map((one, n) => (n % 2 === 0 ? one : { ...one, instructions: 'y' }));
    const applied = await h.runtime.applyProfiles(changed);
    expect(applied.map(({ name }) => name)).toEqual(many.map(({ name }) => name));
    expect(applied.map(({ change, version }) => [change, version])).toEqual(
      many.map((_, n) => (n % 2 === 0 ? ['unchanged', 1] : ['changed', 2])),
    );
    const stored = await h.runtime.findProfileVersions(many.map(({ name }) => ({ name })));
    expect(stored.map(({ version, is_current }) => [version, is_current])).toEqual(
      many.map((_, n) => [n % 2 === 0 ? 1 : 2, true]),
    );
    expect(await h.runtime.applyProfiles([])).toEqual([]);
  });

  test('are refused together when one is invalid, and that profile is named', async () => {
    const before = await h.runtime.listProfiles();
    const error = await h.runtime
      .applyProfiles([named('fine'), named('wrong', { limits: { max_steps: 0 } })])
      .catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      code: 'profile_invalid',
      message: expect.stringMatching(/^profiles\.1 \('wrong'\): limits\.max_steps/),
      details: { profile_name: 'wrong', profile_index: 1 },
    });
    expect(await codeOf(h.runtime.applyProfiles([named('same'), named('same')]))).toBe('profile_invalid');
    // A public profile needs an address, and this name gives none.
    expect(await codeOf(h.runtime.applyProfiles([named('..', { public: true })]))).toBe('profile_invalid');
    expect(await h.runtime.listProfiles()).toEqual(before);
  });

  test('by two processes in different order are all applied, one process after the other', async () => {
    const sets = [1, 2].map((n) =>
      Array.from({ length: 8 }, (_, i) => named(`race-${i}`, { instructions: `${n}` })),
    );
    const applied = await Promise.all(
      Array.from({ length: 6 }, (_, n) =>
        h.runtime.applyProfiles(n % 2 === 0 ? (sets[0] ?? []) : (sets[1] ?? []).toReversed()),
      ),
    );
    for (const one of applied) expect(new Set(one.map(({ version }) => version)).size).toBe(1);
  });
});
