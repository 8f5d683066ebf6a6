/** The place where the view of a turn begins, as its submission, its session and its profile set it. */
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SessionScene, sessionScene } from '../../testing/session-scene.js';

let scene: SessionScene;

beforeAll(async () => {
  scene = await sessionScene();
  await scene.h.runtime.applyProfile({
    name: 'whole',
    instructions: 'You are whole.',
    model: 'scripted:echo',
    tools: ['mark'],
    view: 'full',
  });
});

afterAll(() => scene[Symbol.asyncDispose]());

type View = 'last_anchor' | 'full' | { readonly anchor: string };

const submit = async (agent: string, instruction: string, view?: View): Promise<string> => {
  const args = {
    target_strategy: 'reuse',
    target_ref: agent,
    instruction,
    ...(view === undefined ? {} : { view }),
  };
  return ((await scene.h.runtime.submit('delegate_async', args)) as { turn_id: string }).turn_id;
};

/** The contents of each prompt of an ended turn, each checked against the prompt that was sent. */
async function contentsOf(turnId: string): Promise<readonly (readonly string[])[]> {
  const turn = await scene.h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
  expect(turn.status).toBe('success');
  const prompts: (readonly string[])[] = [];
  const [{ steps } = { steps: 0 }] = await scene.h.rows<{ steps: number }>(
    'select step_count as steps from boxcar.turns where id = $1',
    [turnId],
  );
  expect(steps).toBeGreaterThan(0);
  for (let step = 1; step <= steps; step += 1) {
    const explained = await scene.h.runtime.explainStep(turnId, { step });
    expect(explained).toMatchObject({ verified: true, findings: [] });
    prompts.push(explained.messages.map(({ content }) => content));
  }
  return prompts;
}

const run = async (agent: string, instruction: string, view?: View): Promise<readonly string[]> =>
  (await contentsOf(await submit(agent, instruction, view)))[0] ?? [];

const positionsOf = async (turnId: string) =>
  (
    await scene.h.rows(
      'select own_view_anchor as anchor, own_view_position as "from", format from boxcar.turns where id = $1',
      [turnId],
    )
  )[0];

/** An agent that has ended two phases: its turns `one` and `two`, each followed by an anchor. */
async function conversation() {
  const { agent, agentId, tape } = await scene.parent();
  await run(agent, 'one');
  await tape.handoff('phase', { state: { n: 1 } });
  await run(agent, 'two');
  await tape.handoff('done', { state: { n: 2 } });
  const [, phase] = await tape.query().kinds('anchor').all();
  return { agent, agentId, tape, phase: phase?.position ?? 0 };
}

const anchor = (name: string, state: string): string =>
  `[anchor of agent:operator] [Anchor created: ${name}]: ${state}`;
const parentLine = (): string => 'Parent agent: agent:operator';
const turn = (instruction: string): readonly string[] => [parentLine(), instruction];
const answer = (instruction: string): string => `answer to "${instruction}"`;

describe('a submission’s view', () => {
  test('begins with the last anchor when nothing is set', async () => {
    const { agent } = await conversation();
    expect((await run(agent, 'three')).slice(1)).toEqual([anchor('done', '{"n": 2}'), ...turn('three')]);
  });

  test('with full shows the whole tape with its anchors in place, until a new anchor is written', async () => {
    const { agent } = await conversation();
    const turnId = await submit(agent, 'mark', 'full');
    const [first = [], second = []] = await contentsOf(turnId);
    expect(first.slice(1)).toEqual([
      ...turn('one'),
      answer('one'),
      anchor('phase', '{"n": 1}'),
      ...turn('two'),
      answer('two'),
      anchor('done', '{"n": 2}'),
      ...turn('mark'),
    ]);
    // The anchor that the tool wrote cuts the first step in two, so the step is still visible.
    expect(second).not.toContain(answer('one'));
    expect(second.slice(-3)).toEqual([anchor('marked', '{"summary": "in the middle"}'), ...turn('mark')]);
    expect(await positionsOf(turnId)).toEqual({ anchor: 1, from: 1, format: 29 });
    expect((await run(agent, 'after')).slice(1, 3)).not.toContain(anchor('done', '{"n": 2}'));
  });

  test('with an anchor name begins with the latest anchor of that name', async () => {
    const { agent, phase } = await conversation();
    const turnId = await submit(agent, 'three', { anchor: 'phase' });
    expect((await contentsOf(turnId))[0]?.slice(1)).toEqual([
      anchor('phase', '{"n": 1}'),
      ...turn('two'),
      answer('two'),
      anchor('done', '{"n": 2}'),
      ...turn('three'),
    ]);
    expect(await positionsOf(turnId)).toEqual({ anchor: phase, from: phase, format: 29 });
    expect((await run(agent, 'four')).slice(1, 2)).toEqual([anchor('done', '{"n": 2}')]);
  });

  test('with the name of an anchor that divided a step shows the step before the anchor', async () => {
    const { agent, tape } = await scene.parent();
    await run(agent, 'mark');
    await tape.handoff('later');
    const prompt = await run(agent, 'go', { anchor: 'marked' });
    const at = prompt.indexOf(anchor('marked', '{"summary": "in the middle"}'));
    expect(prompt.slice(1, at)).toEqual(['[context]', '', 'null']);
    expect(prompt.slice(at + 1)).toEqual([answer('mark'), anchor('later', 'null'), ...turn('go')]);
  });

  test('is fixed at the submission: entries of an earlier turn are shown in their place', async () => {
    const { agent, tape } = await conversation();
    const open = scene.shut();
    const before = await submit(agent, 'work');
    const queued = await submit(agent, 'go', { anchor: 'phase' });
    await tape.handoff('phase', { state: { n: 3 } });
    open();
    await contentsOf(before);
    const [prompt = []] = await contentsOf(queued);
    expect(prompt[1]).toBe(anchor('phase', '{"n": 1}'));
    expect(prompt).toContain(anchor('phase', '{"n": 3}'));
  });

  test('with the name of a missing anchor is refused as not_found, and nothing is written', async () => {
    const { agent, agentId } = await conversation();
    const count = async () =>
      (await scene.h.rows('select from boxcar.turns where agent_id = $1', [agentId])).length;
    const before = await count();
    const view = { anchor: 'nowhere' };
    const refusal = {
      code: 'not_found',
      message: expect.stringContaining("view: Anchor 'nowhere' was not found."),
    };
    await expect(submit(agent, 'go', view)).rejects.toMatchObject({
      ...refusal,
      details: { field: 'arguments.view' },
    });
    const tasks = [
      { target_strategy: 'reuse', target_ref: agent, instruction: 'fine', view: 'full' },
      { target_strategy: 'new', target_ref: 'lead', instruction: 'go', view },
    ];
    await expect(scene.h.runtime.submit('fork_join', { tasks, wait: false })).rejects.toMatchObject({
      ...refusal,
      details: { field: 'arguments.tasks.1.view' },
    });
    await expect(submit(agent, 'go', 'all' as View)).rejects.toMatchObject({ code: 'bad_request' });
    expect(await count()).toBe(before);
  });

  test('can also be set by a model, as an argument of a delegation', async () => {
    const { agent } = await conversation();
    const { agent: asking } = await scene.parent();
    const args = {
      target_strategy: 'reuse',
      target_ref: agent,
      instruction: 'asked',
      wait: true,
      view: 'full',
    };
    const turnId = await submit(asking, `call delegate_async ${JSON.stringify(args)}`);
    expect((await contentsOf(turnId)).at(-1)?.at(-1)).toContain('answer to');
    const [child] = await scene.h.rows<{ id: string }>(
      'select id from boxcar.turns where parent_turn_id = $1',
      [turnId],
    );
    expect((await contentsOf(child?.id ?? ''))[0]).toContain(answer('one'));
  });
});

test('can be set to full by a profile; the setting of a submission or a session has precedence', async () => {
  const agent = scene.fresh();
  await scene.h.runtime.submit('provision_agent', {
    action: 'create',
    agent_id: agent,
    profile_name: 'whole',
  });
  const tape = await scene.h.runtime.tape({ agent });
  await run(agent, 'one');
  await tape.handoff('phase');
  expect(await run(agent, 'two')).toContain(answer('one'));
  expect(await run(agent, 'three', 'last_anchor')).not.toContain(answer('one'));
  const { name } = await tape.forkSession(scene.fresh());
  expect(await run(name, 'go')).not.toContain(answer('one'));
});

describe('a session’s view', () => {
  test('begins with its fork point unless a turn says otherwise', async () => {
    const { tape } = await conversation();
    const intention = { next_steps: 'go on', context_summary: 'all is well' };
    const { name } = await tape.forkSession(scene.fresh(), { fromAnchor: 'phase', intention });
    expect(await run(name, 'asked')).toContain(anchor('phase', '{"n": 1}'));
    const last = await run(name, 'last', 'last_anchor');
    expect(last[1]).toContain('[Anchor created: intention]');
    expect(last).toContain(answer('asked'));
    expect(await run(name, 'again')).toContain(anchor('phase', '{"n": 1}'));
    expect(await run(name, 'whole', 'full')).toContain('one');
  });

  test('can begin with the first entry of its tape, until it writes an anchor', async () => {
    const { tape } = await conversation();
    const { name, tape: own } = await tape.forkSession(scene.fresh(), { view: 'full' });
    expect(await run(name, 'asked')).toEqual(
      expect.arrayContaining(['one', anchor('done', '{"n": 2}'), 'asked']),
    );
    await own.handoff('own');
    expect((await run(name, 'more')).slice(1)).toEqual([anchor('own', 'null'), ...turn('more')]);
    await expect(tape.forkSession(scene.fresh(), { view: 'all' as 'full' })).rejects.toMatchObject({
      code: 'bad_request',
    });
  });
});

test('a session shows nothing from before its fork that its maker may not read, whatever view a turn asks for', async () => {
  const { agent, tape } = await conversation();
  const { agent: reader } = await scene.parent();
  await scene.h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: reader, mode: 'read' });
  const foreign = await scene.h.runtime.tape({ agent }, { as: reader });
  const session = await foreign.forkSession(scene.fresh());
  const refused = { code: 'box_not_authorized', details: { context_box_id: expect.any(String) } };
  const go = (view?: View, sourceAgentId = reader) =>
    scene.h.runtime.submit(
      'delegate_async',
      {
        target_strategy: 'reuse',
        target_ref: session.name,
        instruction: 'go',
        ...(view === undefined ? {} : { view }),
      },
      { sourceAgentId },
    ) as Promise<{ turn_id: string }>;
  for (const view of ['full', { anchor: 'phase' }] as const)
    for (const source of [reader, 'operator']) await expect(go(view, source)).rejects.toMatchObject(refused);
  // The reader owns the session, but cannot use it to see more.
  const own = await scene.h.runtime.tape({ agent: session.name }, { as: reader });
  await expect(own.forkSession(scene.fresh(), { view: 'full' })).rejects.toMatchObject(refused);
  for (const view of [undefined, 'last_anchor', { anchor: 'done' }] as const)
    expect((await contentsOf((await go(view)).turn_id))[0]).not.toContain('two');
  await own.forkSession(scene.fresh());
  await (await scene.h.runtime.tape({ agent: session.name }, { as: session.agentId })).forkSession(
    scene.fresh(),
  );
  // Granted contexts are shown.
  const boxes = await scene.h.rows<{ id: string }>(
    `select e.payload->'data'->>'context_box_id' as id from boxcar.tape_entries e where e.box_id = $1 and e.payload->>'name' = 'turn.started'`,
    [tape.boxId],
  );
  expect(boxes).toHaveLength(2);
  for (const { id } of boxes)
    await scene.h.runtime.submit('grant_box', { box_id: id, grantee: reader, mode: 'read' });
  expect((await contentsOf((await go('full')).turn_id))[0]).toEqual(expect.arrayContaining(['one', 'two']));
});

test('a clone of a session also shows nothing from before its fork that the session’s maker may not read', async () => {
  const { agent, tape } = await conversation();
  const { agent: reader } = await scene.parent();
  await scene.h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: reader, mode: 'read' });
  const foreign = await scene.h.runtime.tape({ agent }, { as: reader });
  const cloned = async (session: string, history: 'view' | 'full', sourceAgentId: string) => {
    const args = { target_strategy: 'clone', target_ref: session, instruction: 'cloned', history };
    const { turn_id } = (await scene.h.runtime.submit('delegate_async', args, { sourceAgentId })) as {
      turn_id: string;
    };
    return (await contentsOf(turn_id))[0] ?? [];
  };
  const ofItself = async (session: string, history: 'view' | 'full') => {
    const args = { target_strategy: 'clone', target_ref: session, instruction: 'cloned', history };
    const asked = await scene.run(session, `call delegate_async ${JSON.stringify(args)}`);
    await contentsOf(asked.turn_id);
    const [child] = await scene.h.rows<{ id: string }>(
      'select id from boxcar.turns where parent_turn_id = $1',
      [asked.turn_id],
    );
    return (await contentsOf(child?.id ?? ''))[0] ?? [];
  };
  // The reader may read the contexts of its own turns. A session that it forks from its session may read those that were shown there.
  const first = await foreign.forkSession(scene.fresh());
  await scene.runToEnd(first.name, 'since');
  const held = await scene.h.runtime.tape({ agent: first.name }, { as: reader });
  const second = await held.forkSession(scene.fresh());
  for (const { name } of [first, second])
    for (const history of ['view', 'full'] as const)
      for (const shown of [await cloned(name, history, reader), await ofItself(name, history)]) {
        expect(shown).toContain('since');
        for (const hidden of ['one', 'two']) expect(shown).not.toContain(hidden);
        expect(shown.includes(answer('one'))).toBe(history === 'full');
      }
  // All granted contexts are shown, and so are all contexts of a session of the operator.
  const made = await tape.forkSession(scene.fresh());
  expect(await ofItself(made.name, 'full')).toEqual(expect.arrayContaining(['one', 'two']));
  const boxes = await scene.h.rows<{ id: string }>(
    `select e.payload->'data'->>'context_box_id' as id from boxcar.tape_entries e where e.box_id = $1 and e.payload->>'name' = 'turn.started'`,
    [tape.boxId],
  );
  for (const { id } of boxes)
    await scene.h.runtime.submit('grant_box', { box_id: id, grantee: reader, mode: 'read' });
  for (const shown of [await cloned(first.name, 'full', reader), await ofItself(first.name, 'full')])
    expect(shown).toEqual(expect.arrayContaining(['one', 'two', 'since']));
});

test('a clone sees the view of its source: the view of a current turn, and afterwards the view of the tape', async () => {
  const { agent } = await conversation();
  const clone = async () => {
    const args = { target_strategy: 'clone', target_ref: agent, instruction: 'cloned' };
    const { turn_id } = (await scene.h.runtime.submit('delegate_async', args)) as { turn_id: string };
    return turn_id;
  };
  const open = scene.shut();
  const turnId = await submit(agent, 'work', 'full');
  await waitFor(
    async () =>
      (await scene.h.rows("select from boxcar.turns where id = $1 and status = 'running'", [turnId]))
        .length === 1,
    { message: 'the turn runs' },
  );
  const early = await clone();
  open();
  await contentsOf(turnId);
  expect((await contentsOf(early))[0]).toContain(answer('one'));
  expect((await contentsOf(await clone()))[0]).not.toContain(answer('one'));
});

test('views of a tape that a worker has kept are used only for the same beginning', async () => {
  const { agent, tape } = await scene.parent();
  const long = 'x'.repeat(20_000);
  for (const n of [1, 2]) {
    await tape.append([{ kind: 'message', content: `${n} ${long}` }]);
    await run(agent, `before ${n}`);
  }
  await tape.handoff('phase');
  for (const n of [3, 4, 5]) await tape.append([{ kind: 'message', content: `${n} ${long}` }]);
  const heads = async (view?: View) =>
    (await run(agent, 'go', view)).filter((text) => text.endsWith(long)).map((text) => text[0]);
  for (const _round of [1, 2]) {
    expect(await heads()).toEqual(['3', '4', '5']);
    expect(await heads('full')).toEqual(['1', '2', '3', '4', '5']);
    expect(await heads('full')).toEqual(['1', '2', '3', '4', '5']);
  }
});
