import type { ScriptedFunction } from '@boxcar/llm';
import { createModelRouter } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { Sweeper } from '../worker/sweeper.js';
import type { Tape } from './tape.js';

let h: Harness;
let n = 0;
const fresh = (): string => `session-${++n}`;
/** What models were asked, in order. */
const asked: { readonly text: string; readonly turnId: string }[] = [];
/** Who is told to work waits for it. */
let gate: Promise<void> | undefined;

const echo: ScriptedFunction = async ({ turn, messages }, { call }) => {
  const text = messages.map(({ content }) => (typeof content === 'string' ? content : '')).join('\n');
  asked.push({ text, turnId: turn.turnId });
  if (turn.instruction === 'work') await gate;
  const asks = /^ask (.+)$/.exec(String(turn.instruction))?.[1];
  if (asks !== undefined && turn.step === 1)
    return {
      toolCalls: [
        call('delegate_async', {
          target_strategy: 'reuse',
          target_ref: asks,
          instruction: 'help',
          wait: true,
        }),
      ],
    };
  if (turn.instruction === 'mark' && turn.step === 1) return { toolCalls: [call('mark', {})] };
  return { text: `answer to ${JSON.stringify(turn.instruction)}` };
};

beforeAll(async () => {
  h = await harness({ model: createModelRouter({ scripted: { functions: { echo } } }) });
  h.runtime.registerTool({
    name: 'mark',
    description: 'Writes an anchor.',
    input: z.strictObject({}),
    run: async (_input, { agentId: agent }) => {
      await (await h.runtime.tape({ agent })).handoff('marked', { state: { summary: 'in the middle' } });
    },
  });
  for (const name of ['lead', 'other'])
    await h.runtime.applyProfile({
      name,
      instructions: `You are ${name}.`,
      model: 'scripted:echo',
      tools: ['mark', 'delegate_async'],
      delegation_policy: { target_profiles: null },
    });
  await h.worker({ sweepMs: 600_000 });
});

afterAll(async () => {
  await checkInvariants(h.database.pool);
  await h[Symbol.asyncDispose]();
});

interface Parent {
  readonly agent: string;
  readonly agentId: string;
  readonly tape: Tape;
}

async function parent(): Promise<Parent> {
  const agent = fresh();
  const made = await h.runtime.submit('provision_agent', {
    action: 'create',
    agent_id: agent,
    profile_name: 'lead',
  });
  const { agent_id: agentId } = made as { agent_id: string };
  return { agent, agentId, tape: await h.runtime.tape({ agent }) };
}

const intention = { next_steps: 'look into auth', context_summary: 'logins fail' };

const run = async (agent: string, instruction = 'go') =>
  (await h.runtime.submit('delegate_async', {
    target_strategy: 'reuse',
    target_ref: agent,
    instruction,
  })) as { readonly turn_id: string };

/** The prompts of an agent, newest last. */
async function promptsOf(agentId: string): Promise<readonly string[]> {
  const turns = await h.rows<{ id: string }>('select id from boxcar.turns where agent_id = $1', [agentId]);
  return asked.filter(({ turnId }) => turns.some(({ id }) => id === turnId)).map(({ text }) => text);
}

const orderIn = (text: string, ...words: readonly string[]): boolean =>
  words.every((word, index) => {
    const at = text.indexOf(word);
    return at >= 0 && (index === 0 || at > text.indexOf(words[index - 1] ?? ''));
  });

describe('a forked session', () => {
  test('has an agent of its own, whose first view holds the anchor, what follows it and the intention, in this order', async () => {
    const { agent, agentId, tape } = await parent();
    await tape.append([{ kind: 'message', content: 'long ago' }]);
    await tape.handoff('found', { state: { task: 'security' } });
    await tape.append([{ kind: 'message', content: 'since then' }]);
    const { boxId } = tape;
    const name = fresh();
    const session = await tape.forkSession(name, { fromAnchor: 'found', intention });
    await tape.append([{ kind: 'message', content: 'meanwhile' }]);
    expect(await session.tape.anchors()).toMatchObject([
      { name: 'session/start' },
      { name: 'found' },
      { name: 'intention', state: { ...intention, created_at: expect.any(String) } },
    ]);
    const { turn_id } = await run(name);
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 })).toMatchObject({
      status: 'success',
      agent_id: session.agentId,
    });
    const [prompt = ''] = await promptsOf(session.agentId);
    expect(orderIn(prompt, 'security', 'since then', 'look into auth', 'go')).toBe(true);
    expect(prompt).not.toMatch(/long ago|meanwhile/);

    // Until it writes an anchor itself.
    await session.tape.handoff('own', { state: { summary: 'own work' } });
    const next = await run(name, 'go on');
    await h.runtime.waitForTurn(next.turn_id, { timeoutMs: 20_000 });
    expect((await promptsOf(session.agentId))[1]).not.toMatch(/since then|look into auth/);
    expect(orderIn((await promptsOf(session.agentId))[1] ?? '', 'own work', 'go on')).toBe(true);

    expect(await promptsOf(agentId)).toEqual([]);
    expect(await h.runtime.sessions.get(name)).toMatchObject({
      session_id: name,
      parent_session_id: agentId,
      from_anchor: 'found',
      status: 'active',
      agent_id: session.agentId,
      notifies_parent: false,
    });
    expect(await h.runtime.sessions.getChildrenOf(boxId)).toMatchObject([{ session_id: name }]);
    expect((await h.runtime.tape({ agent })).boxId).toBe(boxId);
  });

  test('without an anchor reads on from where its parent does, with `last_anchor` from its intention', async () => {
    const { tape } = await parent();
    await tape.append([{ kind: 'message', content: 'all of it' }]);
    const whole = await tape.forkSession(fresh());
    const cut = await tape.forkSession(fresh(), { intention, view: 'last_anchor' });
    for (const session of [whole, cut])
      await h.runtime.waitForTurn((await run(session.name)).turn_id, { timeoutMs: 20_000 });
    expect((await promptsOf(whole.agentId))[0]).toContain('all of it');
    expect((await promptsOf(cut.agentId))[0]).not.toContain('all of it');
    expect((await promptsOf(cut.agentId))[0]).toContain('look into auth');
    // Of a session of a session: its view is the one that its parent begins with.
    const nested = await whole.tape.forkSession(fresh(), { intention });
    await h.runtime.waitForTurn((await run(nested.name)).turn_id, { timeoutMs: 20_000 });
    expect(orderIn((await promptsOf(nested.agentId))[0] ?? '', 'all of it', 'look into auth')).toBe(true);
    expect(await h.runtime.sessions.getParent(nested.name)).toMatchObject({ session_id: whole.name });
    expect(await h.runtime.sessions.getChildren(whole.name)).toMatchObject([{ session_id: nested.name }]);
    expect(await h.runtime.sessions.getParent(whole.name)).toBeNull();
  });

  test('from an anchor that came while calls were open begins with that anchor', async () => {
    const { agentId, tape } = await parent();
    const { turn_id } = await run(agentId, 'mark');
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 });
    await tape.append([{ kind: 'message', content: 'after' }]);
    await tape.handoff('later', { state: { summary: 'later' } });
    const session = await tape.forkSession(fresh(), { fromAnchor: 'marked' });
    const done = await h.runtime.waitForTurn((await run(session.name)).turn_id, { timeoutMs: 20_000 });
    expect(done).toMatchObject({ status: 'success' });
    const [prompt = ''] = await promptsOf(session.agentId);
    expect(orderIn(prompt, 'in the middle', 'after', 'later')).toBe(true);
  });

  test('of a named tape needs a profile, and keeps its place in the lineage over resets', async () => {
    const named = fresh();
    const tape = await h.runtime.tape(named);
    await expect(tape.forkSession(fresh())).rejects.toMatchObject({ code: 'bad_request' });
    const session = await tape.forkSession(fresh(), { profile: 'other' });
    await tape.reset();
    const later = await tape.forkSession(fresh(), { profile: 'other' });
    expect((await h.runtime.sessions.getChildren(named)).map(({ session_id }) => session_id)).toEqual([
      session.name,
      later.name,
    ]);
    await h.runtime.sessions.setStatus(session.name, 'completed');
    expect(await h.runtime.sessions.list({ status: 'completed' })).toMatchObject([
      { session_id: session.name },
    ]);
  });

  test.each([
    [
      'an anchor that is not there',
      { fromAnchor: 'nowhere' },
      'not_found',
      "Anchor 'nowhere' was not found.",
    ],
    ['a profile that is not there', { profile: 'nobody' }, 'not_found', 'nobody'],
    ['another trigger', { triggerOnComplete: 'call_me' }, 'bad_request', 'triggerOnComplete'],
    ['another view', { view: 'all' }, 'bad_request', 'view'],
    ['half an intention', { intention: { next_steps: 'x' } }, 'bad_request', 'intention.context_summary'],
  ])('with %s is refused and leaves nothing', async (_name, options, code, message) => {
    const { tape } = await parent();
    const name = fresh();
    await expect(tape.forkSession(name, options as object)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
    await expect(h.runtime.tape(name, { create: false })).rejects.toMatchObject({ code: 'not_found' });
    await expect(h.runtime.sessions.get(name)).rejects.toMatchObject({ code: 'not_found' });
  });

  test('gets a name that no agent and no tape has', async () => {
    const { agent, tape } = await parent();
    const named = await h.runtime.tape(fresh());
    const { name = '' } = await named.info().then(({ name: found }) => ({ name: found ?? '' }));
    for (const taken of [agent, name])
      await expect(tape.forkSession(taken)).rejects.toMatchObject({ code: 'agent_exists' });
    for (const wrong of ['', ' ', '00000000-0000-7000-8000-000000000001'])
      await expect(tape.forkSession(wrong)).rejects.toMatchObject({ code: 'bad_request' });
  });
});

describe('the end of a session that notifies its parent', () => {
  const messages = async (tape: Tape): Promise<readonly string[]> =>
    (await tape.query().kinds('message').all())
      .map(({ payload }) => String(payload.content))
      .filter((text) => text.startsWith('[FORK RESULT]'));
  const turnsOf = (agentId: string) =>
    h.rows<{ id: string; status: string }>(
      'select id, status from boxcar.turns where agent_id = $1 order by id',
      [agentId],
    );
  const notifying = { intention: { ...intention, trigger_on_complete: 'notify_parent' as const } };
  const sweeper = () =>
    new Sweeper(h.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    });

  test('is told on the parent tape once, and gives its agent a turn that reads it', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const { turn_id } = await run(session.name, 'find it');
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 });
    await waitFor(async () => (await turnsOf(agentId)).some(({ status }) => status === 'success'), {
      message: 'the parent has had its turn',
    });
    const [message = '', ...others] = await messages(tape);
    expect(others).toEqual([]);
    const [first, reference, summary] = message.split('\n');
    expect(first).toBe(`[FORK RESULT] ${session.name}: success`);
    expect(reference).toMatch(new RegExp(`^Reference: tape://[^/]+/${session.name}/entry/\\d+\\?head=\\d+$`));
    expect(summary).toMatch(/^Summary: answer to .*find it/);
    expect(await promptsOf(agentId)).toHaveLength(1);
    expect((await promptsOf(agentId))[0]).toContain(message);

    // Who does it again changes nothing; the parent may read what is referred to.
    await sweeper().sweep();
    expect(await messages(tape)).toHaveLength(1);
    expect(await turnsOf(agentId)).toHaveLength(1);
    const theirs = await h.runtime.tape(session.name, { as: agentId });
    expect((await theirs.query().kinds('message').all()).length).toBeGreaterThan(0);
  });

  test('is there at the next step of a parent at work; one that ends without having read it gets another turn', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    let open = (): void => undefined;
    gate = new Promise((resolve) => {
      open = resolve;
    });
    const { turn_id: busy } = await run(agentId, 'work');
    await waitFor(async () => (await promptsOf(agentId)).length === 1, { message: 'the parent is at work' });
    const { turn_id } = await run(session.name, 'help');
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 });
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    expect(await turnsOf(agentId)).toMatchObject([{ id: busy, status: 'running' }]);
    open();
    await waitFor(
      async () => (await turnsOf(agentId)).filter(({ status }) => status === 'success').length === 2,
      {
        message: 'the parent has had another turn',
      },
    );
    expect((await promptsOf(agentId))[0]).not.toContain('[FORK RESULT]');
    expect((await promptsOf(agentId))[1]).toContain('[FORK RESULT]');
    await sweeper().sweep();
    expect(await turnsOf(agentId)).toHaveLength(2);
  });

  test('resumes a turn that waits for it, and is told besides', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const { turn_id } = await run(agentId, `ask ${session.name}`);
    expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 })).toMatchObject({ status: 'success' });
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    await sweeper().sweep();
    expect(await turnsOf(agentId)).toMatchObject([{ id: turn_id, status: 'success' }]);
  });

  test('that nobody saw is told by the sweep, however the turn ended, and where the parent is after a reset', async () => {
    const { agentId, agent, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    await tape.reset();
    const { turn_id } = await run(session.name);
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 });
    await waitFor(async () => (await turnsOf(agentId)).some(({ status }) => status === 'success'), {
      message: 'the parent has had its turn',
    });
    // As if the process had died right after the end.
    await h.rows('update boxcar.turns set notifies = true where id = $1', [turn_id]);
    await sweeper().sweep();
    expect(await messages(await h.runtime.tape({ agent }))).toHaveLength(1);
    expect(await turnsOf(agentId)).toHaveLength(1);
    expect(await h.rows('select notifies from boxcar.turns where id = $1', [turn_id])).toEqual([
      { notifies: false },
    ]);
  });

  test('is told on a tape of no agent, and not of a session that is not active any more', async () => {
    const tape = await h.runtime.tape(fresh());
    const session = await tape.forkSession(fresh(), { profile: 'other', triggerOnComplete: 'notify_parent' });
    await h.runtime.waitForTurn((await run(session.name)).turn_id, { timeoutMs: 20_000 });
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    await h.runtime.sessions.setStatus(session.name, 'done');
    const { turn_id } = await run(session.name);
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 20_000 });
    await sweeper().sweep();
    expect(await messages(tape)).toHaveLength(1);
    expect(await h.rows('select notifies from boxcar.turns where id = $1', [turn_id])).toEqual([
      { notifies: null },
    ]);
  });
});
