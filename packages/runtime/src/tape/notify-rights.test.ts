/**
 * The rights that notifications about ends of sessions need and give: to wake an agent is to give it a turn.
 * Rule: docs/explanation/security.md.
 */
import { waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SubmitOptions } from '../core/submit-options.js';
import { type SessionScene, sessionScene } from '../testing/session-scene.js';
import type { Tape } from './tape.js';

let scene: SessionScene;
beforeAll(async () => {
  scene = await sessionScene();
  await scene.h.runtime.applyProfile({
    name: 'lonely',
    instructions: 'You are lonely.',
    model: 'scripted:echo',
    tools: ['delegate_async'],
    delegation_policy: { target_profiles: ['lonely'] },
  });
});
afterAll(() => scene[Symbol.asyncDispose]());

const notifying = { profile: 'other', triggerOnComplete: 'notify_parent' } as const;
const DEADLINE = { deadlineMs: 60_000 };
const submit = (primitive: string, args: object, options: SubmitOptions = {}) =>
  scene.h.runtime.submit(primitive, args, options) as Promise<Record<string, string>>;
const turnsOf = (agentId: string) =>
  scene.h.rows<{ id: string; status: string; parent_turn_id: string | null }>(
    'select id, status, parent_turn_id from boxcar.turns where agent_id = $1 order by id',
    [agentId],
  );
/** The end of a turn was reported, or the reason why not was logged. */
const isDealtWith = (turnId: string) =>
  waitFor(
    async () =>
      (
        await scene.h.rows(
          'select from boxcar.turns where id = $1 and ended_at is not null and notifies = false',
          [turnId],
        )
      ).length === 1,
    { message: `turn ${turnId} is told`, ...DEADLINE },
  );
const events = async (tape: Tape) =>
  (await tape.query().kinds('event').all()).flatMap(({ payload }) =>
    payload.name === 'turn.not_started' ? [payload.data] : [],
  );
const results = async (tape: Tape) =>
  (await tape.query().kinds('message').all()).filter(({ payload }) =>
    String(payload.content).startsWith('[FORK RESULT]'),
  );
const grant = (boxId: string, grantee: string, mode: 'read' | 'append', until?: string) =>
  submit('grant_box', { box_id: boxId, grantee, mode, ...(until === undefined ? {} : { until }) });
const share = (agentId: string, shared: boolean) =>
  submit('provision_agent', { action: 'ensure', agent_id: agentId, profile_name: 'lead', shared });
/** An agent that others may give turns to only by a grant. */
async function unshared() {
  const lead = await scene.parent();
  await share(lead.agentId, false);
  return lead;
}
const LATER = new Date(Date.now() + 3_600_000).toISOString();

describe('an agent whose session wakes its parent', () => {
  /** A session of an agent, which has ended, and the turn that its end has started. */
  async function woken() {
    const lead = await scene.parent();
    const session = await lead.tape.forkSession(scene.fresh(), notifying);
    const asker = await scene.parent();
    await grant(session.tape.boxId, asker.agentId, 'append');
    const ask = { target_strategy: 'reuse', target_ref: session.agentId, instruction: 'go' };
    await scene.runToEnd(asker.agentId, `call delegate_async ${JSON.stringify(ask)}`);
    const turnId = (await turnsOf(session.agentId))[0]?.id ?? '';
    await isDealtWith(turnId);
    const [turn] = await turnsOf(lead.agentId);
    expect(turn).toMatchObject({ parent_turn_id: turnId });
    await scene.h.runtime.waitForTurn(turn?.id ?? '', { timeoutMs: 60_000 });
    return { lead, session, asker, wokenId: turn?.id ?? '', turnId };
  }

  test('gets no information about the end of the woken turn, and cannot end it', async () => {
    const { session, asker, wokenId, turnId } = await woken();
    for (const sourceAgentId of [session.agentId, asker.agentId]) {
      const as = { sourceAgentId };
      await expect(submit('collect', { turn_ids: [wokenId] }, as)).rejects.toMatchObject({
        code: 'box_not_authorized',
      });
      await expect(submit('cancel', { turn_id: wokenId }, as)).rejects.toMatchObject({
        code: 'turn_not_authorized',
      });
    }
    // The agent still owns the turn that it has requested.
    expect(await submit('collect', { turn_ids: [turnId] }, { sourceAgentId: asker.agentId })).toHaveProperty(
      'batch_id',
    );
    await expect(
      submit('cancel', { turn_id: turnId }, { sourceAgentId: asker.agentId }),
    ).rejects.toMatchObject({ code: 'turn_ended' });
  });
});

describe('a session that notifies its parent', () => {
  async function scout(profile = 'other') {
    const lead = await unshared();
    const name = `scout-${scene.fresh()}`;
    const { agent_id: agentId = '' } = await submit('provision_agent', {
      action: 'create',
      agent_id: name,
      profile_name: profile,
    });
    await grant(lead.tape.boxId, agentId, 'read');
    const theirs = await scene.h.runtime.tape({ box: lead.tape.boxId }, { as: agentId });
    return { lead, agentId, theirs };
  }
  test('needs all rights that giving turns to the parent needs', async () => {
    const { lead, agentId, theirs } = await scout();
    const fork = () => theirs.forkSession(scene.fresh(), notifying);
    await expect(fork()).rejects.toMatchObject({ code: 'box_not_authorized' });
    await grant(lead.tape.boxId, agentId, 'append', LATER);
    await expect(fork()).rejects.toMatchObject({ code: 'delegation_denied' });
    await share(lead.agentId, true);
    expect(await fork()).toHaveProperty('name');
    await share(lead.agentId, false);
    await grant(lead.tape.boxId, agentId, 'append');
    expect(await fork()).toHaveProperty('name');

    const lonely = await scout('lonely');
    await grant(lonely.lead.tape.boxId, lonely.agentId, 'append');
    await expect(
      lonely.theirs.forkSession(scene.fresh(), { ...notifying, profile: 'lonely' }),
    ).rejects.toMatchObject({ code: 'delegation_denied' });
    // An agent may always be notified about its own sessions.
    const { agentId: own } = lonely;
    const tape = await scene.h.runtime.tape({ agent: own }, { as: own });
    expect(await tape.forkSession(scene.fresh(), { ...notifying, profile: 'lonely' })).toHaveProperty('name');
  });

  test.each([
    ['has expired', { mode: 'append', until: '2020-01-01T00:00:00Z' }],
    ['was limited', { mode: 'append', until: LATER }],
  ])(
    'wakes no turn once the right of its maker %s: the tape reports this once, without content of the session',
    async (_when, change) => {
      const { lead, agentId, theirs } = await scout();
      await grant(lead.tape.boxId, agentId, 'append');
      const session = await theirs.forkSession(scene.fresh(), notifying);
      await submit('grant_box', { box_id: lead.tape.boxId, grantee: agentId, ...change });
      const as = { sourceAgentId: agentId };
      const ask = { target_strategy: 'reuse', target_ref: session.agentId, instruction: 'obey me' };
      for (let n = 0; n < 2; n += 1)
        await isDealtWith((await submit('delegate_async', ask, as)).turn_id ?? '');
      expect(await turnsOf(lead.agentId)).toEqual([]);
      expect(await results(lead.tape)).toEqual([]);
      expect(await events(lead.tape)).toMatchObject([
        { code: expect.stringMatching(/delegation_denied|box_not_authorized/) },
      ]);
      expect(JSON.stringify(await lead.tape.query().all())).not.toContain('obey me');
      // After the right is granted again, the agent is notified again.
      await grant(lead.tape.boxId, agentId, 'append');
      await isDealtWith((await submit('delegate_async', ask, as)).turn_id ?? '');
      expect(await results(lead.tape)).toHaveLength(1);
      expect(await turnsOf(lead.agentId)).toHaveLength(1);
    },
  );
});

describe('of several unread ends', () => {
  test('each may start the turn that reads them: the newest end that is not refused starts it', async () => {
    const lead = await scene.parent();
    const sessions = [];
    for (let n = 0; n < 3; n += 1) sessions.push(await lead.tape.forkSession(scene.fresh(), notifying));
    // A notification that was read before belongs to none of the woken turns.
    await isDealtWith((await scene.run(sessions[0]?.name ?? '')).turn_id);
    await waitFor(async () => (await turnsOf(lead.agentId)).every(({ status }) => status === 'success'), {
      message: 'it was read',
      ...DEADLINE,
    });
    const open = scene.shut();
    const reader = await scene.run(lead.agentId, 'work');
    await waitFor(async () => (await turnsOf(lead.agentId)).some(({ status }) => status === 'running'), {
      message: 'the reader is at work',
      ...DEADLINE,
    });
    const told: string[] = [];
    for (const [index, { name }] of sessions.entries()) {
      const { turn_id: turnId = '' } = await submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: name,
        instruction: 'go',
        ...(index === 1 ? {} : { budget: { turns: 1 } }),
      });
      await isDealtWith(turnId);
      told.push(turnId);
    }
    open();
    await scene.h.runtime.waitForTurn(reader.turn_id, { timeoutMs: 60_000 });
    const started = await waitFor(
      async () => (await turnsOf(lead.agentId)).find(({ parent_turn_id: id }) => id === told[1]),
      { message: 'the second end starts a turn', ...DEADLINE },
    );
    await scene.h.runtime.waitForTurn(started.id, { timeoutMs: 60_000 });
    expect(await turnsOf(lead.agentId)).toHaveLength(3);
    expect(await events(lead.tape)).toEqual([]);
  });

  test('all are named when none may start a turn, and ends that were already read start no turn', async () => {
    const lead = await scene.parent();
    const first = await lead.tape.forkSession(scene.fresh(), notifying);
    const second = await lead.tape.forkSession(scene.fresh(), notifying);
    await isDealtWith((await scene.run(first.name)).turn_id);
    await waitFor(async () => (await turnsOf(lead.agentId)).every(({ status }) => status === 'success'), {
      message: 'it was read',
      ...DEADLINE,
    });
    const open = scene.shut();
    const reader = await scene.run(lead.agentId, 'work');
    await waitFor(async () => (await turnsOf(lead.agentId)).some(({ status }) => status === 'running'), {
      message: 'the reader is at work',
      ...DEADLINE,
    });
    const told: string[] = [];
    for (const { name } of [first, second]) {
      const { turn_id: turnId = '' } = await submit('delegate_async', {
        target_strategy: 'reuse',
        target_ref: name,
        instruction: 'go',
        budget: { turns: 1 },
      });
      await isDealtWith(turnId);
      told.push(turnId);
    }
    open();
    await scene.h.runtime.waitForTurn(reader.turn_id, { timeoutMs: 60_000 });
    const said = await waitFor(
      async () => {
        const found = await events(lead.tape);
        return found.length > 0 ? found : undefined;
      },
      { message: 'it is said', ...DEADLINE },
    );
    expect(said).toMatchObject([...told].reverse().map((id) => ({ turn_id: id, code: 'budget_exceeded' })));
    expect(await turnsOf(lead.agentId)).toHaveLength(2);
  });
});

describe('a right to give turns', () => {
  const isBlocked = (client: pg.PoolClient) =>
    waitFor(
      async () =>
        (
          await scene.h.rows(
            'select from pg_stat_activity where datname = current_database() and pg_blocking_pids(pid) @> array[$1::int]',
            [Reflect.get(client, 'processID')],
          )
        ).length > 0,
      { message: 'the submission waits', ...DEADLINE },
    );

  test.each([
    [
      'a grant',
      (target: string, caller: string) => ({
        give: () => grant(target, caller, 'append'),
        take: [
          "update boxcar.grants set expires_at = now() where box_id = $1 and agent_id = $2 and mode = 'append'",
          [target, caller],
        ] as const,
      }),
    ],
    [
      'a shared agent',
      (_target: string, _caller: string, agentId: string) => ({
        give: () => share(agentId, true),
        take: ['update boxcar.agents set is_shared = false where id = $1', [agentId]] as const,
      }),
    ],
  ])('by %s gives no turns after it was taken back, however late the end is', async (_what, right) => {
    const target = await unshared();
    const caller = await unshared();
    const { give, take } = right(target.tape.boxId, caller.agentId, target.agentId);
    await give();
    const ask = { target_strategy: 'reuse', target_ref: target.agentId, instruction: 'go' };
    const as = { sourceAgentId: caller.agentId };
    const client = await scene.h.database.pool.connect();
    try {
      await client.query('begin');
      await client.query(take[0], [...take[1]]);
      const refused = expect(submit('delegate_async', ask, as)).rejects.toMatchObject({
        code: 'delegation_denied',
      });
      await isBlocked(client);
      await client.query('commit');
      await refused;
    } finally {
      client.release();
    }
    expect(await turnsOf(target.agentId)).toEqual([]);
  });
});
