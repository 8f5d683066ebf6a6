/** Tool descriptions list the profiles that the agent can reach. Source: docs/reference/primitives.md. */
import type { JsonValue, ModelRequest } from '@boxcar/kernel';
import { beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { checkPrompts } from '../../testing/check-prompts.js';
import { type Harness, harness } from '../../testing/harness.js';
import { type RecordingModel, recordingModel } from '../../testing/recording-model.js';

let h: Harness;
let model: RecordingModel;

beforeEach(async () => {
  model = recordingModel();
  h = await harness({ model });
  return () => h[Symbol.asyncDispose]();
});

const OK = [{ say: 'ok' }];
const TELLING = [
  'launch_principal',
  'ask_expert',
  'delegate_async',
  'fork_join',
  'provision_agent',
  'context_handoff',
];

async function play(profile: string): Promise<{ readonly turnId: string; readonly status: string }> {
  const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
  })) as { turn_id: string };
  const { status } = await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
  return { turnId, status };
}

const descriptionsOf = ({ tools }: ModelRequest): Readonly<Record<string, string>> =>
  Object.fromEntries(tools.map(({ name, description }) => [name, description]));

/** The part of a description about profiles. */
const toldOf = (request: ModelRequest | undefined, tool: string): string | undefined =>
  request && descriptionsOf(request)[tool]?.split('\n').slice(1).join('\n');

test('the first tool that names profiles lists the allowed profiles, and the other tools refer to it', async () => {
  await h.profile('zoe', OK, { description: `${'long '.repeat(40)}end`, tags: ['good'] });
  await h.profile('Adam', OK, {
    description: ' Writes\u0085\u001b\n  \u202etests. ',
    tags: ['good', 'cheap'],
  });
  await h.profile('bob', OK, { tags: ['good'] });
  await h.profile('eve', OK, { tags: ['bad'] });
  await h.profile('mallory', OK, { tags: ['good'] });
  await h.profile('boss', OK, {
    tools: ['create_box', ...TELLING],
    delegation_policy: { target_profiles: ['zoe', 'Adam', 'bob', 'eve', 'nobody'], target_tags: ['good'] },
  });
  await h.worker();
  const { turnId } = await play('boss');
  const [request] = model.of(turnId);
  expect(toldOf(request, 'create_box')).toBe('');
  expect(toldOf(request, 'launch_principal')).toBe(
    ['Profiles you can reach:', '- Adam: Writes tests.', '- bob', `- zoe: ${'long '.repeat(24)}`].join('\n'),
  );
  for (const tool of TELLING.slice(1)) expect(toldOf(request, tool)).toBe('Profiles: see launch_principal.');
  await checkPrompts(h.database.pool, model.requests);
});

test('without a policy, and with a policy that allows no profile, the tools say so', async () => {
  await h.profile('alone', OK, { tools: ['ask_expert'] });
  await h.profile('closed', OK, { tools: ['ask_expert'], delegation_policy: { target_profiles: [] } });
  await h.worker();
  for (const profile of ['alone', 'closed']) {
    const { turnId } = await play(profile);
    expect(toldOf(model.of(turnId)[0], 'ask_expert')).toBe('You can reach no profile.');
  }
});

test('the list is fixed at the first step of a turn, whichever worker runs the later steps', async () => {
  await h.profile('worker', OK, { description: 'Works.' });
  const script: JsonValue[] = [
    { calls: [{ tool: 'news' }] },
    { calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'worker', question: 'x' } }] },
    { say: 'done' },
  ];
  await h.profile('boss', script, {
    tools: ['ask_expert', 'news'],
    delegation_policy: { target_profiles: null },
  });
  let news = 0;
  h.runtime.registerTool({
    name: 'news',
    description: 'Brings news.',
    input: z.strictObject({}),
    run: async () => {
      news += 1;
      await h.profile(`newcomer-${news}`, OK);
      return news;
    },
  });
  await h.worker();
  const { turnId, status } = await play('boss');
  expect(status).toBe('success');
  const [first, ...later] = model.of(turnId);
  expect(toldOf(first, 'ask_expert')).toBe('Profiles you can reach:\n- boss\n- worker: Works.');
  // The third step runs after the turn was suspended, so no part of the description was still in memory.
  expect(later).toHaveLength(2);
  for (const request of later) expect(request.tools).toEqual(first?.tools);
  const next = await play('boss');
  expect(toldOf(model.of(next.turnId)[0], 'ask_expert')).toContain('- newcomer-1');
  await checkPrompts(h.database.pool, model.requests);
  const shown = await h.runtime.explainStep(turnId, { step: 3 });
  expect(shown.verified).toBe(true);
  expect(shown.tools?.find(({ name }) => name === 'ask_expert')?.description).toBe(
    descriptionsOf(first as ModelRequest).ask_expert,
  );
});

test('thirty profiles are listed; for more the agent calls list_profiles, which continues after the list', async () => {
  const names = Array.from({ length: 75 }, (_, index) => `p${String(index).padStart(2, '0')}`);
  for (const name of names) await h.profile(name, OK);
  const policy = (count: number) => ({ delegation_policy: { target_profiles: names.slice(0, count) } });
  await h.profile('thirty', OK, { tools: ['ask_expert'], ...policy(30) });
  const script = [
    { calls: [{ tool: 'list_profiles' }] },
    { calls: [{ tool: 'list_profiles', arguments: { after: 'p49' } }] },
    { say: 'done' },
  ];
  await h.profile('many', script, { tools: ['ask_expert'], ...policy(70) });
  await h.worker();
  const few = model.of((await play('thirty')).turnId)[0];
  expect(toldOf(few, 'ask_expert')?.split('\n')).toHaveLength(31);
  expect(few?.tools.map(({ name }) => name)).toEqual(['ask_expert']);
  const { turnId, status } = await play('many');
  expect(status).toBe('success');
  const requests = model.of(turnId);
  for (const request of requests) {
    expect(toldOf(request, 'ask_expert')).toBe(
      'You can reach more than 30 profiles; list_profiles lists them.',
    );
    expect(request.tools.map(({ name }) => name)).toEqual(['ask_expert', 'list_profiles']);
  }
  const results = requests.at(-1)?.messages.filter(({ role }) => role === 'tool') ?? [];
  const [page, rest] = results.map(
    ({ content }) => JSON.parse(content) as { profiles: { name: string }[]; next?: string },
  );
  expect(page?.profiles.map(({ name }) => name)).toEqual(names.slice(0, 50));
  expect(page?.next).toBe('p49');
  expect(rest).toEqual({ profiles: names.slice(50, 70).map((name) => ({ name })) });
  const shown = await h.runtime.explainStep(turnId, { step: 1 });
  expect(shown.tools?.find(({ name }) => name === 'list_profiles')?.offered_by).toBe('profiles');
  await checkPrompts(h.database.pool, model.requests);
});
