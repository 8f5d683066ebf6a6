/**
 * Projects are made once by name, listed, and archived. An archived project refuses new submissions, and its running turns
 * continue to their end.
 */
import type { TurnId } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;

beforeAll(async () => {
  h = await harness();
});
afterAll(async () => {
  await checkInvariants(h.database.pool);
  await h[Symbol.asyncDispose]();
});

const echo = (projectId: string, rest: object = {}) =>
  h.runtime.applyProfile(
    {
      name: 'echo',
      instructions: 'You answer.',
      model: 'scripted',
      script: [{ say: 'done' }],
      delegation_policy: { target_profiles: null },
      ...rest,
    },
    { projectId },
  );
const CARDS = [{ type: 'note', content: { kind: 'text', text: 'A fact.' } }];
const launch = async (projectId: string, options: object = {}) =>
  (await h.runtime.submit(
    'launch_principal',
    { profile_name: 'echo', instruction: 'go' },
    { projectId, ...options },
  )) as { turn_id: TurnId; run_id: string };

/** The end of a turn of a project. */
const wait = (turn: TurnId, projectId: string) => h.runtime.waitForTurn(turn, { projectId });

test('a project is made once by its name, with an operator and tapes of its own', async () => {
  const made = await h.runtime.createProject({ name: 'team', limits: { max_depth: 3 } });
  expect(made).toMatchObject({
    name: 'team',
    outcome: 'created',
    limits: { max_depth: 3 },
    archived_at: null,
    active: 0,
  });
  for (const limits of [undefined, { max_depth: 3 }])
    expect(await h.runtime.createProject({ name: 'team', limits })).toEqual({
      ...made,
      outcome: 'unchanged',
    });
  await expect(h.runtime.createProject({ name: 'team', limits: {} })).rejects.toMatchObject({
    code: 'conflict',
    details: { limits: { max_depth: 3 } },
  });
  await using worker = await h.worker();
  await echo('team');
  const { turn_id: turn } = await launch('team');
  expect(await wait(turn, 'team')).toMatchObject({ status: 'success' });
  const tape = await h.runtime.tape('notes', { projectId: 'team' });
  await tape.append([{ kind: 'message', content: 'of the team' }]);
  void worker;
});

test('names that could be taken for an id, and invalid limits, are refused', async () => {
  for (const options of [
    { name: '' },
    { name: ' ' },
    { name: '01a2013c-5d21-7ae1-821d-cb1b3af8b547' },
    { name: 'a\u202eb' },
    { name: 'a\ud800' },
    { name: 'x', limits: { max_depth: 0 } },
    { name: 'x', limit: {} },
  ])
    await expect(h.runtime.createProject(options as never)).rejects.toMatchObject({ code: 'bad_request' });
});

test('an archived project refuses new work, and lets running work end', async () => {
  await h.runtime.createProject({ name: 'old' });
  await echo('old', { name: 'child' });
  const ask = { tool: 'ask_expert', arguments: { expert_profile: 'child', question: 'And?' } };
  await echo('old', { script: [{ calls: [ask] }, { say: 'asked' }], tools: ['ask_expert'] });
  const before = await launch('old', { idempotencyKey: 'before' });
  const late = await launch('old');
  const archived = await h.runtime.archiveProject('old');
  expect(archived).toMatchObject({ name: 'old', archived_at: expect.any(Date) });
  expect(archived.active + archived.queued).toBe(2);
  expect((await h.runtime.archiveProject('old')).archived_at).toEqual(archived.archived_at);

  const refused = { code: 'project_archived', details: { project_id: archived.project_id } };
  await expect(launch('old')).rejects.toMatchObject(refused);
  await expect(launch('old', { parentTurnId: before.turn_id })).rejects.toMatchObject(refused);
  await expect(h.runtime.submit('create_box', { cards: CARDS }, { projectId: 'old' })).rejects.toMatchObject(
    refused,
  );
  // A repeated submission of an accepted key gets its answer again.
  expect(await launch('old', { idempotencyKey: 'before' })).toEqual(before);
  expect(await h.runtime.submit('cancel', { turn_id: late.turn_id }, { projectId: 'old' })).toMatchObject({
    status: 'canceled',
  });

  await using worker = await h.worker();
  expect(await wait(before.turn_id, 'old')).toMatchObject({ status: 'success', result: 'asked' });
  expect(
    await h.runtime.submit('collect', { turn_ids: [before.turn_id] }, { projectId: 'old' }),
  ).toMatchObject({
    status: 'success',
  });
  expect(await h.runtime.getProject('old')).toMatchObject({ active: 0, queued: 0, suspended: 0 });
  expect(await h.runtime.archiveProject('old', { isArchived: false })).toMatchObject({ archived_at: null });
  expect(await wait((await launch('old')).turn_id, 'old')).toMatchObject({ status: 'success' });
  void worker;
});

test('arguments of a wrong type from an untyped program are refused, and nothing is archived', async () => {
  const archive = (...args: readonly unknown[]) =>
    (h.runtime.archiveProject as (...given: readonly unknown[]) => Promise<unknown>).apply(h.runtime, [
      ...args,
    ]);
  for (const options of [{ isArchived: null }, { isArchived: 'no' }, { archived: false }])
    await expect(archive('default', options)).rejects.toMatchObject({ code: 'bad_request' });
  await expect(archive(5)).rejects.toMatchObject({
    code: 'bad_request',
    details: { issues: [{ path: 'project' }] },
  });
  await expect(h.runtime.getProject(undefined as never)).rejects.toMatchObject({ code: 'bad_request' });
  await expect(h.runtime.applyProfiles('x' as never)).rejects.toMatchObject({
    code: 'bad_request',
    message: expect.stringContaining('profiles: must be a list.'),
  });
  expect(await h.runtime.getProject('default')).toMatchObject({ archived_at: null });
});

test('a submission that was looked up before its project was archived is refused by its write', async () => {
  await h.runtime.createProject({ name: 'race' });
  await echo('race');
  h.runtime.registerHandler('slow', {
    description: 'Archives its project before it is written.',
    input: z.strictObject({}),
    handle: async () => {
      await h.runtime.archiveProject('race');
      return 'answered';
    },
  });
  await expect(h.runtime.submit('slow', {}, { projectId: 'race' })).rejects.toMatchObject({
    code: 'project_archived',
  });
  expect(await h.rows("select from boxcar.operations where primitive = 'slow'")).toEqual([]);
});

test('projects are listed newest first, page by page, by name and by whether they are archived', async () => {
  await h.runtime.createProject({ name: 'last' });
  await h.runtime.archiveProject('last');
  const all = await h.runtime.listProjects();
  expect(all.projects.map(({ name }) => name)).toEqual(['last', 'race', 'old', 'team', 'default']);
  const first = await h.runtime.listProjects({ limit: 2 });
  expect(first.projects).toEqual(all.projects.slice(0, 2));
  const rest = await h.runtime.listProjects({ cursor: first.next_cursor ?? '' });
  expect(rest.projects).toEqual(all.projects.slice(2));
  expect((await h.runtime.listProjects({ text: 'TEA' })).projects).toMatchObject([{ name: 'team' }]);
  expect((await h.runtime.listProjects({ isArchived: true })).projects).toMatchObject([
    { name: 'last' },
    { name: 'race' },
  ]);
  expect(await statementsOf(h.database, () => h.runtime.listProjects())).toHaveLength(4);
  await expect(h.runtime.getProject('nobody')).rejects.toMatchObject({ code: 'not_found' });
});
