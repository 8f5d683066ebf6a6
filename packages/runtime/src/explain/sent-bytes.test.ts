/**
 * `explain`, `why` and `preview` show, byte by byte, the request that a provider on loopback received:
 * docs/reference/explain.md.
 */
import { WIRES } from '@boxcar/llm/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { checkInvariants } from '../testing/invariants.js';
import { type Scene, sentScene } from '../testing/sent-scene.js';
import { type SentStage, sentStage } from '../testing/sent-stage.js';

let stage: SentStage;

beforeAll(async () => {
  stage = await sentStage();
});

afterAll(async () => {
  await checkInvariants(stage.h.database.pool);
  await stage[Symbol.asyncDispose]();
});

const FIELDS = [{ name: 'answer', type: 'string', description: 'In one word.' }];
const clone = (s: Scene, target_ref: string, rest = {}) =>
  s.call('delegate_async', {
    target_strategy: 'clone',
    target_ref,
    instruction: s.plan([[s.look()]]),
    wait: true,
    ...rest,
  });
const task = (s: Scene, target_ref: string, rest = {}) => ({
  target_strategy: 'new',
  target_ref,
  instruction: s.plan([]),
  ...rest,
});
const handoff = (s: Scene, name: string) =>
  s.call('tape.handoff', { name, summary: s.word('so far'), next_steps: s.word('go on') });

/**
 * An agent with three turns, an anchor of its own between the steps of the second turn, and anchors of another writer
 * between the turns.
 */
async function talked(s: Scene, profile = 'lead'): Promise<string> {
  const agent = await s.agent(profile);
  await s.run(agent, [[s.look()]]);
  await s.anchor(agent, 'phase');
  await s.note(agent);
  await s.run(agent, [[s.look(), handoff(s, 'own')], [s.look()]]);
  await s.anchor(agent, 'done');
  await s.run(agent);
  return agent;
}

/** The same agent; only the requests after this are compared. */
async function talker(s: Scene, profile?: string): Promise<string> {
  const agent = await talked(s, profile);
  s.skip();
  return agent;
}

async function forked(s: Scene, options: Parameters<Awaited<ReturnType<Scene['tape']>>['forkSession']>[1]) {
  const agent = await talker(s);
  const { name } = await (await s.tape(agent)).forkSession(s.fresh('session'), options);
  return { agent, name };
}

type Play = (s: Scene) => Promise<unknown>;

/** Each scene is played on one wire format, the next scene on the next format. A new scene is a line here. */
const SCENES: Readonly<Record<string, Play>> = {
  'new: steps with several calls': (s) =>
    s.launch('lead', [
      [s.look(), s.look()],
      [s.look(), s.look(), s.look()],
    ]),
  'new: no tools': (s) => s.launch('plain'),
  'new: a context of several types': async (s) =>
    s.launch('lead', [[s.look()]], {
      context_box_id: [await s.box('note', 'task.context'), await s.box('task.input')],
    }),
  'new: a tape that is inherited': async (s) =>
    s.launch('lead', [[s.look()]], { context_box_id: (await s.tape(await talker(s))).boxId }),
  'new: result fields, which bind': (s) =>
    s.launch('lead', [[s.look()], [s.call('submit_result', { result: { answer: s.word('this') } })]], {
      result_fields: FIELDS,
    }),
  'new: result fields with a profile that lists no tool': (s) =>
    s.launch('plain', [[s.call('submit_result', { result: { answer: s.word('this') } })]], {
      result_fields: FIELDS,
    }),
  'new: a result that does not fit, and a reminder': (s) =>
    s.launch(
      'lead',
      [
        [s.call('submit_result', { result: { other: 1 } })],
        [],
        [s.call('submit_result', { result: { answer: s.word('this') } })],
      ],
      { result_fields: FIELDS },
    ),
  'new: a budget that cuts': async (s) =>
    s.launch(
      'lead',
      [],
      { context_box_id: await s.box(...Array.from({ length: 12 }, () => 'note')) },
      { budget_tokens: 150, budget_strategy: 'newest' },
    ),
  'new: a budget with a digest': async (s) =>
    s.launch(
      'lead',
      [],
      { context_box_id: [await s.box('note'), await s.long(2_000), await s.long(2_000)] },
      { budget_tokens: 400, budget_strategy: 'summary' },
    ),
  'new: few steps': (s) => s.launch('hasty', [[s.look()], [s.look()]]),
  'a call that fails, and a tool that nobody has': (s) =>
    s.launch('lead', [[s.call('look', { no: 1 }), s.call('nobody', { at: s.word('x') }), s.look()]]),
  'reuse: a conversation': async (s) => {
    const agent = await s.agent();
    for (const steps of [[[s.look()]], [[s.look(), s.look()]], []]) await s.run(agent, steps);
  },
  'reuse: anchors, own and of others': (s) => talked(s),
  'reuse: a context beside the tape': async (s) =>
    s.run(await talker(s), [[s.look()]], { context_box_id: await s.box('note') }),
  'reuse: by another model than before': async (s) => {
    const profile_name = s.fresh('moving');
    const apply = (other: string) =>
      s.h.runtime.applyProfile({
        name: profile_name,
        instructions: s.word('You move.'),
        model: other,
        tools: ['look'],
      });
    await apply('openai:gpt-5');
    const args = { action: 'ensure', agent_id: s.fresh('agent'), profile_name };
    await s.h.runtime.submit('provision_agent', args);
    await s.run(args.agent_id, [[s.look()]]);
    await apply('deepseek:deepseek-v4-pro');
    await s.h.runtime.submit('provision_agent', { ...args, profile_version: 'current' });
    await s.run(args.agent_id, [[s.look()]]);
  },
  'reuse: result fields of one turn, not of the next': async (s) => {
    const agent = await s.agent();
    await s.run(agent, [[s.call('submit_result', { result: { answer: s.word('this') } })]], {
      result_fields: FIELDS,
    });
    await s.run(agent, [[s.look()]]);
  },
  'view: full': async (s) => s.run(await talker(s), [[handoff(s, 'cut')], [s.look()]], { view: 'full' }),
  'view: an anchor of another': async (s) =>
    s.run(await talker(s), [[s.look()]], { view: { anchor: 'phase' } }),
  'view: an anchor of its own, written in a step': async (s) =>
    s.run(await talker(s), [[s.look()]], { view: { anchor: 'own' } }),
  'view: full by profile': async (s) => s.run(await talker(s, 'whole'), [[s.look()]]),
  'clone: of a conversation': async (s) => s.clone(await talker(s), [[s.look()]]),
  'clone: of all': async (s) => s.clone(await talker(s), [[s.look()]], { history: 'full' }),
  'clone: by a turn of itself': async (s) => {
    const agent = await talker(s);
    await s.run(agent, [[s.look()], [clone(s, agent), s.look()], [s.look()]]);
  },
  'clone: of a clone of a clone': async (s) => {
    let agent = await talker(s);
    for (let n = 0; n < 3; n += 1) agent = (await s.clone(agent, [[s.look()]])).agent_id;
    await s.run(agent, [[s.look()]]);
  },
  'clone: of a clone of a clone, of all': async (s) => {
    let agent = await talker(s);
    for (let n = 0; n < 3; n += 1) agent = (await s.clone(agent, [[s.look()]], { history: 'full' })).agent_id;
  },
  'clone: a box names cards that its history has': async (s) => {
    const agent = await s.agent();
    const context_box_id = await s.box('note', 'note');
    await s.run(agent, [[s.look()]], { context_box_id });
    await s.clone(agent, [[s.look()]], { context_box_id });
  },
  'clone: with result fields, of one that had some': async (s) => {
    const agent = await s.agent();
    const submit = () => [[s.call('submit_result', { result: { answer: s.word('this') } })]];
    await s.run(agent, submit(), { result_fields: FIELDS });
    await s.clone(agent, submit(), { result_fields: FIELDS });
    await s.clone(agent);
  },
  'fork: merged': async (s) => {
    const agent = await talker(s);
    await using fork = await (await s.tape(agent)).forkTape();
    await fork.tape.append([{ kind: 'message', content: s.word('in the fork') }]);
    await fork.merge();
    await s.run(agent, [[s.look()]]);
  },
  'fork: an anchor of it, merged': async (s) => {
    const agent = await talker(s);
    await using fork = await (await s.tape(agent)).forkTape();
    await fork.tape.handoff('forked', { state: { summary: s.word('in the fork') } });
    await fork.merge();
    await s.run(agent, [[s.look()]]);
  },
  'session: from where its parent is': async (s) => s.run((await forked(s, {})).name, [[s.look()]]),
  'session: from an anchor, with an intention': async (s) => {
    const intention = { next_steps: s.word('next'), context_summary: s.word('until now') };
    const { name } = await forked(s, { fromAnchor: 'phase', intention });
    await s.run(name, [[s.look()]]);
    await s.anchor(name, 'later');
    await s.run(name, [[s.look()]]);
  },
  'session: in full, and cloned': async (s) => {
    const { name } = await forked(s, { view: 'full' });
    await s.run(name, [[s.look()]]);
    await s.clone(name, [[s.look()]]);
  },
  'session: last anchor; its parent goes on': async (s) => {
    const { agent, name } = await forked(s, { view: 'last_anchor' });
    await s.run(agent, [[s.look()]]);
    await s.run(name, [[s.look()]]);
  },
  'session by name: resumed from an anchor': async (s) => {
    const ref = { workspace: '/srv/demo', session: s.fresh('session'), profile_name: s.profile('lead') };
    await s.run(ref, [[s.look()], [handoff(s, 'plan')]]);
    await s.run(ref, [[s.look(), handoff(s, 'built')]]);
    await s.run(ref, [[s.look()]], { view: { anchor: 'plan' } });
  },
  'expert: asked with history': async (s) => {
    const ask = s.call('ask_expert', {
      expert_profile: s.profile('plain'),
      question: s.plan([]),
      include_history: true,
    });
    await s.run(await talker(s), [[s.look()], [ask, s.look()]]);
  },
  'expert: asked without, twice in one step': async (s) => {
    const ask = () => s.call('ask_expert', { expert_profile: s.profile('plain'), question: s.plan([]) });
    await s.launch('lead', [[ask(), ask()], [s.look()]]);
  },
  'fork_join: its results': async (s) => {
    const tasks = [
      task(s, s.profile('lead'), { instruction: s.plan([[s.look()]]) }),
      task(s, s.profile('plain')),
      task(s, s.profile('lead'), {
        result_fields: FIELDS,
        instruction: s.plan([[s.call('submit_result', { result: { answer: s.word('this') } })]]),
      }),
    ];
    await s.launch('lead', [[s.call('fork_join', { tasks })], [s.look()]]);
  },
  'fork_join: clones of the caller': async (s) => {
    const agent = await talker(s);
    const tasks = [0, 1].map(() => task(s, agent, { target_strategy: 'clone' }));
    await s.run(agent, [[s.look()], [s.call('fork_join', { tasks })]]);
  },
  'fork_join: a child with a context': async (s) => {
    const context_box_id = await s.box('note', 'note');
    const tasks = [0, 1].map(() => task(s, s.profile('plain'), { context_box_id }));
    await s.submit('fork_join', { tasks, wait: true });
  },
  'context handoff: to another agent': async (s) => {
    const target_ref = await s.agent('plain');
    const args = {
      target_ref,
      reason: s.word('why'),
      summary: s.word('what'),
      intention: { next_steps: s.word('next') },
    };
    await s.run(await talker(s), [
      [s.look()],
      [s.call('context_handoff', { ...args, wait: true })],
      [s.look()],
    ]);
  },
  'context handoff: of all that it owns': async (s) => {
    const target_ref = await s.agent();
    await s.run(await talker(s), [
      [
        s.call('context_handoff', {
          target_ref,
          reason: s.word('why'),
          summary: s.word('what'),
          ownership: 'transfer',
        }),
      ],
    ]);
  },
  'compaction: results became references': (s) =>
    s.launch('tight', [
      [s.call('read', { length: 2_000 })],
      [s.call('read', { length: 60_000 })],
      [s.look()],
    ]),
  'compaction: the next turn, and a clone': async (s) => {
    const agent = await s.agent('tight');
    await s.run(agent, [[s.call('read', { length: 40_000 })], [s.look()]]);
    await s.run(agent, [[s.look()]]);
    await s.clone(agent, [[s.look()]]);
  },
  'compaction: a summary of many turns': async (s) => {
    const agent = await s.agent('tight');
    for (let n = 0; n < 5; n += 1) await s.run(agent, [[s.call('read', { length: 3_500 })]]);
    await s.clone(agent);
  },
  'compaction: an inherited context became references': async (s) =>
    s.launch('tight', [[s.look()]], {
      context_box_id: [await s.long(12_000), await s.box('note'), await s.long(9_000)],
    }),
  'compaction: a reminder that the context is nearly full': async (s) =>
    s.launch('near', [], { context_box_id: await s.long(12_900) }),
  'compaction: the provider says that it is too long': async (s) => {
    const agent = await s.agent();
    await s.run(agent, [[s.call('read', { length: 20_000 })], [s.call('overflow', {}), s.look()]]);
    await s.run(agent);
  },
  'expand: what was left out': async (s) => {
    const { turn_id, agent_id } = await s.launch('tight', [[s.call('read', { length: 40_000 })], [s.look()]]);
    await s.run(agent_id, [[s.call('expand', { card_id: await s.leftOut(turn_id) })], [s.look()]]);
  },
  'erased: cards of an earlier turn': async (s) => {
    const agent = await talker(s);
    await s.run(agent, [[s.look(), s.look()]]);
    await s.check();
    await s.erase(agent, 'tool.result', 'task.instruction');
    await s.run(agent, [[s.look()]], { view: 'full' });
    await s.clone(agent);
  },
  'selector: the entries of the turn alone': async (s) => {
    const agent = await talker(s);
    const view = { selector: 'own' };
    await s.run(agent, [[s.look(), s.look()], [s.look()]], { view });
    await s.run(agent, [[s.look()]], { view: { ...view, from: 'full' } });
    await s.run(agent, [[s.look()]]);
  },
};

const scenes = Object.entries(SCENES).map(([name, play], index) => ({
  name,
  play,
  wire: WIRES[index % WIRES.length] ?? WIRES[0],
}));

test.each(scenes)('$name ($wire.provider)', async ({ play, wire }) => {
  if (wire === undefined) throw new Error('no wire');
  const scene = sentScene(stage, wire);
  await play(scene);
  expect(await scene.check()).toBeGreaterThan(0);
});

/**
 * The cases that the scenes must cover: reasons of omissions, rules of packing, entries of tapes, notices, fixed words.
 */
const COVERED = [
  ...['budget', 'referenced', 'other_model', 'other_agent', 'bootstrap'].map((reason) => `omitted ${reason}`),
  ...['pack_arguments', 'inherit', 'parent', 'digest', 'snapshot'].map((rule) => `context ${rule}`),
  ...['message', 'anchor', 'tool_call', 'tool_result'].map((entry) => `tape ${entry}`),
  ...['context', 'steps_left', 'reminder'].map((notice) => `card notice ${notice}`),
  ...['context', 'continue'].map((notice) => `notice ${notice}`),
  ...['placeholder_tool', 'filler', 'joined', 'cache_mark', 'call_id', 'tool_name', 'left_out'].map(
    (kind) => `wire ${kind}`,
  ),
];

test('the scenes cover every case that they are meant to cover', () => {
  expect([...stage.seen].toSorted()).toEqual(expect.arrayContaining(COVERED));
});
