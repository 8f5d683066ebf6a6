/** Data that providers attach to answers: how long it is kept, which provider receives it, and when it is deleted. */
import type { CardId, ProjectId, TurnId } from '@boxcar/kernel';
import { anthropicWire, type Behave, deepseekWire } from '@boxcar/llm/testing';
import { eraseCards, purgeRuns } from '@boxcar/store';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { TurnPrompts } from '../../explain/turn-prompts.js';
import { checkPrompts } from '../../testing/check-prompts.js';
import type { Harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';
import {
  LOOP,
  type ProviderStage,
  providerStage,
  THINKING_MODELS,
  THOUGHTS,
} from '../../testing/provider-stage.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
const ANTHROPIC = THINKING_MODELS.anthropic;
const DEEPSEEK = THINKING_MODELS.deepseek;
const [FIRST = '', SECOND = '', THIRD = ''] = THOUGHTS;

/** The cards with attached data, in the order of the tape. */
const attached = async (h: Harness) =>
  (
    await h.rows<{ type: string; data: string }>(
      `select c.type, c.provider_data::text as data from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id
       where c.provider_data is not null order by e.position`,
    )
  ).map(({ type, data }) => [type, THOUGHTS.filter((thought) => data.includes(thought))]);

async function again(stage: ProviderStage, strategy: 'reuse' | 'clone', rest: object = {}): Promise<TurnId> {
  const [agent] = await stage.h.rows<{ id: string }>(
    'select agent_id as id from boxcar.turns order by id limit 1',
  );
  const receipt = await stage.h.runtime.submit('delegate_async', {
    target_strategy: strategy,
    target_ref: agent?.id ?? '',
    instruction: 'Go on.',
    ...rest,
  });
  const { turn_id } = z.object({ turn_id: z.string() }).parse(receipt);
  await stage.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  return turn_id as TurnId;
}

/** Gives the first agent a new version of its profile, with that model and only the tool `look`. */
async function moveTo(stage: ProviderStage, model: string): Promise<void> {
  const [agent] = await stage.h.rows<{ id: string }>(
    'select agent_id as id from boxcar.turns order by id limit 1',
  );
  await stage.profile('looker', model);
  const [{ version } = {}] = await stage.h.rows<{ version: number }>(
    "select version from boxcar.profiles where name = 'looker' and is_current",
  );
  await stage.h.runtime.submit('provision_agent', {
    action: 'ensure',
    agent_id: agent?.id ?? '',
    profile_version: version ?? 0,
  });
}

const explain = async (h: Harness, turnId: TurnId, step: number) =>
  (await TurnPrompts.load(h.database.pool, turnId, { project: 'default', allSteps: true })).explain({ step });

test('each answer and the deliverable keep their attached data; a later turn and a clone send it back', async () => {
  await using stage = await providerStage(anthropicWire);
  const { h, server } = stage;
  await stage.profile('looker', ANTHROPIC);
  await stage.play('looker');
  expect(await attached(h)).toEqual([
    ['agent.thought', [FIRST]],
    ['tool.call', [SECOND]],
    ['task.deliverable', [THIRD]],
  ]);
  await again(stage, 'reuse');
  for (const thought of THOUGHTS) expect(stage.sent(3)).toContain(thought);
  await again(stage, 'clone');
  for (const thought of THOUGHTS) expect(stage.sent(4)).toContain(thought);
  expect(server.refusals).toEqual([]);
  await checkInvariants(h.database.pool);
  await checkPrompts(h.database.pool);
});

test('another model that takes over gets no attached data, as the manifest says, and the first model gets it again', async () => {
  await using stage = await providerStage([anthropicWire, deepseekWire]);
  const { h, servers } = stage;
  await stage.profile('looker', ANTHROPIC);
  await stage.play('looker');
  await moveTo(stage, DEEPSEEK);
  const other = await again(stage, 'reuse');
  const body = JSON.stringify(servers.get('deepseek')?.requests[0]?.body);
  for (const thought of THOUGHTS) expect(body).not.toContain(thought);
  const { omissions, messages, verified } = await explain(h, other, 1);
  expect(verified).toBe(true);
  expect(omissions.filter(({ reason }) => reason === 'other_model').map(({ card }) => card.type)).toEqual([
    'agent.thought',
    'tool.call',
    'task.deliverable',
  ]);
  expect(messages.some(({ provider_data: data }) => data !== undefined)).toBe(false);
  await moveTo(stage, ANTHROPIC);
  await again(stage, 'reuse');
  const back = JSON.stringify(servers.get('anthropic')?.requests.at(-1)?.body);
  for (const thought of THOUGHTS) expect(back).toContain(thought);
  for (const [, server] of servers) expect(server.refusals).toEqual([]);
  await checkPrompts(h.database.pool);
});

test.each([
  ['a call', 'tool.call', 1],
  ['a result', 'tool.result', 1],
  ['the thought', 'agent.thought', 1],
  ['the call', 'tool.call', 2],
  ['the result', 'tool.result', 2],
])(
  'with %s of its step (%s, step %i) attached data is erased, and so is the model’s reasoning; data of other steps stays',
  async (_what, type, step) => {
    await using stage = await providerStage(deepseekWire);
    const { h, server } = stage;
    await stage.profile('looker', DEEPSEEK);
    await stage.play('looker');
    const [card] = await h.rows<{ id: CardId }>(
      `select c.id from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id
     where c.type = $1 and e.step = $2 order by e.position desc`,
      [type, step],
    );
    const [gone, kept] = step === 1 ? [FIRST, SECOND] : [SECOND, FIRST];
    const outcome = await eraseCards(h.database.pool, [card?.id as CardId], {
      projectId: PROJECT,
      reason: 'asked for',
    });
    expect(outcome).toMatchObject([{ outcome: 'erased' }]);
    expect(await attached(h)).toEqual([
      [step === 1 ? 'tool.call' : 'agent.thought', [kept]],
      ['task.deliverable', [THIRD]],
    ]);
    const left = await h.rows<{ text: string }>('select c::text as text from boxcar.cards c');
    expect(left.filter(({ text }) => text.includes(gone))).toEqual([]);
    server.forget();
    const turnId = await again(stage, 'reuse');
    expect(stage.sent(3)).toContain(kept);
    expect(stage.sent(3)).not.toContain(gone);
    expect(server.refusals).toEqual([]);
    expect(await h.runtime.getTurn(turnId)).toMatchObject({ status: 'success' });
    await checkInvariants(h.database.pool);
  },
);

test('an answer whose calls are no longer all shown as calls is sent without attached data, and the manifest says so', async () => {
  const both: Behave = ({ prompt }) => {
    const hasCalled = JSON.stringify(prompt?.messages ?? []).includes('seen');
    if (hasCalled) return { answer: { text: 'Well.' } };
    const calls = ['look', 'peek'].map((name, index) => ({
      id: `abcdefgh${index}`,
      name,
      arguments: '{"at":"x"}',
    }));
    return { answer: { reasoning: FIRST, calls } };
  };
  await using stage = await providerStage(anthropicWire, { behave: both });
  const { h, server } = stage;
  h.runtime.registerTool({
    name: 'peek',
    description: 'Peeks.',
    input: z.looseObject({}),
    run: () => 'peeked',
  });
  await stage.profile('looker', ANTHROPIC, { tools: ['look', 'peek'] });
  await stage.play('looker');
  expect(stage.sent(1)).toContain(FIRST);
  await moveTo(stage, ANTHROPIC);
  server.forget();
  const turnId = await again(stage, 'reuse');
  expect(server.refusals).toEqual([]);
  expect(stage.sent(2)).not.toContain(FIRST);
  const { omissions, verified } = await explain(h, turnId, 1);
  expect(verified).toBe(true);
  expect(omissions.filter(({ reason }) => reason !== 'bootstrap')).toMatchObject([
    { reason: 'step_split', card: { type: 'tool.call' } },
  ]);
});

test('an agent that gets the steps of another agent does not get the attached data, and its manifest stays short', async () => {
  await using stage = await providerStage(anthropicWire);
  const { h, server } = stage;
  await stage.profile('looker', ANTHROPIC);
  await stage.play('looker');
  const [tape] = await h.rows<{ id: string }>('select output_box_id as id from boxcar.turns');
  const receipt = await h.runtime.submit('delegate_async', {
    target_strategy: 'new',
    target_ref: 'looker',
    instruction: 'Go on.',
    context_box_id: tape?.id ?? '',
  });
  const { turn_id } = z.object({ turn_id: z.string() }).parse(receipt);
  await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
  expect(stage.sent(3)).toContain('I look twice.');
  for (const thought of THOUGHTS) expect(stage.sent(3)).not.toContain(thought);
  const { omissions, verified } = await explain(h, turn_id as TurnId, 1);
  expect(verified).toBe(true);
  expect(omissions.filter(({ reason }) => reason === 'other_agent')).toEqual([]);
  expect(server.refusals).toEqual([]);
  await checkPrompts(h.database.pool);
});

test('attached data is purged with its run', async () => {
  await using stage = await providerStage(anthropicWire);
  const { h } = stage;
  await stage.profile('looker', ANTHROPIC);
  await stage.play('looker');
  expect(await attached(h)).toHaveLength(3);
  const [{ now } = {}] = await h.rows<{ now: Date }>('select clock_timestamp() as now');
  expect(await purgeRuns(h.database.pool, { before: now ?? new Date(0) })).toMatchObject({
    removed: { runs: 1 },
  });
  expect(await h.rows('select from boxcar.cards where provider_data is not null')).toEqual([]);
});

test('a step without text writes only its calls; its reasoning and attached data are stored with the first call', async () => {
  const both: Behave = ({ prompt }) =>
    JSON.stringify(prompt?.messages ?? []).includes('seen')
      ? { answer: { text: 'Well.' } }
      : {
          answer: {
            reasoning: FIRST,
            calls: ['x', 'y'].map((at) => ({
              id: `abcdefgh${at}`,
              name: 'look',
              arguments: JSON.stringify({ at }),
            })),
          },
        };
  await using stage = await providerStage(anthropicWire, { behave: both });
  const { h, server } = stage;
  await stage.profile('looker', ANTHROPIC);
  const turnId = await stage.play('looker');
  const entries = await h.rows(
    `select e.kind, c.type, c.metadata, c.provider_data is not null as has_data, s.thought_card_id = c.id as is_named
     from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id join boxcar.steps s on s.turn_id = e.turn_id and s.step = e.step
     where e.turn_id = $1 and e.step = 1 order by e.position`,
    [turnId],
  );
  const plain = { metadata: {}, has_data: false, is_named: false };
  expect(entries).toMatchObject([
    { kind: 'tool_call', type: 'tool.call', metadata: { reasoning: FIRST }, has_data: true, is_named: true },
    { kind: 'tool_call', type: 'tool.call', ...plain },
    { kind: 'tool_result', type: 'tool.result', has_data: false },
    { kind: 'tool_result', type: 'tool.result', has_data: false },
  ]);
  expect(entries[1]?.metadata).toEqual({});
  expect(stage.sent(1)).toContain(FIRST);
  expect(server.refusals).toEqual([]);
  const agent = (await h.rows<{ id: string }>('select agent_id as id from boxcar.turns'))[0]?.id ?? '';
  const messages = await (await h.runtime.tape({ agent })).messages();
  expect(messages.map(({ role, content, tool_calls }) => [role, content, Array.isArray(tool_calls)])).toEqual(
    [
      ['user', 'Look around.', false],
      ['assistant', '', true],
      ['tool', 'seen x', false],
      ['tool', 'seen y', false],
      ['assistant', 'Well.', false],
    ],
  );
  expect(JSON.stringify(await (await h.runtime.tape({ agent })).fromLastAnchor())).not.toContain(FIRST);
  await checkInvariants(h.database.pool);
  await checkPrompts(h.database.pool);
});

const pages = 6;
/** Reads the pages one after the other, and thinks before each page. */
const reader: Behave = ({ prompt }, index) => {
  const read = JSON.stringify(prompt?.messages ?? []).match(/seen \d/g) ?? [];
  if (index >= pages || read.length >= pages) return { answer: LOOP[2] ?? {} };
  return {
    answer: {
      reasoning: `thought ${index} ${'of many words '.repeat(20)}`,
      calls: [
        { id: `call${index}0000`.slice(0, 9), name: 'look', arguments: JSON.stringify({ at: `${index}` }) },
      ],
    },
  };
};

test('a compaction keeps attached data as long as it keeps the step', async () => {
  await using stage = await providerStage(anthropicWire, { behave: reader });
  const { h, server } = stage;
  await stage.profile('looker', ANTHROPIC, {
    limits: { context_tokens: 1_100, max_steps: 20 },
  });
  const turnId = await stage.play('looker');
  expect(await h.runtime.getTurn(turnId)).toMatchObject({ status: 'success' });
  expect(server.refusals).toEqual([]);
  const anchors = await h.rows(
    "select from boxcar.tape_entries where anchor_name = 'auto_handoff/context_overflow'",
  );
  expect(anchors.length).toBeGreaterThan(0);
  const last = stage.sent(server.requests.length - 1);
  expect(last).toContain('auto_handoff/context_overflow');
  const kept = [...last.matchAll(/thought (\d) of/g)].map(([, number]) => Number(number));
  expect(kept.length).toBeGreaterThan(0);
  expect(kept).not.toContain(0);
  await checkInvariants(h.database.pool);
  await checkPrompts(h.database.pool);
});
