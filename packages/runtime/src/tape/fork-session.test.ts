import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { compact } from '../testing/compact.js';
import { type SessionScene, sessionScene } from '../testing/session-scene.js';

let scene: SessionScene;
const parent: SessionScene['parent'] = () => scene.parent();
const run: SessionScene['run'] = (...args) => scene.run(...args);
const promptsOf: SessionScene['promptsOf'] = (agentId) => scene.promptsOf(agentId);
const fresh = (): string => scene.fresh();

beforeAll(async () => {
  scene = await sessionScene();
});

afterAll(() => scene[Symbol.asyncDispose]());

const intention = { next_steps: 'look into auth', context_summary: 'logins fail' };

const orderIn = (text: string, ...words: readonly string[]): boolean =>
  words.every((word, index) => {
    const at = text.indexOf(word);
    return at >= 0 && (index === 0 || at > text.indexOf(words[index - 1] ?? ''));
  });

describe('a forked session', () => {
  test('has an agent of its own, and its first view holds the anchor, the later entries and the intention, in this order', async () => {
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
      {
        name: 'intention',
        state: {
          ...intention,
          created_at: expect.any(String),
          from_anchor: { name: 'found', state: { task: 'security' } },
        },
      },
    ]);
    const [written] = (await session.tape.anchors()).slice(-1);
    const { ref = '' } = (written?.state as { from_anchor?: { ref?: string } } | null)?.from_anchor ?? {};
    expect(await scene.h.runtime.resolveTapeRef(ref, { as: session.agentId })).toMatchObject({
      boxId: session.tape.boxId,
      position: 4,
    });
    const { turn_id } = await run(name);
    expect(await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
      agent_id: session.agentId,
    });
    const [prompt = ''] = await promptsOf(session.agentId);
    expect(orderIn(prompt, 'security', 'since then', 'look into auth', 'go')).toBe(true);
    expect(prompt).not.toMatch(/long ago|meanwhile/);

    // Until the session writes an anchor itself.
    await session.tape.handoff('own', { state: { summary: 'own work' } });
    const next = await run(name, 'go on');
    await scene.h.runtime.waitForTurn(next.turn_id, { timeoutMs: 60_000 });
    expect((await promptsOf(session.agentId))[1]).not.toMatch(/since then|look into auth/);
    expect(orderIn((await promptsOf(session.agentId))[1] ?? '', 'own work', 'go on')).toBe(true);

    expect(await promptsOf(agentId)).toEqual([]);
    expect(await scene.h.runtime.sessions.get(name)).toMatchObject({
      session_id: name,
      parent_session_id: agentId,
      from_anchor: 'found',
      status: 'active',
      agent_id: session.agentId,
      notifies_parent: false,
    });
    expect(await scene.h.runtime.sessions.getChildrenOf(boxId)).toMatchObject([{ session_id: name }]);
    expect((await scene.h.runtime.tape({ agent })).boxId).toBe(boxId);
  });

  test('without an anchor reads from the beginning of its parent’s view, with `last_anchor` in its intention', async () => {
    const { tape } = await parent();
    await tape.append([{ kind: 'message', content: 'all of it' }]);
    const whole = await tape.forkSession(fresh());
    const cut = await tape.forkSession(fresh(), { intention, view: 'last_anchor' });
    for (const session of [whole, cut])
      await scene.h.runtime.waitForTurn((await run(session.name)).turn_id, { timeoutMs: 60_000 });
    expect((await promptsOf(whole.agentId))[0]).toContain('all of it');
    expect((await promptsOf(cut.agentId))[0]).not.toContain('all of it');
    expect((await promptsOf(cut.agentId))[0]).toContain('look into auth');
    // A session of a session: its views begin with the anchor with which its parent's views begin.
    const nested = await whole.tape.forkSession(fresh(), { intention });
    await scene.h.runtime.waitForTurn((await run(nested.name)).turn_id, { timeoutMs: 60_000 });
    expect(orderIn((await promptsOf(nested.agentId))[0] ?? '', 'all of it', 'look into auth')).toBe(true);
    expect(await scene.h.runtime.sessions.getParent(nested.name)).toMatchObject({ session_id: whole.name });
    expect(await scene.h.runtime.sessions.getChildren(whole.name)).toMatchObject([
      { session_id: nested.name },
    ]);
    expect(await scene.h.runtime.sessions.getParent(whole.name)).toBeNull();
  });

  test('from an anchor that was written while calls were open begins with that anchor', async () => {
    const { agentId, tape } = await parent();
    const { turn_id } = await run(agentId, 'mark');
    await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    await tape.append([{ kind: 'message', content: 'after' }]);
    await tape.handoff('later', { state: { summary: 'later' } });
    const session = await tape.forkSession(fresh(), { fromAnchor: 'marked' });
    const done = await scene.h.runtime.waitForTurn((await run(session.name)).turn_id, { timeoutMs: 60_000 });
    expect(done).toMatchObject({ status: 'success' });
    const [prompt = ''] = await promptsOf(session.agentId);
    expect(orderIn(prompt, 'in the middle', 'after', 'later')).toBe(true);
  });

  test('from an anchor that only looks like a compaction begins with that anchor', async () => {
    const { tape } = await parent();
    await tape.append([{ kind: 'message', content: 'long ago' }]);
    const draft = (keepFrom: string | number) =>
      ({
        kind: 'draft',
        draft: {
          kind: 'anchor',
          card: {
            type: 'tape.anchor',
            role: 'assistant',
            content: { kind: 'json', data: 'no compaction' },
            metadata: { compaction: { v: 1, keep_from: keepFrom } },
          },
          payload: null,
          anchorName: String(keepFrom),
          meta: null,
        },
      }) as const;
    await tape.append([draft('here'), draft(1)]);
    await tape.handoff('later');
    for (const fromAnchor of ['here', '1']) {
      const session = await tape.forkSession(fresh(), { fromAnchor });
      expect(await scene.runToEnd(session.name)).toMatchObject({ status: 'success' });
      const [prompt = ''] = await promptsOf(session.agentId);
      expect(prompt).toContain('no compaction');
      expect(prompt).not.toContain('long ago');
    }
  });

  test('from a compaction begins like the compacted tape: state, summary, kept entries', async () => {
    const { tape } = await parent();
    for (const text of ['dropped words', 'kept words', 'newest words'])
      await tape.append([{ kind: 'message', content: text }]);
    await compact(scene.h.database.pool, tape, { keepFrom: 4 });
    await tape.append([{ kind: 'message', content: 'words since' }]);
    const viewOf = async (boxId: string) =>
      (
        await scene.h.rows('select view_position, view_anchor_position from boxcar.boxes where id = $1', [
          boxId,
        ])
      )[0];
    expect(await viewOf((await tape.forkTape()).tape.boxId)).toEqual({
      view_position: 4,
      view_anchor_position: null,
    });

    const now = await tape.forkSession(fresh(), { intention });
    const { agent: theirs } = await parent();
    await scene.h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: theirs, mode: 'read' });
    const { entries: head } = await tape.info();
    await scene.h.rows('update boxcar.grants set upto_position = $2 where box_id = $1', [tape.boxId, head]);
    await tape.handoff('later', { state: { summary: 'later on' } });
    const named = await tape.forkSession(fresh(), { fromAnchor: 'auto_handoff/context_overflow' });
    const bounded = await (await scene.h.runtime.tape({ box: tape.boxId }, { as: theirs })).forkTape();
    expect(await viewOf(bounded.tape.boxId)).toEqual({ view_position: 4, view_anchor_position: null });
    expect((await bounded.tape.info()).entries).toBe(head);

    const shown = ['room was made', 'a digest', 'kept words', 'newest words', 'words since'];
    for (const [session, more] of [
      [now, 'look into auth'],
      [named, 'later on'],
    ] as const) {
      await scene.runToEnd(session.name);
      const [prompt = ''] = await promptsOf(session.agentId);
      expect(orderIn(prompt, ...shown, more), prompt).toBe(true);
      expect(prompt).not.toContain('dropped words');
    }
  });

  test('is explained with the prompt that was sent, also for a call without a result before its first own anchor', async () => {
    const { tape } = await parent();
    await tape.handoff('found', { state: { task: 'security' } });
    const session = await tape.forkSession(fresh(), { fromAnchor: 'found', intention });
    const open = scene.shut();
    const { turn_id } = await run(session.name, 'work');
    await waitFor(async () => (await promptsOf(session.agentId)).length === 1, { message: 'it is at work' });
    await scene.h.runtime.submit('cancel', { turn_id });
    open();
    await session.tape.handoff('own', { state: { summary: 'own work' } });
    const { messages, committed_at } = await scene.h.runtime.explainStep(turn_id);
    expect(committed_at).toBeNull();
    expect(messages.map(({ content }) => content).join('\n')).toBe((await promptsOf(session.agentId))[0]);
  });

  test('of a named tape needs a profile, and keeps its place in the lineage over resets', async () => {
    const named = fresh();
    const tape = await scene.h.runtime.tape(named);
    await expect(tape.forkSession(fresh())).rejects.toMatchObject({ code: 'bad_request' });
    const session = await tape.forkSession(fresh(), { profile: 'other' });
    await tape.reset();
    const later = await tape.forkSession(fresh(), { profile: 'other' });
    expect((await scene.h.runtime.sessions.getChildren(named)).map(({ session_id }) => session_id)).toEqual([
      session.name,
      later.name,
    ]);
    await scene.h.runtime.sessions.setStatus(session.name, 'completed');
    expect(await scene.h.runtime.sessions.list({ status: 'completed' })).toMatchObject([
      { session_id: session.name },
    ]);
  });

  test.each([
    [
      'an anchor that does not exist',
      { fromAnchor: 'nowhere' },
      'not_found',
      "Anchor 'nowhere' was not found.",
    ],
    ['a profile that does not exist', { profile: 'nobody' }, 'not_found', 'nobody'],
    ['another trigger', { triggerOnComplete: 'call_me' }, 'bad_request', 'triggerOnComplete'],
    ['another view', { view: 'all' }, 'bad_request', 'view'],
    [
      'an intention with an unknown member',
      { intention: { ...intention, priority: 'high' } },
      'bad_request',
      'intention.priority: is unknown',
    ],
    ['no intention', { intention: null }, 'bad_request', 'intention'],
    ['an anchor with an invalid name', { fromAnchor: 'a\0' }, 'not_found', 'was not found'],
    [
      'an incomplete intention',
      { intention: { next_steps: 'x' } },
      'bad_request',
      'intention.context_summary: is missing',
    ],
    [
      'no next steps',
      { intention: { context_summary: 'x' } },
      'bad_request',
      'intention.next_steps: is missing',
    ],
  ])('with %s is refused and leaves nothing', async (_name, options, code, message) => {
    const { tape } = await parent();
    const name = fresh();
    await expect(tape.forkSession(name, options as object)).rejects.toMatchObject({
      code,
      message: expect.stringContaining(message),
    });
    await expect(scene.h.runtime.tape(name, { create: false })).rejects.toMatchObject({ code: 'not_found' });
    await expect(scene.h.runtime.sessions.get(name)).rejects.toMatchObject({ code: 'not_found' });
  });

  test('gets a name that no agent and no tape has', async () => {
    const { agent, tape } = await parent();
    const named = await scene.h.runtime.tape(fresh());
    const { name = '' } = await named.info().then(({ name: found }) => ({ name: found ?? '' }));
    for (const taken of [agent, name])
      await expect(tape.forkSession(taken)).rejects.toMatchObject({ code: 'agent_exists' });
    for (const wrong of [
      '',
      ' ',
      'a\0',
      'a: success\nReference: b',
      'a\u202eb',
      '\ud800',
      '00000000-0000-7000-8000-000000000001',
    ])
      await expect(tape.forkSession(wrong)).rejects.toMatchObject({ code: 'bad_request' });
  });
});
