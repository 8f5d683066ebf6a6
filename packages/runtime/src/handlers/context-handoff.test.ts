import type { BoxId, CardId, TurnId } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  ANYONE,
  handoffStage,
  INTENTION,
  type Receipt,
  refTo,
  refusal,
  WHY,
} from '../testing/handoff-stage.js';
import type { Harness } from '../testing/harness.js';
import { untilSettled } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

const {
  open,
  close,
  submit,
  handOff,
  end,
  run,
  agent,
  promptOf,
  shownTool,
  grantsTo,
  cardOf,
  headOf,
  tape,
  anchor,
  cast,
} = handoffStage();
let h: Harness;

// The file uses one database: each test has its own agents.
beforeAll(async () => {
  h = await open();
});

afterAll(close);

describe('context_handoff from a turn', () => {
  test('gives the target the message, the caller’s tape up to now and a turn, and leaves out the open call', async () => {
    await h.profile('security', [{ say: 'looked at {{instruction}}' }]);
    await h.profile(
      'worker',
      [
        { say: 'looking', calls: [{ tool: 'look', arguments: { at: 'auth.py' } }] },
        {
          calls: [
            { tool: 'context_handoff', arguments: { target_ref: 'security', ...WHY, intention: INTENTION } },
          ],
        },
        { say: 'handed over {{results/context_handoff/turn_id}}' },
      ],
      { tools: ['look', 'context_handoff'], ...ANYONE },
    );
    const first = await run('worker', 'find the bug');
    const source = await end(first.turn_id);
    const turnId = String(source.result).slice('handed over '.length) as TurnId;
    const result = await end(turnId);
    expect(result).toMatchObject({ status: 'success', result: 'looked at Review auth.py' });

    const [turn] = await h.rows<{
      parent_turn_id: string;
      depth: number;
      primitive: string;
      context_box_id: BoxId;
    }>('select parent_turn_id, depth, primitive, context_box_id from boxcar.turns where id = $1', [turnId]);
    expect(turn).toMatchObject({ parent_turn_id: first.turn_id, depth: 1, primitive: 'context_handoff' });
    const [{ id: cardId } = { id: '' as CardId }] = await h.rows<{ id: CardId }>(
      'select card_ids[1] as id from boxcar.boxes where id = $1',
      [turn?.context_box_id],
    );
    const card = await cardOf(cardId);
    const [grant] = await grantsTo(result.agent_id, first.output_box_id);
    expect(grant).toEqual({ mode: 'read', upto_position: expect.any(Number), source: `card:${cardId}` });
    const ref = `tape://default/${first.output_box_id}/entry/${grant?.upto_position}`;
    expect(card).toEqual({
      type: 'context_handoff',
      role: 'user',
      data: {
        type: 'context_handoff',
        from: `agent:${first.agent_id}`,
        to: `agent:${result.agent_id}`,
        timestamp: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/),
        content: { ...WHY, tape_ref: ref, intention: INTENTION, ownership: 'share' },
      },
    });
    expect(promptOf(turnId)).toEqual([
      'system: You are security.',
      `user: [inherited] Parent agent: agent:operator`,
      'user: find the bug',
      'assistant: looking',
      `user: [agent ${first.agent_id} called look] {"at":"auth.py"}`,
      `user: [result of look for agent ${first.agent_id}: success] {"line":45}`,
      `user: Parent agent: ${first.agent_id}`,
      `user: ${JSON.stringify(card.data)}`,
      'user: Review auth.py',
    ]);
  });

  test('after a handoff of the kernel contains the steps that the handoff has kept', async () => {
    await h.profile('aid', [{ say: 'aided' }]);
    await h.profile(
      'swamped',
      [
        { say: 'word '.repeat(12_000), calls: [{ tool: 'look', arguments: { at: 'all' } }] },
        { say: 'the step that is kept', calls: [{ tool: 'look', arguments: { at: 'main.py' } }] },
        {
          overflow: true,
          calls: [{ tool: 'context_handoff', arguments: { target_ref: 'aid', ...WHY, wait: true } }],
        },
        { say: '{{results/context_handoff/turn_id}}' },
      ],
      { tools: ['look', 'context_handoff'], ...ANYONE },
    );
    const first = await run('swamped');
    const { status, result } = await end(first.turn_id);
    expect(status).toBe('success');
    const prompt = promptOf(result as TurnId);
    const names = prompt.map((text) => text.slice(0, 60));
    expect(names).toContainEqual(expect.stringContaining('[anchor of the kernel] [Anchor created: aut'));
    expect(prompt).toContain('assistant: the step that is kept');
    expect(prompt).toContain(`user: [result of look for agent ${first.agent_id}: success] {"line":45}`);
  });

  test('is shown to models with the fields of the message, and has the limits of delegations', async () => {
    const handing = (rest: object = {}) => ({
      calls: [{ tool: 'context_handoff', arguments: { target_ref: 'target', ...WHY, ...rest } }],
    });
    const code = { say: '{{results/context_handoff/error/code}}' };
    const tools = ['context_handoff'];
    const target_profiles = ['target'];
    await h.profile('deep', [handing({ wait: true }), code], {
      tools,
      delegation_policy: { target_profiles },
    });
    await h.profile('barred', [handing(), code], { tools, delegation_policy: { target_profiles: [] } });
    await h.profile('poor', [handing({ budget: { turns: 0 } }), code], { tools, ...ANYONE });
    await h.profile(
      'timed',
      [handing({ deadline_seconds: 60, priority: 7 }), { say: '{{results/context_handoff/turn_id}}' }],
      {
        tools,
        ...ANYONE,
      },
    );
    const resultOf = async (profile: string) => (await end((await run(profile)).turn_id)).result;
    const before = await rowCounts(h.database.pool);
    await h.database.pool.query(
      `update boxcar.projects set limits = limits || '{"max_depth": 0}' where name = 'default'`,
    );
    expect(await resultOf('deep')).toBe('depth_exceeded');
    await h.database.pool.query(
      `update boxcar.projects set limits = limits - 'max_depth' where name = 'default'`,
    );
    expect(await resultOf('barred')).toBe('delegation_denied');
    expect(await resultOf('poor')).toBe('bad_request');
    const { grants } = await rowCounts(h.database.pool);
    expect(grants).toBe(before.grants);

    const turnId = (await resultOf('timed')) as TurnId;
    const [turn] = await h.rows(
      "select priority, deadline_at between created_at + interval '59 s' and created_at + interval '61 s' as is_timed from boxcar.turns where id = $1",
      [turnId],
    );
    expect(turn).toEqual({ priority: 7, is_timed: true });
    const shown = shownTool('context_handoff');
    expect(shown?.parameters).toMatchObject({
      type: 'object',
      required: ['target_ref', 'reason', 'summary'],
      properties: {
        tape_ref: { type: 'string' },
        ownership: { enum: ['share', 'transfer'] },
        intention: {
          required: ['next_steps'],
          properties: { next_steps: { type: 'string' }, context_summary: { type: 'string' } },
        },
      },
    });
  });

  test('with wait answers with the target’s result, and refuses an agent that waits for the caller', async () => {
    await h.profile(
      'expert',
      [
        {
          calls: [
            { tool: 'context_handoff', arguments: { target_ref: '{{instruction}}', ...WHY, wait: true } },
          ],
        },
        { say: '{{results/context_handoff/error/code}}' },
      ],
      { tools: ['context_handoff'], ...ANYONE },
    );
    await h.profile(
      'lead',
      [
        {
          calls: [
            {
              tool: 'context_handoff',
              arguments: { target_ref: 'expert', ...WHY, wait: true, intention: { next_steps: 'lead-1' } },
            },
          ],
        },
        { say: 'told: {{results/context_handoff/result}}' },
      ],
      { tools: ['context_handoff'], ...ANYONE },
    );
    await agent('lead-1', 'lead');
    expect(
      await submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: 'lead-1',
        instruction: 'go',
        wait: true,
      }),
    ).toMatchObject({ status: 'success', result: 'told: delegation_cycle' });
  });
});

describe('context_handoff by reference', () => {
  test('of an entry contains the last anchor up to that entry; the card keeps the reference, and the right ends there', async () => {
    const { source, head } = await cast();
    const first = await anchor(source.output_box_id, 'phase/one', { goal: 'api' });
    const second = await anchor(source.output_box_id, 'phase/two', { goal: 'ui' });
    await anchor(source.output_box_id, 'phase/three', { goal: 'later' });
    expect(first).toBe(head + 1);
    const ref = refTo(source.output_box_id, `entry/${second}`);
    const made = await handOff({ target_ref: 'target', tape_ref: ref });
    const result = await end(made.turn_id);
    const card = await cardOf(made.card_id);
    expect(card.data.content).toEqual({ ...WHY, tape_ref: ref, ownership: 'share' });
    expect(promptOf(made.turn_id)).toEqual([
      'system: You are target.',
      `user: [anchor of agent:operator] [Anchor created: phase/two]: {"goal": "ui"}`,
      'user: Parent agent: agent:operator',
      `user: ${JSON.stringify(card.data)}`,
    ]);
    expect(await grantsTo(result.agent_id, source.output_box_id)).toEqual([
      { mode: 'read', upto_position: second, source: `card:${made.card_id}` },
    ]);
  });

  test('of an anchor contains the latest anchor of that name up to the current head, which the card names', async () => {
    const { source } = await cast();
    await anchor(source.output_box_id, 'phase/one', { n: 1 });
    await anchor(source.output_box_id, 'phase/one', { n: 2 });
    const head = (await anchor(source.output_box_id, 'phase/two', { n: 3 })) + 1;
    const ref = refTo(source.agent_id, 'anchor/phase%2Fone');
    const made = await handOff({ target_ref: 'target', tape_ref: ref });
    await end(made.turn_id);
    expect(promptOf(made.turn_id).slice(1, 3)).toEqual([
      `user: [anchor of agent:operator] [Anchor created: phase/one]: {"n": 2}`,
      `user: [anchor of agent:operator] [Anchor created: phase/two]: {"n": 3}`,
    ]);
    const frozen = `${ref}?head=${head}`;
    expect((await cardOf(made.card_id)).data.content).toMatchObject({ tape_ref: frozen });
    // The reference in the card resolves to the same place after the tape has grown.
    await anchor(source.output_box_id, 'phase/one', { n: 4 });
    expect(await h.runtime.resolveTapeRef(frozen)).toEqual({
      ref: frozen,
      boxId: source.output_box_id,
      position: head - 3,
      start: head - 3,
      head,
      isArchived: false,
    });
  });

  test('of the whole tape shows the instructions of its turns at their places', async () => {
    const { source, head } = await cast();
    const made = await handOff({ target_ref: 'target', tape_ref: refTo(source.agent_id, `entry/${head}`) });
    await end(made.turn_id);
    expect(promptOf(made.turn_id).slice(1, 4)).toEqual([
      'user: [inherited] Parent agent: agent:operator',
      'user: the first task',
      'assistant: worked on the first task',
    ]);
  });

  test('leaves out contexts that the caller may not read', async () => {
    const { source, head } = await cast();
    await agent('reader', 'source');
    await submit('grant_box', { box_id: source.output_box_id, grantee: 'reader' });
    const made = await handOff(
      { target_ref: 'target', tape_ref: refTo(source.agent_id, `entry/${head}`) },
      { sourceAgentId: 'reader' },
    );
    await end(made.turn_id);
    expect(promptOf(made.turn_id).slice(1, 4)).toEqual([
      'user: [context]',
      'assistant: worked on the first task',
      'user: Parent agent: agent:reader',
    ]);
  });

  test('keeps within its token budget', async () => {
    const { source, head } = await cast();
    const args = { target_ref: 'target', tape_ref: refTo(source.agent_id, `entry/${head}`) };
    const before = await rowCounts(h.database.pool);
    expect(await refusal(handOff({ ...args, budget_tokens: 135 }))).toMatchObject({
      code: 'context_budget_exceeded',
    });
    expect(await rowCounts(h.database.pool)).toEqual(before);
    const made = await handOff({ ...args, budget_tokens: 135, budget_strategy: 'deliverables_only' });
    await end(made.turn_id);
    expect(promptOf(made.turn_id)).toContain('assistant: worked on the first task');
    expect(promptOf(made.turn_id)).not.toContain('user: the first task');
  });
});

describe('the target of a context_handoff', () => {
  test('is an agent, else a profile; agent: and profile: select one of them; the operator gets no turn', async () => {
    const { source, head } = await cast();
    await h.profile('both', [{ say: 'took over {{instruction}}' }]);
    const known = await agent('both', 'both');
    const args = { tape_ref: refTo(source.agent_id, `entry/${head}`) };
    const toAgent = await handOff({ ...args, target_ref: 'both', intention: INTENTION });
    expect(await end(toAgent.turn_id)).toMatchObject({
      agent_id: known.agent_id,
      result: 'took over Review auth.py',
    });
    const again = await end((await handOff({ ...args, target_ref: `agent:${known.agent_id}` })).turn_id);
    expect(again.agent_id).toBe(known.agent_id);
    const fresh = await end((await handOff({ ...args, target_ref: 'profile:both' })).turn_id);
    expect(fresh.agent_id).not.toBe(known.agent_id);

    const toPeople = await handOff({ ...args, target_ref: 'operator' }, { sourceAgentId: source.agent_id });
    expect(toPeople).toEqual({ card_id: expect.any(String), context_box_id: expect.any(String) });
    expect((await cardOf(toPeople.card_id)).data.to).toBe('agent:00000000-0000-7000-8000-000000000002');
  });

  test('keeps an earlier, wider right', async () => {
    const { source, head } = await cast();
    const known = await agent('known', 'target');
    await submit('grant_box', { box_id: source.output_box_id, grantee: 'known' });
    await handOff(
      { target_ref: 'known', tape_ref: refTo(source.agent_id, `entry/${head}`) },
      { sourceAgentId: source.agent_id },
    );
    expect(await grantsTo(known.agent_id, source.output_box_id)).toEqual([
      expect.objectContaining({ mode: 'read', upto_position: null }),
    ]);
  });
});

describe('a refused context_handoff', () => {
  test('leaves no change', async () => {
    const { source, head } = await cast();
    const stranger = await agent('stranger', 'source');
    const denied = await agent('denied', 'target');
    const bounded = await agent('bounded', 'source');
    await h.database.pool.query(
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
       select project_id, $1, id, 'read', $3, owner_agent_id from boxcar.boxes where id = $2`,
      [bounded.agent_id, source.output_box_id, head - 1],
    );
    // The turns of earlier tests may still end.
    await untilSettled(h.database.pool);
    const before = await rowCounts(h.database.pool);
    const at = (place: string, rest = {}) => ({
      target_ref: 'target',
      tape_ref: refTo(source.agent_id, place),
      ...rest,
    });
    const by = (agentId: string) => ({ sourceAgentId: agentId });
    const cases: readonly (readonly [string, object, string, string?])[] = [
      ['bad_request', { target_ref: 'target' }, 'tape_ref'],
      ['bad_request', at('entry/0'), 'entry'],
      ['bad_request', at('entry/4?head=2'), 'head 2'],
      ['bad_request', { ...at('entry/1'), tape_ref: 'http://default/x/entry/1' }, 'tape://'],
      ['bad_request', at('entry/1', { reason: ' ' }), 'reason'],
      ['bad_request', at('entry/1', { ownership: 'fork' }), 'ownership'],
      ['bad_request', at('entry/1', { intention: { next_steps: 'a', more: 1 } }), 'intention'],
      ['bad_request', at('entry/1', { target_ref: 'operator', wait: true }), 'runs none', source.agent_id],
      ['bad_request', at('entry/1', { target_ref: 'operator' }), 'itself'],
      ['bad_request', at('entry/1', { target_ref: source.agent_id }), 'itself', source.agent_id],
      ['not_found', at(`entry/${head + 1}`), `its last is ${head}`],
      ['not_found', at('anchor/phase'), "Anchor 'phase' was not found."],
      ['not_found', at('anchor/session%2Fstart?head=99'), 'no entry 99'],
      ['not_found', { ...at('entry/1'), tape_ref: 'tape://default/nobody/entry/1' }, "no tape 'nobody'"],
      [
        'not_found',
        { ...at('entry/1'), tape_ref: `tape://elsewhere/${source.agent_id}/entry/1` },
        "is 'default'",
      ],
      ['not_found', at('entry/1', { target_ref: 'nobody' }), "no agent or profile 'nobody'"],
      ['not_found', at('entry/1', { target_ref: 'agent:target' }), "no agent 'target'"],
      ['box_not_authorized', at('entry/1', { target_ref: 'source' }), 'may not read', stranger.agent_id],
      ['box_not_authorized', at(`entry/${head}`), `up to entry ${head - 1}`, bounded.agent_id],
      ['box_not_authorized', at(`entry/${head + 9}`), `up to entry ${head - 1}`, bounded.agent_id],
      ['box_not_authorized', at('entry/1', { ownership: 'transfer' }), 'may not append', bounded.agent_id],
    ];
    for (const [code, args, words, source_agent_id] of cases) {
      const error = await refusal(handOff(args, source_agent_id === undefined ? {} : by(source_agent_id)));
      expect([code, error.message]).toEqual([error.code, expect.stringContaining(words)]);
    }
    expect(await refusal(handOff(at('entry/1'), { sourceAgentId: denied.agent_id }))).toMatchObject({
      code: 'delegation_denied',
    });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('a context_handoff with a key is done once, and is refused with other arguments', async () => {
    const { source, head } = await cast();
    const args = { target_ref: 'target', tape_ref: refTo(source.agent_id, `entry/${head}`) };
    const made = await handOff(args, { idempotencyKey: 'once' });
    await end(made.turn_id);
    const before = await rowCounts(h.database.pool);
    expect(await handOff(args, { idempotencyKey: 'once' })).toEqual(made);
    expect(
      await refusal(handOff({ ...args, ownership: 'transfer' }, { idempotencyKey: 'once' })),
    ).toMatchObject({ code: 'idempotency_conflict' });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });
});

test('an agent with a grant up to a position clones the agent as it was at that position, whatever was added later', async () => {
  const { source, head } = await cast();
  const reader = await agent('early-reader', 'source');
  await h.database.pool.query(
    `insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
     select project_id, $1, id, 'read', $3, owner_agent_id from boxcar.boxes where id = $2`,
    [reader.agent_id, source.output_box_id, head],
  );
  await anchor(source.output_box_id, 'phase/late', { secret: 'of later' });
  const made = (await submit(
    'delegate_async',
    { target_strategy: 'clone', target_ref: source.agent_id, instruction: 'go on' },
    { sourceAgentId: reader.agent_id },
  )) as unknown as Receipt;
  await end(made.turn_id);
  expect(promptOf(made.turn_id)).toContain('assistant: worked on the first task');
  expect(promptOf(made.turn_id).join()).not.toContain('of later');
});

test('every place of a tape begins with the last anchor up to it, however the place is requested', async () => {
  const { box_id: boxId } = await (await h.runtime.tape('places')).info();
  const anchors = [1];
  for (const [index, name] of ['a', 'b', 'a', 'c', 'b'].entries()) {
    await (await tape(boxId)).append([{ kind: 'message', content: `entry ${index}` }]);
    anchors.push(await anchor(boxId, name, { index }));
  }
  const head = await headOf(boxId);
  for (let position = 1; position <= head; position++) {
    const start = anchors.findLast((at) => at <= position);
    const ref = refTo(boxId, `entry/${position}`);
    expect(await h.runtime.resolveTapeRef(ref)).toMatchObject({ ref, position, start, head: position });
    const bounded = `${refTo('places', 'anchor/a')}?head=${position}`;
    const latest = [anchors[1], anchors[3]].findLast((at) => at !== undefined && at <= position);
    if (latest === undefined)
      expect(await refusal(h.runtime.resolveTapeRef(bounded))).toMatchObject({ code: 'not_found' });
    else
      expect(await h.runtime.resolveTapeRef(bounded)).toMatchObject({
        position: latest,
        start: latest,
        head: position,
      });
  }
});

test('an id means a box or an agent before any name, and a name means a tape before an agent', async () => {
  const twin = await agent('twin', 'source');
  const [named, disguised] = await Promise.all([h.runtime.tape('twin'), h.runtime.tape(twin.agent_id)]);
  const boxOf = async (name: string, workspace = 'default') =>
    (await h.runtime.resolveTapeRef(`tape://${workspace}/${name}/entry/1`)).boxId;
  const { boxId: own } = await h.runtime.tape({ agent: 'twin' });
  expect(await boxOf('twin')).toBe(named.boxId);
  expect(await boxOf(twin.agent_id)).toBe(own);
  expect(await boxOf(twin.agent_id.toUpperCase())).toBe(own);
  expect(await boxOf(disguised.boxId, named.projectId)).toBe(disguised.boxId);
  const [other] = await h.rows<{ id: string }>(`
    with made as (
      insert into boxcar.agents (id, project_id, name) select gen_random_uuid(), gen_random_uuid(), 'operator' returning id, project_id
    )
    insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id)
    select made.project_id, 'other', made.id, p.bootstrap_card_id from made, boxcar.projects p returning id`);
  for (const workspace of ['other', other?.id ?? ''])
    expect(await refusal(boxOf('twin', workspace))).toMatchObject({ code: 'not_found' });
  for (const name of ['twin', own, twin.agent_id])
    expect(
      await refusal(h.runtime.resolveTapeRef(`tape://other/${name}/entry/1`, { projectId: 'other' })),
    ).toMatchObject({ code: 'not_found' });
});
