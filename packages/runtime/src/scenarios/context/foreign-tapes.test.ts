/** The parts of foreign tapes that an agent may read, tested at every door. Rule: docs/explanation/security.md. */
import { createModelRouter, type ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SubmitOptions } from '../../core/submit-options.js';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

const SECRET = 'xylophone';
const OWN = 'answer-for-the-parent';

const prompts = new Map<string, string>();
/** Turns with the instruction `work` wait for this gate. */
let gate: Promise<void> | undefined;
/** Answers with its instruction, or calls the tool that the instruction names. */
const actor: ScriptedFunction = async ({ turn, messages }, { call }) => {
  prompts.set(turn.turnId, JSON.stringify(messages));
  if (turn.instruction === 'work') await gate;
  const [, tool, args] = /^call (\w+) (.+)$/s.exec(String(turn.instruction)) ?? [];
  if (turn.step === 1 && tool !== undefined) return { toolCalls: [call(tool, JSON.parse(args ?? '{}'))] };
  const [last] = messages.flatMap((message) => (message.role === 'tool' ? [String(message.content)] : []));
  return { text: last ?? String(turn.instruction) };
};

describe('for a tape without a grant', () => {
  let h: Harness;
  let n = 0;
  beforeAll(async () => {
    h = await harness({ model: createModelRouter({ scripted: { functions: { actor } } }) });
    await h.runtime.applyProfile({
      name: 'worker',
      instructions: 'You work.',
      model: 'scripted:actor',
      tools: ['delegate_async', 'collect', 'context_handoff', 'create_box', 'grant_box', 'provision_agent'],
      delegation_policy: { target_profiles: null },
    });
    await h.worker({ sweepMs: 600_000 });
  });
  afterAll(async () => {
    await checkInvariants(h.database.pool);
    await h[Symbol.asyncDispose]();
  });

  const submit = (primitive: string, args: object, options: SubmitOptions = {}) =>
    h.runtime.submit(primitive, args, options) as Promise<Record<string, string>>;
  /** Runs a turn to its end. */
  async function turn(agent: string, instruction: string, options: SubmitOptions = {}, more: object = {}) {
    const receipt = await submit(
      'delegate_async',
      { target_strategy: 'reuse', target_ref: agent, instruction, ...more },
      options,
    );
    const end = await h.runtime.waitForTurn(receipt.turn_id ?? '', { timeoutMs: 60_000 });
    return { turnId: receipt.turn_id ?? '', end };
  }
  async function agent(more: object = {}) {
    const name = `agent-${++n}`;
    const { agent_id: id = '' } = await submit('provision_agent', {
      action: 'create',
      agent_id: name,
      profile_name: 'worker',
      ...more,
    });
    return { name, id, tape: await h.runtime.tape({ agent: name }) };
  }
  const boxOf = async (id: string): Promise<string> =>
    (await h.rows<{ tape_box_id: string }>('select tape_box_id from boxcar.agents where id = $1', [id]))[0]
      ?.tape_box_id ?? '';

  /** An agent with earlier entries, to which another agent gives one task. The other agent may read the answer. */
  async function asked() {
    const target = await agent({ shared: true });
    const parent = await agent();
    await turn(target.name, `keep ${SECRET} to yourself`);
    await target.tape.handoff('private', { state: { note: SECRET } });
    const instruction = JSON.stringify({
      target_strategy: 'reuse',
      target_ref: target.name,
      instruction: OWN,
      wait: true,
    });
    const { end } = await turn(parent.name, `call delegate_async ${instruction}`);
    expect(JSON.stringify(end)).toContain(OWN);
    await turn(target.name, `once more ${SECRET}`);
    const box = await boxOf(target.id);
    return { target, parent, box, theirs: await h.runtime.tape({ box }, { as: parent.name }) };
  }
  const cardOf = async (boxId: string, text: string): Promise<string> =>
    (
      await h.rows<{ id: string }>(
        `select c.id from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.box_id = $1 and c.content::text like '%' || $2 || '%' limit 1`,
        [boxId, text],
      )
    )[0]?.id ?? '';
  const grants = (agentId: string) =>
    h.rows('select box_id, mode from boxcar.grants where agent_id = $1', [agentId]);

  test('the end of a turn gives no agent a grant; the parent reads the turn’s output, and nothing else', async () => {
    const { parent, theirs, box } = await asked();
    expect(await grants(parent.id)).toEqual([]);
    const all = JSON.stringify(await theirs.query().all());
    expect(all).toContain(OWN);
    expect(all).not.toContain(SECRET);
    // Neither anchors from before the range nor their states are shown.
    expect(await theirs.anchors()).toEqual([]);
    expect(JSON.stringify(await theirs.messages())).not.toContain(SECRET);
    expect(await theirs.search(SECRET)).toEqual([]);
    expect((await theirs.search(OWN)).length).toBeGreaterThan(0);
    await expect(theirs.afterAnchor('private')).rejects.toMatchObject({ code: 'not_found' });
    const lines: string[] = [];
    for await (const line of theirs.export()) lines.push(line);
    expect(lines.join('')).toContain(OWN);
    expect(lines.join('')).not.toContain(SECRET);

    const own = await submit(
      'launch_principal',
      { profile_name: 'worker', instruction: 'read', context_box_id: box },
      { sourceAgentId: parent.name },
    );
    await h.runtime.waitForTurn(own.turn_id ?? '', { timeoutMs: 60_000 });
    const cards = prompts.get(own.turn_id ?? '');
    expect(cards).toContain(OWN);
    expect(cards).not.toContain(SECRET);
    const as = { sourceAgentId: parent.name };
    expect(await submit('create_box', { card_ids: [await cardOf(box, OWN)] }, as)).toHaveProperty('box_id');
    await expect(submit('create_box', { card_ids: [await cardOf(box, SECRET)] }, as)).rejects.toMatchObject({
      code: 'box_not_authorized',
    });
  });

  test('the summary of the tape counts only readable entries', async () => {
    const { theirs, target, parent } = await asked();
    const all = await theirs.query().all();
    expect(await theirs.info()).toMatchObject({
      entries: all.length,
      anchors: 0,
      last_anchor: null,
      last_anchor_position: 0,
      entries_since_last_anchor: all.length,
    });
    // There are other entries between the entries that the grant covers and those that the turn wrote.
    await submit('context_handoff', {
      target_ref: parent.name,
      reason: 'r',
      summary: 's',
      tape_ref: `tape://default/${theirs.boxId}/entry/3`,
    });
    expect(await theirs.info()).toMatchObject({
      entries: all.length + 3,
      anchors: 1,
      last_anchor: 'session/start',
      last_anchor_position: 1,
      entries_since_last_anchor: all.length + 2,
    });
    expect((await theirs.query().all()).length).toBe(all.length + 3);
    const own = await target.tape.info();
    expect(own.entries).toBe((await target.tape.query().all()).length);
  });

  test('a reference leads only to readable entries, and a fork and a grant are refused', async () => {
    const { parent, theirs, box } = await asked();
    const entries = await theirs.query().kinds('message').all();
    const mine = entries.map(({ position }) => position);
    const hidden = (await (await h.runtime.tape({ box })).query().kinds('message').all())
      .map(({ position }) => position)
      .filter((position) => !mine.includes(position));
    const resolve = (position: number) =>
      h.runtime.resolveTapeRef(`tape://default/${box}/entry/${position}`, { as: parent.name });
    for (const id of mine) expect((await resolve(Number(id))).position).toBe(Number(id));
    for (const id of hidden)
      await expect(resolve(Number(id))).rejects.toMatchObject({ code: 'box_not_authorized' });
    await expect(
      h.runtime.resolveTapeRef(`tape://default/${box}/anchor/private`, { as: parent.name }),
    ).rejects.toMatchObject({ code: 'not_found' });
    await expect(theirs.forkTape()).rejects.toMatchObject({ code: 'box_not_authorized' });
    await expect(theirs.forkSession('mine')).rejects.toMatchObject({ code: 'box_not_authorized' });
    const other = await agent();
    const as = { sourceAgentId: parent.name };
    await expect(
      submit('grant_box', { box_id: box, grantee: other.name, mode: 'read' }, as),
    ).rejects.toMatchObject({ code: 'box_not_authorized' });
    await expect(
      submit('grant_box', { box_id: box, grantee: parent.name, mode: 'append' }, as),
    ).rejects.toMatchObject({ code: 'box_not_authorized' });
    expect(await grants(parent.id)).toEqual([]);
    expect(await grants(other.id)).toEqual([]);
  });

  test('a handed-over place contains only readable entries, and gives no right to the rest', async () => {
    const { parent, theirs, box } = await asked();
    const other = await agent({ shared: true });
    const last = (await theirs.query().kinds('message').all()).at(-1);
    const { turn_id: turnId = '' } = await submit(
      'context_handoff',
      {
        target_ref: other.name,
        reason: 'look',
        summary: 'what I was told',
        tape_ref: `tape://default/${box}/entry/${last?.position}`,
        intention: { next_steps: 'go on', context_summary: 'see' },
      },
      { sourceAgentId: parent.name },
    );
    await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    const shown = prompts.get(turnId);
    expect(shown).toContain(OWN);
    expect(shown).not.toContain(SECRET);
    expect(await grants(other.id)).toEqual([]);
  });

  test('a grant that a handoff passes on ends where it ends for its holder', async () => {
    const target = await agent({ shared: true });
    const parent = await agent();
    const other = await agent();
    const box = await boxOf(target.id);
    await turn(target.name, 'hello');
    const handoff = (to: string, position: number, options: SubmitOptions = {}) =>
      submit(
        'context_handoff',
        {
          target_ref: to,
          reason: 'look',
          summary: 'see',
          tape_ref: `tape://default/${box}/entry/${position}`,
        },
        options,
      );
    const uptoOf = async (agentId: string) =>
      (
        await h.rows<{ upto_position: number }>(
          'select upto_position from boxcar.grants where agent_id = $1 and box_id = $2',
          [agentId, box],
        )
      ).map(({ upto_position: upto }) => upto);
    await handoff(parent.name, 3);
    await turn(target.name, `keep ${SECRET} to yourself`);
    const ask = { target_strategy: 'reuse', target_ref: target.name, instruction: OWN, wait: true };
    await turn(parent.name, `call delegate_async ${JSON.stringify(ask)}`);
    const theirs = await h.runtime.tape({ box }, { as: parent.name });
    const readable = await theirs.query().kinds('message').all();
    const last = Number(readable.at(-1)?.position);
    expect(last).toBeGreaterThan(3);
    const as = { sourceAgentId: parent.name };
    const given = await submit(
      'provision_agent',
      { action: 'create', agent_id: `own-${++n}`, profile_name: 'worker' },
      as,
    );
    const { turn_id: turnId = '' } = await handoff(given.agent_id ?? '', last, as);
    await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    // The place is after the end of the grant, so the target gets only the packed context.
    expect(prompts.get(turnId)).toContain(OWN);
    expect(prompts.get(turnId)).not.toContain(SECRET);
    expect(await uptoOf(given.agent_id ?? '')).toEqual([]);
    // A place within the grant, with a head after the end of the grant.
    const ref = `tape://default/${box}/anchor/session%2Fstart?head=${last}`;
    const second = await submit(
      'context_handoff',
      { target_ref: given.agent_id, reason: 'look', summary: 'see', tape_ref: ref },
      as,
    );
    await h.runtime.waitForTurn(second.turn_id ?? '', { timeoutMs: 60_000 });
    expect(await uptoOf(given.agent_id ?? '')).toEqual([3]);
    const asGiven = await h.runtime.tape({ box }, { as: given.agent_id ?? '' });
    expect(JSON.stringify(await asGiven.query().all())).not.toContain(SECRET);
    await submit(
      'grant_box',
      { box_id: box, grantee: other.name, mode: 'read' },
      { sourceAgentId: given.agent_id ?? '' },
    );
    expect(await uptoOf(other.id)).toEqual([3]);
  });

  const secretContext = async () =>
    (
      await submit('create_box', {
        cards: [{ type: 'task.context', role: 'user', content: { kind: 'text', text: `private ${SECRET}` } }],
      })
    ).box_id;
  const clone = async (of: string, as: string): Promise<string | undefined> => {
    const { turn_id: turnId = '' } = await submit(
      'delegate_async',
      { target_strategy: 'clone', target_ref: of, instruction: 'clone', history: 'full' },
      { sourceAgentId: as },
    );
    await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    return prompts.get(turnId);
  };

  test('a clone shows the contexts of turns only to readers of these contexts, and to the launcher of the agent', async () => {
    const lead = await agent();
    const session = await lead.tape.forkSession(`session-${lead.name}`, {
      profile: 'worker',
      triggerOnComplete: 'notify_parent',
    });
    const context = await secretContext();
    const told = await turn(session.name, OWN, {}, { context_box_id: context });
    await waitFor(
      async () =>
        (await h.rows('select from boxcar.turns where id = $1 and told_agent_id is not null', [told.turnId]))
          .length === 1,
      { message: 'the end is told', deadlineMs: 60_000 },
    );
    const toldClone = await clone(session.name, lead.name);
    expect(toldClone).toContain(OWN);
    expect(toldClone).not.toContain(SECRET);

    const owner = await agent();
    const reader = await agent();
    const { agent_id: id = '' } = await submit(
      'provision_agent',
      { action: 'create', agent_id: `own-${++n}`, profile_name: 'worker' },
      { sourceAgentId: owner.name },
    );
    await turn(id, OWN, {}, { context_box_id: context });
    const box = await boxOf(id);
    await submit('grant_box', { box_id: box, grantee: reader.name, mode: 'read' });
    expect(await clone(id, owner.name)).toContain(SECRET);
    const read = await clone(id, reader.name);
    expect(read).toContain(OWN);
    expect(read).not.toContain(SECRET);
  });

  test('a session shows the contexts of its line, so an agent must be able to read them to fork it', async () => {
    const target = await agent();
    const reader = await agent();
    const context = await secretContext();
    await turn(target.name, OWN, {}, { context_box_id: context });
    const [own] = await h.rows<{ context_box_id: string }>(
      'select context_box_id from boxcar.turns where agent_id = $1',
      [target.id],
    );
    await submit('grant_box', { box_id: await boxOf(target.id), grantee: reader.name, mode: 'read' });
    const theirs = await h.runtime.tape({ agent: target.name }, { as: reader.name });
    await expect(theirs.forkSession(`session-${++n}`)).rejects.toMatchObject({
      code: 'box_not_authorized',
      details: { context_box_id: own?.context_box_id },
    });
    // Views that begin with the intention show no earlier contexts.
    const intention = { next_steps: 'go on', context_summary: 'see' };
    const later = await theirs.forkSession(`session-${++n}`, { intention, view: 'last_anchor' });
    const { turnId } = await turn(later.name, 'say', { sourceAgentId: reader.name });
    expect(prompts.get(turnId)).not.toContain(SECRET);
    await submit('grant_box', { box_id: own?.context_box_id, grantee: reader.name, mode: 'read' });
    const whole = await theirs.forkSession(`session-${++n}`);
    const second = await turn(whole.name, 'say', { sourceAgentId: reader.name });
    expect(prompts.get(second.turnId)).toContain(SECRET);
    // The agent itself sees them anyway.
    const self = await h.runtime.tape({ agent: target.name }, { as: target.name });
    expect(await self.forkSession(`session-${++n}`)).toMatchObject({ name: `session-${n}` });
  });

  test('the outputs of two turns for a parent are packed without the entries between them', async () => {
    const target = await agent({ shared: true });
    const parent = await agent();
    const ask = (instruction: string, wait: boolean) =>
      turn(
        parent.name,
        `call delegate_async ${JSON.stringify({ target_strategy: 'reuse', target_ref: target.name, instruction, wait })}`,
      );
    await ask(OWN, true);
    await target.tape.append([{ kind: 'message', content: `between ${SECRET}` }]);
    let open = (): void => undefined;
    gate = new Promise((settle) => {
      open = settle;
    });
    const busy = await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: target.name,
      instruction: 'work',
    });
    await ask('never', false);
    const [never] = await h.rows<{ id: string }>(
      "select id from boxcar.turns where agent_id = $1 and status = 'queued'",
      [target.id],
    );
    await submit('cancel', { turn_id: never?.id });
    open();
    await h.runtime.waitForTurn(busy.turn_id ?? '', { timeoutMs: 60_000 });
    const seen = await clone(target.name, parent.name);
    expect(seen).toContain(OWN);
    expect(seen).not.toContain(SECRET);
  });

  test('a clone and a collect show no more than a reader may see', async () => {
    const { target, parent } = await asked();
    const clone = await submit(
      'delegate_async',
      { target_strategy: 'clone', target_ref: target.name, instruction: 'clone', history: 'full' },
      { sourceAgentId: parent.name },
    );
    await h.runtime.waitForTurn(clone.turn_id ?? '', { timeoutMs: 60_000 });
    const seen = prompts.get(clone.turn_id ?? '');
    expect(seen).toContain(OWN);
    expect(seen).not.toContain(SECRET);
    const foreign = await turn(target.name, 'for the operator');
    await expect(
      submit('collect', { turn_ids: [foreign.turnId] }, { sourceAgentId: parent.name }),
    ).rejects.toMatchObject({ code: 'box_not_authorized' });
  });

  test('an agent without any relation to the tape is refused by every call', async () => {
    const { target, box } = await asked();
    const stranger = await agent();
    const as = { sourceAgentId: stranger.name };
    const foreign = await h.runtime.tape({ box }, { as: stranger.name });
    const doors: (() => Promise<unknown>)[] = [
      () => foreign.query().all(),
      () => foreign.info(),
      () => foreign.search(OWN),
      () => foreign.append([{ kind: 'message', content: 'x' }]),
      () => foreign.forkTape(),
      () => foreign.forkSession(`stolen-${n}`),
      () => foreign.reset(),
      () => h.runtime.resolveTapeRef(`tape://default/${box}/entry/1`, { as: stranger.name }),
      () => submit('launch_principal', { profile_name: 'worker', instruction: 'x', context_box_id: box }, as),
      () =>
        submit('delegate_async', { target_strategy: 'clone', target_ref: target.name, instruction: 'x' }, as),
      () => submit('grant_box', { box_id: box, grantee: stranger.name, mode: 'read' }, as),
      async () => submit('create_box', { card_ids: [await cardOf(box, OWN)] }, as),
    ];
    for (const door of doors)
      await expect(door()).rejects.toMatchObject({
        code: expect.stringMatching(/box_not_authorized|bad_request/),
      });
  });

  test('an expired grant stays expired, whatever turns end meanwhile', async () => {
    const { target, parent, box, theirs } = await asked();
    await submit('grant_box', { box_id: box, grantee: parent.name, mode: 'read' });
    expect(JSON.stringify(await theirs.query().all())).toContain(SECRET);
    await h.database.pool.query(
      "update boxcar.grants set expires_at = now() - interval '1 second' where agent_id = $1",
      [parent.id],
    );
    const instruction = JSON.stringify({
      target_strategy: 'reuse',
      target_ref: target.name,
      instruction: OWN,
      wait: true,
    });
    await turn(parent.name, `call delegate_async ${instruction}`);
    expect(JSON.stringify(await theirs.query().all())).not.toContain(SECRET);
  });

  test('an agent gives turns only to its own agents, to shared agents, and to agents on whose tape it may append', async () => {
    const caller = await agent();
    const target = await agent();
    const as = { sourceAgentId: caller.name };
    const reuse = { target_strategy: 'reuse', target_ref: target.name, instruction: 'x' };
    const session = await target.tape.forkSession(`session-${target.name}`);
    const doors: (() => Promise<unknown>)[] = [
      () => submit('delegate_async', reuse, as),
      () => submit('delegate_async', { ...reuse, target_ref: session.name }, as),
      () => submit('fork_join', { tasks: [reuse], wait: false }, as),
      () =>
        submit(
          'context_handoff',
          {
            target_ref: target.name,
            reason: 'x',
            summary: 'x',
            tape_ref: `tape://default/${caller.tape.boxId}/entry/1`,
          },
          as,
        ),
    ];
    for (const door of doors) await expect(door()).rejects.toMatchObject({ code: 'delegation_denied' });
    expect(await h.rows('select id from boxcar.turns where agent_id = $1', [target.id])).toEqual([]);

    const accepted = async (ref: string) =>
      h.runtime.waitForTurn(
        (await submit('delegate_async', { ...reuse, target_ref: ref }, as)).turn_id ?? '',
        { timeoutMs: 20_000 },
      );
    await submit('grant_box', {
      box_id: await boxOf(target.id),
      grantee: caller.name,
      mode: 'append',
      until: new Date(Date.now() + 3_600_000).toISOString(),
    });
    await expect(accepted(target.name)).rejects.toMatchObject({ code: 'delegation_denied' });
    await submit('grant_box', { box_id: await boxOf(target.id), grantee: caller.name, mode: 'append' });
    expect((await accepted(target.name)).status).toBe('success');
    const child = await submit('provision_agent', { action: 'create', profile_name: 'worker' }, as);
    expect((await accepted(child.agent_id ?? '')).status).toBe('success');
    expect((await accepted((await agent({ shared: true })).name)).status).toBe('success');
  });

  test('an agent is changed only by the operator and by its maker', async () => {
    await h.runtime.applyProfile({
      name: 'moved',
      instructions: 'First.',
      model: 'scripted:actor',
      tools: [],
    });
    const caller = await agent();
    const as = { sourceAgentId: caller.name };
    const ensure = (agentId: string, more: object, options: SubmitOptions = {}) =>
      submit('provision_agent', { action: 'ensure', agent_id: agentId, ...more }, options);
    await ensure('theirs', { profile_name: 'moved' });
    await ensure('mine', { profile_name: 'moved' }, as);
    await h.runtime.applyProfile({
      name: 'moved',
      instructions: 'Second.',
      model: 'scripted:actor',
      tools: [],
    });
    for (const change of [{ profile_version: 2 }, { shared: true }])
      await expect(ensure('theirs', change, as)).rejects.toMatchObject({ code: 'delegation_denied' });
    expect(await ensure('theirs', { profile_version: 1 }, as)).toMatchObject({ outcome: 'unchanged' });
    expect(await ensure('mine', { profile_version: 2 }, as)).toMatchObject({
      outcome: 'updated',
      profile_version: 2,
    });
    expect(await ensure('mine', { shared: true })).toMatchObject({ outcome: 'updated', shared: true });
    expect(await ensure('theirs', { profile_version: 2, shared: true })).toMatchObject({
      outcome: 'updated',
    });
  });

  test('no agent can give an agent or a session the name of a profile', async () => {
    const maker = await agent();
    const as = { sourceAgentId: maker.name };
    const create = { action: 'create', profile_name: 'worker', agent_id: 'worker' };
    for (const action of ['create', 'ensure'])
      await expect(submit('provision_agent', { ...create, action }, as)).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringContaining("'worker' is the name of a profile"),
      });
    const tape = await h.runtime.tape({ agent: maker.name }, { as: maker.name });
    await expect(tape.forkSession('worker')).rejects.toMatchObject({ code: 'bad_request' });
    // The operator knows both.
    expect(await submit('provision_agent', create)).toMatchObject({ name: 'worker' });
    expect(await submit('provision_agent', { ...create, action: 'ensure' }, as)).toMatchObject({
      outcome: 'unchanged',
    });
    await h.rows("update boxcar.agents set name = 'worker-of-the-operator' where name = 'worker'");
  });

  test('a plain name means an agent of the operator or of the caller, then a profile, then an agent of others', async () => {
    const [squatter, caller] = [await agent(), await agent()];
    // The agent takes the name before a profile with that name exists.
    const taken = { action: 'create', profile_name: 'worker', agent_id: 'reviewer' };
    await submit('provision_agent', { ...taken, shared: true }, { sourceAgentId: squatter.name });
    await h.runtime.applyProfile({ name: 'reviewer', instructions: 'Review.', model: 'scripted:actor' });
    const handOver = async (ref: string, from: string) => {
      const { turn_id } = await submit(
        'context_handoff',
        { target_ref: ref, reason: 'r', summary: SECRET, tape_ref: `tape://default/${from}/entry/1` },
        { sourceAgentId: from },
      );
      const [row] = await h.rows<{ name: string }>(
        'select a.name from boxcar.turns t join boxcar.agents a on a.id = t.agent_id where t.id = $1',
        [turn_id],
      );
      return row?.name;
    };
    expect(await handOver('reviewer', caller.name)).toMatch(/^reviewer-[0-9a-f]{12}$/);
    expect(await handOver('agent:reviewer', caller.name)).toBe('reviewer');
    expect(await handOver('reviewer', squatter.name)).toBe('reviewer');
    // Without a profile of this name, the name can only mean the agent.
    await submit(
      'provision_agent',
      { ...taken, agent_id: 'sole', shared: true },
      { sourceAgentId: squatter.name },
    );
    expect(await handOver('sole', caller.name)).toBe('sole');

    await h.runtime.applyProfile({ name: 'desk', instructions: 'Help.', model: 'scripted:actor' });
    await submit('provision_agent', { ...taken, agent_id: 'desk', shared: true });
    expect(await handOver('desk', caller.name)).toBe('desk');
  });

  test('ensure by the operator never returns an agent that another agent has made with that name', async () => {
    const squatter = await agent();
    const support = { action: 'ensure', agent_id: 'support', profile_name: 'worker' };
    const taken = await submit('provision_agent', support, { sourceAgentId: squatter.name });
    await expect(submit('provision_agent', support)).rejects.toMatchObject({
      code: 'agent_exists',
      details: { agent_id: taken.agent_id, owner_agent_id: squatter.id },
    });
    // With its id, or with `ensure` for an existing name, the request means this agent.
    const kept = { outcome: 'unchanged', agent_id: taken.agent_id, owner_agent_id: squatter.id };
    expect(await submit('provision_agent', { ...support, agent_id: taken.agent_id })).toMatchObject(kept);
    expect(await submit('provision_agent', { action: 'ensure', agent_id: 'support' })).toMatchObject(kept);
    const other = await agent();
    expect(await submit('provision_agent', support, { sourceAgentId: other.name })).toMatchObject(kept);
  });

  test('a key belongs to the agent that chose it: other agents have no conflict with it and do not learn of it', async () => {
    const [one, two] = [await agent(), await agent()];
    const box = (text: string) => ({ cards: [{ type: 'task.context', content: { kind: 'text', text } }] });
    const make = (text: string, sourceAgentId?: string) =>
      submit('create_box', box(text), { idempotencyKey: 'the key', ...(sourceAgentId && { sourceAgentId }) });
    const made = [await make('a'), await make('b', one.name), await make('c', two.name)];
    expect(new Set(made.map(({ box_id: id }) => id)).size).toBe(3);
    expect(await make('b', one.id)).toEqual(made[1]);
    expect(await make('a')).toEqual(made[0]);
    await expect(make('a', one.name)).rejects.toMatchObject({ code: 'idempotency_conflict' });
    await expect(
      submit('create_box', box('x'), { idempotencyKey: `agent:${one.id}:the key` }),
    ).rejects.toMatchObject({ code: 'bad_request' });
  });

  test('a submission that an older build accepted from an agent with its key is found, only by that agent', async () => {
    const [one, two] = [await agent(), await agent()];
    const args = { cards: [{ type: 'task.context', content: { kind: 'text', text: 'old' } }] };
    const make = (name: string) =>
      submit('create_box', args, { idempotencyKey: 'old key', sourceAgentId: name });
    const first = await make(one.name);
    await h.database.pool.query(
      "update boxcar.operations set idempotency_key = 'old key' where idempotency_key = $1",
      [`agent:${one.id}:old key`],
    );
    expect(await make(one.name)).toEqual(first);
    expect(await make(two.name)).not.toEqual(first);
  });
});
