import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { tellParent } from '../end/tell-parent.js';
import { Sweeper } from '../sweep/sweeper.js';
import { type SessionScene, sessionScene } from '../testing/session-scene.js';
import type { Tape } from './tape.js';

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

/** An instruction to delegate to an agent, and to wait for it. */
const asking = (agent: string, more: object = {}): string =>
  `call delegate_async ${JSON.stringify({ target_strategy: 'reuse', target_ref: agent, instruction: 'help', wait: true, ...more })}`;

describe('the end of a session that notifies its parent', () => {
  const messages = async (tape: Tape): Promise<readonly string[]> =>
    (await tape.query().kinds('message').all())
      .map(({ payload }) => String(payload.content))
      .filter((text) => text.startsWith('[FORK RESULT]'));
  const turnsOf = (agentId: string) =>
    scene.h.rows<{ id: string; status: string }>(
      'select id, status from boxcar.turns where agent_id = $1 order by id',
      [agentId],
    );
  const notifying = { intention: { ...intention, trigger_on_complete: 'notify_parent' as const } };
  const sweeper = () =>
    new Sweeper(scene.h.runtime, {
      lostRingMs: 600_000_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    });

  test('is reported only to tapes on which the maker of the session may write', async () => {
    const { tape } = await parent();
    const { agentId: reader } = await parent();
    const theirs = await scene.h.runtime.tape({ box: tape.boxId }, { as: reader });
    const grant = (mode: string) =>
      scene.h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: reader, mode });
    await grant('read');
    const name = fresh();
    await expect(theirs.forkSession(name, notifying)).rejects.toMatchObject({ code: 'box_not_authorized' });
    expect(await theirs.forkSession(name, { intention })).toMatchObject({ name });
    await grant('append');
    expect(await theirs.forkSession(fresh(), notifying)).toMatchObject({ tape: expect.anything() });
  });

  test('is not reported when the right to append was taken from the maker while the message waited for the tape', async () => {
    const { h } = scene;
    const { agentId, tape } = await parent();
    const { agentId: maker } = await parent();
    const grant = (mode: string, until?: string) =>
      h.runtime.submit('grant_box', {
        box_id: tape.boxId,
        grantee: maker,
        mode,
        ...(until === undefined ? {} : { until }),
      });
    await grant('read');
    await grant('append');
    const theirs = await h.runtime.tape({ box: tape.boxId }, { as: maker });
    const session = await theirs.forkSession(fresh(), notifying);
    const told = async (): Promise<string> => {
      const { turn_id } = await run(session.name, 'find it');
      await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
      return turn_id;
    };
    await told();
    const reading = async () => (await turnsOf(agentId)).some(({ status }) => status === 'success');
    await waitFor(reading, { message: 'the parent has read the first message' });

    const holder = await h.database.pool.connect();
    // On a busy machine the transaction may have to wait for long.
    await holder.query('begin; set local idle_in_transaction_session_timeout = 0');
    await holder.query('select from boxcar.boxes where id = $1 for no key update', [tape.boxId]);
    const turnId = await told();
    const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    await waitFor(async () => (await h.rows(waiting)).length > 0, { message: 'the message waits' });
    await grant('append', '2020-01-01T00:00:00Z');
    const before = (await turnsOf(agentId)).length;
    await holder.query('commit');
    holder.release();
    await waitFor(
      async () =>
        (await h.rows('select from boxcar.turns where id = $1 and notifies is true', [turnId])).length === 0,
      { message: 'the end is no longer due' },
    );
    expect(await messages(tape)).toHaveLength(1);
    expect(await turnsOf(agentId)).toHaveLength(before);
    expect(h.log.filter(({ event }) => event === 'turn.not_told')).toMatchObject([
      { fields: { turn_id: turnId } },
    ]);
  });

  test('is reported on the parent tape once, and gives its agent a turn that reads it', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const { turn_id } = await run(session.name, 'find it');
    await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    await waitFor(async () => (await turnsOf(agentId)).some(({ status }) => status === 'success'), {
      message: 'the parent has had its turn',
    });
    const [message = '', ...others] = await messages(tape);
    expect(others).toEqual([]);
    const [first, reference, summary] = message.split('\n');
    expect(first).toBe(`[FORK RESULT] ${session.name}: success`);
    expect(reference).toMatch(
      new RegExp(`^Reference: tape://[^/]+/${session.tape.boxId}/entry/\\d+\\?head=\\d+$`),
    );
    expect(summary).toMatch(/^Summary: answer to .*find it/);
    expect(await promptsOf(agentId)).toHaveLength(1);
    expect((await promptsOf(agentId))[0]).toContain(message);

    // A repeated notification changes nothing. The parent may read the referenced place.
    await sweeper().sweep();
    expect(await messages(tape)).toHaveLength(1);
    expect(await turnsOf(agentId)).toHaveLength(1);
    const theirs = await scene.h.runtime.tape(session.name, { as: agentId });
    expect((await theirs.query().kinds('message').all()).length).toBeGreaterThan(0);
  });

  test('is in the next step of a busy parent; a parent that ends without having read it gets another turn', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const open = scene.shut();
    const { turn_id: busy } = await run(agentId, 'work');
    await waitFor(async () => (await promptsOf(agentId)).length === 1, { message: 'the parent is at work' });
    const { turn_id } = await run(session.name, 'help');
    await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
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

  test('resumes a turn that waits for it, and is also reported', async () => {
    const { agentId, tape, own } = await parent();
    const session = await own.forkSession(fresh(), notifying);
    const { turn_id } = await run(agentId, asking(session.name));
    expect(await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({
      status: 'success',
    });
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    await sweeper().sweep();
    expect(await turnsOf(agentId)).toMatchObject([{ id: turn_id, status: 'success' }]);
  });

  test('is reported by the sweep when no process saw it, however the turn ended, on the current tape of the parent', async () => {
    const { agentId, agent, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    await tape.reset();
    const { turn_id } = await run(session.name);
    await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    await waitFor(async () => (await turnsOf(agentId)).some(({ status }) => status === 'success'), {
      message: 'the parent has had its turn',
    });
    // As if the process had died right after the end.
    await scene.h.rows('update boxcar.turns set notifies = true where id = $1', [turn_id]);
    await sweeper().sweep();
    expect(await messages(await scene.h.runtime.tape({ agent }))).toHaveLength(1);
    expect(await turnsOf(agentId)).toHaveLength(1);
    expect(await scene.h.rows('select notifies from boxcar.turns where id = $1', [turn_id])).toEqual([
      { notifies: false },
    ]);
  });

  test('is reported on a tape without an agent, and not for a session that is no longer active', async () => {
    const tape = await scene.h.runtime.tape(fresh());
    const session = await tape.forkSession(fresh(), { profile: 'other', triggerOnComplete: 'notify_parent' });
    await scene.h.runtime.waitForTurn((await run(session.name)).turn_id, { timeoutMs: 60_000 });
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    await scene.h.runtime.sessions.setStatus(session.name, 'done');
    const { turn_id } = await run(session.name);
    await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    await sweeper().sweep();
    expect(await messages(tape)).toHaveLength(1);
    expect(await scene.h.rows('select notifies from boxcar.turns where id = $1', [turn_id])).toEqual([
      { notifies: null },
    ]);
  });

  test.each([
    [
      'that was spawned without a wait',
      (name: string) =>
        `call fork_join ${JSON.stringify({ tasks: [{ target_strategy: 'reuse', target_ref: name, instruction: 'work' }], wait: false })}`,
      0,
    ],
    ['whose wait has timed out', (name: string) => asking(name, { instruction: 'work' }), 1],
  ])(
    '%s gives the agent a turn, since no turn waits for the end any more',
    async (_name, instructionOf, timesOut) => {
      const { agentId, tape, own } = await parent();
      const session = await own.forkSession(fresh(), notifying);
      const open = scene.shut();
      const { turn_id } = await run(agentId, instructionOf(session.name));
      await waitFor(async () => (await promptsOf(session.agentId)).length === 1, {
        message: 'the session is at work',
      });
      if (timesOut > 0) {
        await waitFor(async () => (await turnsOf(agentId))[0]?.status === 'suspended', {
          message: 'the parent waits',
        });
        await scene.h.rows('update boxcar.tool_calls set deadline_at = now() where turn_id = $1', [turn_id]);
        await scene.h.rows('update boxcar.batches set deadline_at = now() where turn_id = $1', [turn_id]);
        await sweeper().sweep();
      }
      await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
      open();
      await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
      await waitFor(async () => (await turnsOf(agentId)).length === 2, { message: 'the parent is woken' });
    },
  );

  test('is reported once and wakes once, however many processes see it at once', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    await scene.h.runtime.sessions.setStatus(session.name, 'quiet');
    const { turn_id } = await scene.runToEnd(session.name);
    // As if the process had died right after the end.
    await scene.h.rows('update boxcar.turns set notifies = true where id = $1', [turn_id]);
    await Promise.all([
      ...[1, 2, 3].map(() => tellParent(scene.h.runtime, turn_id)),
      ...[1, 2].map(() => sweeper().sweep()),
    ]);
    expect(await messages(tape)).toHaveLength(1);
    expect(await turnsOf(agentId)).toHaveLength(1);
  });

  test('is read by a turn that waits for other work, or by another turn if that turn is canceled before', async () => {
    for (const isCanceled of [false, true]) {
      const { agentId, tape } = await parent();
      const session = await tape.forkSession(fresh(), notifying);
      const { agent: other } = await parent();
      const open = scene.shut();
      const { turn_id } = await run(agentId, asking(other, { instruction: 'work' }));
      await waitFor(async () => (await turnsOf(agentId))[0]?.status === 'suspended', {
        message: 'the parent waits',
      });
      await scene.runToEnd(session.name);
      await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
      expect(await turnsOf(agentId)).toMatchObject([{ status: 'suspended' }]);
      if (isCanceled) await scene.h.runtime.submit('cancel', { turn_id });
      open();
      const turns = isCanceled ? 2 : 1;
      await waitFor(
        async () => {
          const found = await turnsOf(agentId);
          return found.length === turns && found.at(-1)?.status === 'success';
        },
        { message: 'the parent has read it' },
      );
      expect((await promptsOf(agentId)).at(-1)).toContain('[FORK RESULT]');
      await sweeper().sweep();
      expect(await turnsOf(agentId)).toHaveLength(turns);
    }
  });

  test('refers to the tape at that moment, whatever is written or reset later', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const { turn_id } = await scene.runToEnd(session.name, 'find it');
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    const ref = /^Reference: (.+)$/m.exec((await messages(tape))[0] ?? '')?.[1] ?? '';
    await session.tape.append([{ kind: 'message', content: 'later' }]);
    await session.tape.reset();
    const place = await scene.h.runtime.resolveTapeRef(ref, { as: agentId });
    const [{ last } = { last: 0 }] = await scene.h.rows<{ last: number }>(
      'select max(position) as last from boxcar.tape_entries where turn_id = $1',
      [turn_id],
    );
    expect(place).toMatchObject({ head: last, isArchived: true });
    const read = await scene.h.runtime.tape({ box: place.boxId }, { as: agentId });
    expect((await read.query().all()).at(-1)?.payload.content).toContain('answer to');
  });

  test('is reported if the session is active when the turn ends, not when it began', async () => {
    const { tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const { sessions } = scene.h.runtime;
    for (const [before, after, told] of [
      ['active', 'done', 0],
      ['done', 'active', 1],
    ] as const) {
      await sessions.setStatus(session.name, before);
      const open = scene.shut();
      const { turn_id } = await run(session.name, 'work');
      await sessions.setStatus(session.name, after);
      open();
      await scene.h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
      await sweeper().sweep();
      expect(await messages(tape)).toHaveLength(told);
    }
  });

  test('of a fork’s session is reported on the tape into which the fork was merged, and nowhere when it was discarded', async () => {
    const { agentId, tape } = await parent();
    const forks = [await tape.forkTape(), await tape.forkTape()] as const;
    const sessions = await Promise.all(
      forks.map((fork) => fork.tape.forkSession(fresh(), { ...notifying, profile: 'other' })),
    );
    await forks[0].merge();
    await forks[1].tape.reset();
    await forks[1].discard();
    for (const { name } of sessions) await scene.runToEnd(name);
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'it is told' });
    expect((await messages(tape))[0]).toContain(sessions[0]?.name);
    await waitFor(async () => (await turnsOf(agentId)).length === 1, { message: 'the parent is woken' });
    await sweeper().sweep();
    expect(await scene.h.rows('select id from boxcar.turns where notifies and ended_at is not null')).toEqual(
      [],
    );
  });

  test('is reported for a turn from a context handoff, and for a turn that never began', async () => {
    const { agentId, tape } = await parent();
    const session = await tape.forkSession(fresh(), notifying);
    const open = scene.shut();
    const first = await run(session.name, 'work');
    const queued = await run(session.name, 'never');
    await scene.h.runtime.submit('cancel', { turn_id: queued.turn_id });
    await waitFor(async () => (await messages(tape)).length === 1, { message: 'the canceled one is told' });
    open();
    await scene.h.runtime.waitForTurn(first.turn_id, { timeoutMs: 60_000 });
    const tapeRef = `tape://default/${session.name}/entry/1`;
    const handed = (await scene.h.runtime.submit('context_handoff', {
      target_ref: session.name,
      reason: 'r',
      summary: 's',
      tape_ref: tapeRef,
    })) as { turn_id: string };
    await scene.h.runtime.waitForTurn(handed.turn_id, { timeoutMs: 60_000 });
    await waitFor(async () => (await messages(tape)).length === 3, { message: 'all are told' });
    expect((await messages(tape)).map((text) => text.split('\n')[0])).toEqual(
      ['canceled', 'success', 'success'].map((status) => `[FORK RESULT] ${session.name}: ${status}`),
    );
    const ref = /^Reference: (.+)$/m.exec((await messages(tape))[0] ?? '')?.[1] ?? '';
    expect(await scene.h.runtime.resolveTapeRef(ref, { as: agentId })).toBeTruthy();
  });
});
