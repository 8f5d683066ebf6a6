/** When a session is handed on, its handoff, turn, anchor, grant and status change together, or none of them does. */
import type { AgentId, BoxId, HandoffId, ProjectId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { loadBoxes } from '@boxcar/store';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { HandoffTool } from '../handoff/index.js';
import { statementsOf } from '../testing/count-statements.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import {
  acceptHandoff,
  completeHandoff,
  findPackage,
  type HandoffSessions,
  openHandoffSessions,
  rejectHandoff,
  requestHandoff,
} from './index.js';

let h: Harness;
let operator: HandoffSessions;
let bob: HandoffSessions;
let n = 0;
const fresh = (): string => `s-${++n}`;

const POLICY = `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: mallory } }, permission: NEVER }
  - { condition: { context: { target_agent: [carol, far-away] } }, permission: REQUIRE_APPROVAL }
`;

beforeAll(async () => {
  h = await harness({
    permissionEvaluator: new PermissionEvaluator({ text: POLICY }),
    approvalMs: 60_000,
  });
  await h.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const agent_id of ['ada', 'bob', 'carol', 'mallory'])
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id });
  operator = await openHandoffSessions(h.runtime);
  bob = await openHandoffSessions(h.runtime, { as: 'bob' });
});
afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const says = (content: string) => ({ context_type: 'message', content });
/** A session with one message. */
async function open(): Promise<string> {
  const session_key = fresh();
  await operator.register({ session_key, agent_from: 'claude' });
  await operator.update({ session_key, ...says('one') });
  return session_key;
}
const hand = (session_key: string, rest: object = {}) =>
  requestHandoff(h.runtime, { session_key, target_agent: 'bob', ...rest });
const contentsOf = async (sessions: HandoffSessions, session_key: string): Promise<unknown> => {
  const page = await sessions.context({ session_key });
  return page.outcome === 'found' ? page.entries.map(({ content }) => content) : page.outcome;
};
const anchorsOf = async (session_key: string): Promise<string[]> =>
  (await (await h.runtime.tape(`session/${session_key}`, { create: false })).anchors()).map(
    ({ name }) => name,
  );

test('the target cannot read a session before its handoff, and afterwards can read it up to the handoff', async () => {
  const session_key = await open();
  expect(await contentsOf(bob, session_key)).toBe('not_found');
  const answer = await hand(session_key, { request_data: { instructions: 'Go on.', priority: 'normal' } });
  expect(answer).toMatchObject({ outcome: 'handed_on', ticket_id: null, context_entries: 2 });
  await operator.update({ session_key, ...says('later') });
  expect(await contentsOf(bob, session_key)).toEqual([
    'Session registered by agent: claude',
    'one',
    'Handoff requested to agent: bob',
  ]);
  expect(await operator.get({ session_key })).toMatchObject({
    status: 'active',
    agent_to: 'bob',
    context_entries: 4,
  });
  expect(await anchorsOf(session_key)).toContain('handoff/bob');
  expect((await bob.list({ agent: 'bob' })).sessions.map((s) => s.session_key)).toContain(session_key);
  if (answer.outcome !== 'handed_on') throw new Error(answer.outcome);
  const [row] = await h.rows(
    `select h.source_agent, h.target_agent, c.content->>'text' as task from boxcar.handoffs h join boxcar.cards c on c.id = h.task_card_id where h.id = $1`,
    [answer.handoff_id],
  );
  expect(row).toEqual({ source_agent: 'claude', target_agent: 'bob', task: 'Go on.' });
});

test('after a full handoff no agent writes to the session, and the target continues in a session of its own', async () => {
  const session_key = await open();
  await hand(session_key, { request_type: 'full_handoff' });
  expect(await operator.get({ session_key })).toMatchObject({ status: 'completed', frozen_head: 7 });
  expect(await operator.update({ session_key, ...says('x') })).toMatchObject({ outcome: 'not_active' });
  expect(await hand(session_key)).toMatchObject({ outcome: 'not_active', session: { status: 'completed' } });
  const own = await bob.register({ session_key: fresh(), continues: session_key });
  expect(own).toMatchObject({ outcome: 'registered', session: { context_entries: 4, agent_from: 'bob' } });
});

test('a profile can be a target: an agent is made for the session and reads it', async () => {
  const session_key = await open();
  const answer = await hand(session_key, { target_agent: 'idle' });
  if (answer.outcome !== 'handed_on') throw new Error(answer.outcome);
  const [turn] = await h.rows<{ agent_id: string }>('select agent_id from boxcar.turns where id = $1', [
    answer.turn_id,
  ]);
  const made = await openHandoffSessions(h.runtime, { as: String(turn?.agent_id) });
  expect(await contentsOf(made, session_key)).toEqual([
    'Session registered by agent: claude',
    'one',
    'Handoff requested to agent: idle',
  ]);
});

test('in a collaboration the target reads later entries and can add entries', async () => {
  const session_key = await open();
  await hand(session_key, { request_type: 'collaboration' });
  await operator.update({ session_key, ...says('later') });
  expect(await bob.update({ session_key, ...says('from bob') })).toMatchObject({ outcome: 'updated' });
  expect(await contentsOf(bob, session_key)).toEqual(await contentsOf(operator, session_key));
});

test('a target that the policy forbids is refused with a recorded row, and the session stays unchanged', async () => {
  const session_key = await open();
  const before = await operator.get({ session_key });
  const error = await failureOf(hand(session_key, { target_agent: 'mallory' }));
  expect(error).toMatchObject({ code: 'permission_denied', details: { handoff_id: expect.any(String) } });
  expect(await operator.get({ session_key })).toEqual(before);
  expect(await anchorsOf(session_key)).toEqual(['session/start']);
});

const statusOf = async (handoffId: string): Promise<unknown> =>
  (await h.rows('select phase from boxcar.handoffs where id = $1', [handoffId]))[0]?.phase;

describe('a handoff that needs an approval', () => {
  const gate = (): ApprovalGate => new ApprovalGate({ runtime: h.runtime });

  test('changes nothing in the session before it is approved, and then makes all its changes', async () => {
    const session_key = await open();
    const before = await operator.get({ session_key });
    const asked = { target_agent: 'carol', request_type: 'full_handoff', request_data: { priority: 'high' } };
    const answer = await hand(session_key, asked);
    expect(answer).toMatchObject({
      outcome: 'waits',
      status: 'pending_approval',
      turn_id: null,
      ticket_id: expect.any(String),
    });
    expect(await operator.get({ session_key })).toEqual(before);
    const carol = await openHandoffSessions(h.runtime, { as: 'carol' });
    expect(await contentsOf(carol, session_key)).toBe('not_found');
    await operator.update({ session_key, ...says('meanwhile') });
    if (answer.outcome !== 'waits') throw new Error(answer.outcome);
    await gate().approve(String(answer.ticket_id));
    expect(await operator.get({ session_key })).toMatchObject({
      status: 'completed',
      agent_to: 'carol',
      context_entries: 4,
    });
    expect(await contentsOf(carol, session_key)).toEqual([
      'Session registered by agent: claude',
      'one',
      'meanwhile',
      'Handoff requested to agent: carol',
    ]);
    const [turn] = await h.rows(
      'select t.priority from boxcar.handoffs h join boxcar.turns t on t.id = h.turn_id where h.id = $1',
      [answer.handoff_id],
    );
    expect(turn).toEqual({ priority: 50 });
  });

  test('ends without effect when the session has ended meanwhile, and changes nothing when it is denied', async () => {
    for (const decide of ['approve', 'deny'] as const) {
      const session_key = await open();
      const answer = await hand(session_key, { target_agent: 'carol' });
      if (answer.outcome !== 'waits') throw new Error(answer.outcome);
      if (decide === 'approve') await operator.close({ session_key });
      const before = await operator.get({ session_key });
      await gate()[decide](String(answer.ticket_id));
      expect(await statusOf(answer.handoff_id)).toBe(decide === 'approve' ? 'canceled' : 'rejected');
      expect(await operator.get({ session_key })).toEqual(before);
    }
  });

  test('waits as a package after the approval when no agent has the name', async () => {
    const session_key = await open();
    const answer = await hand(session_key, { target_agent: 'far-away' });
    if (answer.outcome !== 'waits') throw new Error(answer.outcome);
    const { handoff_id } = answer;
    expect(await acceptHandoff(h.runtime, { handoff_id })).toMatchObject({
      outcome: 'not_possible',
      why: 'It waits for an approval.',
    });
    await gate().approve(String(answer.ticket_id));
    expect(await statusOf(handoff_id)).toBe('pending');
    expect(await anchorsOf(session_key)).toContain('handoff/far-away');
    expect(await acceptHandoff(h.runtime, { handoff_id })).toMatchObject({ outcome: 'accepted' });
  });
});

describe('a package for an absent target', () => {
  async function leave(rest: object = {}) {
    const session_key = await open();
    const answer = await hand(session_key, { target_agent: 'downstream', ...rest });
    if (answer.outcome !== 'handed_on') throw new Error(answer.outcome);
    return { session_key, handoff_id: answer.handoff_id, answer };
  }
  const resultOf = async (handoff_id: string): Promise<unknown> =>
    (await new HandoffTool({ runtime: h.runtime }).getHandoff(handoff_id as HandoffId))?.result;

  test('waits until it is accepted, and gets the result that is reported for it', async () => {
    const { session_key, handoff_id, answer } = await leave({ request_data: { instructions: 'Go on.' } });
    expect(answer).toMatchObject({
      status: 'active',
      turn_id: null,
      ticket_id: null,
      context_entries: 2,
      cache_key: `handoff:downstream:${session_key}`,
    });
    expect(await statusOf(handoff_id)).toBe('pending');
    expect(await completeHandoff(h.runtime, { handoff_id })).toMatchObject({
      outcome: 'not_possible',
      why: 'It has not been accepted yet.',
    });
    const accepted = await acceptHandoff(h.runtime, { handoff_id });
    expect(accepted).toMatchObject({
      outcome: 'accepted',
      package: {
        session_key,
        source_agent: 'claude',
        context_summary: answer.context_summary,
        context_entries: 2,
        request_data: { instructions: 'Go on.' },
        head: 7,
      },
    });
    expect(await acceptHandoff(h.runtime, { handoff_id })).toEqual(accepted);
    expect(await completeHandoff(h.runtime, { handoff_id, result: { done: [1, 2] } })).toMatchObject({
      outcome: 'completed',
      package: { phase: 'completed' },
    });
    expect(await completeHandoff(h.runtime, { handoff_id, result: 'again' })).toMatchObject({
      outcome: 'completed',
    });
    expect(await resultOf(handoff_id)).toEqual({ done: [1, 2] });
    expect(await rejectHandoff(h.runtime, { handoff_id })).toMatchObject({ outcome: 'not_possible' });
  });

  test('can be rejected with a reason', async () => {
    const { handoff_id } = await leave();
    const rejected = await rejectHandoff(h.runtime, { handoff_id, reason: 'no time' });
    expect(rejected).toMatchObject({ outcome: 'rejected', package: { phase: 'rejected' } });
    expect(await rejectHandoff(h.runtime, { handoff_id, reason: 'no time' })).toEqual(rejected);
    expect(await acceptHandoff(h.runtime, { handoff_id })).toMatchObject({
      outcome: 'not_possible',
      why: 'It has ended.',
    });
  });

  test('can be given up by the agent that accepted it, and withdrawn by the agent that left it', async () => {
    const { handoff_id } = await leave();
    await acceptHandoff(h.runtime, { handoff_id });
    const given = await rejectHandoff(h.runtime, { handoff_id, reason: 'too hard' });
    expect(given).toMatchObject({ outcome: 'rejected', package: { phase: 'canceled' } });
    expect(await rejectHandoff(h.runtime, { handoff_id, reason: 'too hard' })).toEqual(given);

    const session_key = fresh();
    await bob.register({ session_key });
    const left = await requestHandoff(h.runtime, { session_key, target_agent: 'downstream' }, { as: 'bob' });
    if (left.outcome !== 'handed_on') throw new Error(left.outcome);
    const mine = { handoff_id: left.handoff_id };
    expect(await acceptHandoff(h.runtime, mine, { as: 'bob' })).toMatchObject({ outcome: 'not_possible' });
    expect(await rejectHandoff(h.runtime, mine, { as: 'ada' })).toMatchObject({ outcome: 'not_found' });
    expect(await rejectHandoff(h.runtime, mine, { as: 'bob' })).toMatchObject({
      outcome: 'rejected',
      package: { phase: 'canceled' },
    });
    expect(await acceptHandoff(h.runtime, mine)).toMatchObject({ why: 'It has ended.' });
  });

  test('is only for an agent of its name, which can read the session after accepting it, and only up to the handoff', async () => {
    const { session_key, handoff_id } = await leave({ target_agent: 'late' });
    await operator.update({ session_key, ...says('later') });
    expect(await acceptHandoff(h.runtime, { handoff_id }, { as: 'bob' })).toEqual({
      outcome: 'not_found',
      handoff_id,
    });
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id: 'late' });
    const late = await openHandoffSessions(h.runtime, { as: 'late' });
    expect(await contentsOf(late, session_key)).toBe('not_found');
    expect(await acceptHandoff(h.runtime, { handoff_id }, { as: 'late' })).toMatchObject({
      outcome: 'accepted',
    });
    expect(await contentsOf(late, session_key)).toEqual([
      'Session registered by agent: claude',
      'one',
      'Handoff requested to agent: late',
    ]);
    expect(await completeHandoff(h.runtime, { handoff_id })).toMatchObject({
      outcome: 'not_possible',
      why: 'Another client has accepted it.',
    });
  });

  test('of a collaboration lets the accepting agent add to the session until it is withdrawn', async () => {
    const { session_key, handoff_id } = await leave({ target_agent: 'mate', request_type: 'collaboration' });
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id: 'mate' });
    const mate = await openHandoffSessions(h.runtime, { as: 'mate' });
    await acceptHandoff(h.runtime, { handoff_id }, { as: 'mate' });
    expect(await mate.update({ session_key, ...says('mine') })).toMatchObject({ outcome: 'updated' });
    await rejectHandoff(h.runtime, { handoff_id });
    expect(await failureOf(mate.update({ session_key, ...says('more') }))).toMatchObject({
      code: 'box_not_authorized',
    });
    expect(await contentsOf(mate, session_key)).toContain('mine');
  });

  test('leaves rights to the session that came from another agent when it is withdrawn', async () => {
    const { session_key, handoff_id } = await leave({ target_agent: 'peer', request_type: 'collaboration' });
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id: 'peer' });
    const tape = await operator.get({ session_key });
    await h.runtime.packer.grantBox({
      projectId: 'default',
      sourceAgentId: 'operator',
      boxId: String(tape?.tape_box_id),
      grantee: 'peer',
      mode: 'append',
    });
    await acceptHandoff(h.runtime, { handoff_id }, { as: 'peer' });
    await rejectHandoff(h.runtime, { handoff_id });
    const peer = await openHandoffSessions(h.runtime, { as: 'peer' });
    expect(await peer.update({ session_key, ...says('still') })).toMatchObject({ outcome: 'updated' });
  });

  test('that is accepted or rejected by two at once goes to one of them', async () => {
    const move = [acceptHandoff, rejectHandoff];
    for (let round = 0; round < 20; round += 1) {
      const { handoff_id } = await leave({ target_agent: `twin-${round}` });
      const as = `twin-${round}`;
      await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id: as });
      const outcomes = await Promise.all([
        acceptHandoff(h.runtime, { handoff_id }),
        move[round % 2]?.(h.runtime, { handoff_id }, { as }),
      ]);
      expect(outcomes.filter((one) => one?.outcome === 'not_possible')).toHaveLength(1);
    }
  });

  test('is found by its name, and a new one is made after a day', async () => {
    const { session_key } = await leave();
    const asked = { session_key, target_agent: 'downstream' };
    const first = await findPackage(h.runtime, asked);
    expect(first).toMatchObject({ context_entries: 2, head: 7 });
    await h.database.pool.query(
      "update boxcar.handoffs set created_at = created_at - interval '25 hours' where session_id = (select id from boxcar.handoff_sessions where session_key = $1)",
      [session_key],
    );
    expect(await findPackage(h.runtime, asked)).toMatchObject({
      head: 7,
      context_entries: 3,
      context_summary: expect.stringContaining('Total of 3 context entries'),
    });
    expect(await findPackage(h.runtime, asked, { as: 'bob' })).toBeUndefined();
  });
});

describe('several targets', () => {
  test('of a collaboration share the session at once', async () => {
    const session_key = await open();
    const answer = await hand(session_key, {
      request_type: 'collaboration',
      target_agents: ['carol', 'elsewhere', 'bob'],
    });
    expect(answer).toMatchObject({
      outcome: 'handed_on',
      target_agent: 'bob',
      targets: [
        { target_agent: 'bob', status: 'active', turn_id: expect.any(String) },
        { target_agent: 'carol', status: 'pending_approval', ticket_id: expect.any(String) },
        { target_agent: 'elsewhere', status: 'active', turn_id: null },
      ],
    });
    expect(await anchorsOf(session_key)).toEqual(['session/start', 'handoff/bob', 'handoff/elsewhere']);
    expect(await bob.update({ session_key, ...says('x') })).toMatchObject({ outcome: 'updated' });
  });

  test('get nothing when one of them is refused, and are possible only for collaborations', async () => {
    const session_key = await open();
    const before = await operator.get({ session_key });
    const refused = hand(session_key, { request_type: 'collaboration', target_agents: ['mallory'] });
    expect(await failureOf(refused)).toMatchObject({
      code: 'permission_denied',
      details: { target_agent: 'mallory' },
    });
    expect(await operator.get({ session_key })).toEqual(before);
    expect(await failureOf(hand(session_key, { target_agents: ['carol'] }))).toMatchObject({
      code: 'bad_request',
    });
  });
});

describe('the content of a session handoff', () => {
  async function cardsOf(answer: Awaited<ReturnType<typeof hand>>): Promise<readonly unknown[]> {
    if (answer.outcome !== 'handed_on') throw new Error(answer.outcome);
    const [turn] = await h.rows<{ context_box_id: BoxId; project_id: ProjectId; agent_id: AgentId }>(
      'select context_box_id, project_id, agent_id from boxcar.turns where id = $1',
      [answer.turn_id],
    );
    if (turn === undefined) throw new Error('no turn');
    const { context_box_id, project_id: projectId, agent_id: actorId } = turn;
    const boxes = await loadBoxes(h.database.pool, [context_box_id], { projectId, actorId });
    const ids = boxes.get(context_box_id)?.ranges.flatMap(({ cardIds }) => cardIds) ?? [];
    const rows = await h.rows<{ said: unknown }>(
      "select coalesce(to_json(c.content->>'text'), c.content->'data') as said from unnest($1::uuid[]) with ordinality as x(id, n) join boxcar.cards c on c.id = x.id order by x.n",
      [ids],
    );
    return rows.map(({ said }) => said);
  }
  const TASK = 'Continue the session that is handed to you. Its summary is in the context.';
  const about = expect.objectContaining({ request_type: expect.any(String), tape_ref: expect.any(String) });

  test('is the entries since the last anchor for a transfer, and all entries for a full handoff', async () => {
    const session_key = await open();
    expect(await cardsOf(await hand(session_key))).toEqual([
      TASK,
      about,
      expect.objectContaining({ content: 'Session registered by agent: claude' }),
      'one',
    ]);
    await operator.update({ session_key, ...says('two') });
    const note = expect.objectContaining({ content: 'Handoff requested to agent: bob' });
    expect(await cardsOf(await hand(session_key))).toEqual([TASK, about, note, 'two']);
    const whole = await cardsOf(await hand(session_key, { request_type: 'full_handoff' }));
    expect(whole.filter((one) => typeof one === 'string')).toEqual([TASK, 'one', 'two']);
  });

  test('of a transfer is as many of the newest entries as the budget allows', async () => {
    const session_key = await open();
    const long = 'word '.repeat(6_000);
    await operator.update({
      session_key,
      entries: ['first', long, long, long, 'last'].map((content) => says(content)),
    });
    const cards = await cardsOf(await hand(session_key));
    expect(cards.slice(2)).toEqual([long, long, 'last']);
  });
});

test('the same key is one handoff; other arguments with the same key are refused', async () => {
  const session_key = await open();
  const first = await hand(session_key, { idempotency_key: session_key });
  expect(await hand(session_key, { idempotency_key: session_key })).toEqual(first);
  expect(await operator.get({ session_key })).toMatchObject({ context_entries: 3 });
  const other = hand(session_key, { idempotency_key: session_key, request_type: 'collaboration' });
  expect(await failureOf(other)).toMatchObject({ code: 'idempotency_conflict' });
});

test('the target gets no information about a session that waits for an approval', async () => {
  const { outcome, handoff_id } = (await hand(await open(), {
    target_agent: 'carol',
    request_data: { plan: 'secret' },
  })) as { outcome: string; handoff_id: string };
  expect(outcome).toBe('waits');
  const asked = acceptHandoff(h.runtime, { handoff_id }, { as: 'carol' });
  expect(await asked).toEqual({ outcome: 'not_found', handoff_id });
});

test('a refusal is not stored under the key: the request succeeds once it is possible', async () => {
  const session_key = fresh();
  const request = { idempotency_key: session_key };
  expect(await hand(session_key, request)).toEqual({ outcome: 'not_found', session_key });
  await operator.register({ session_key, agent_from: 'claude' });
  expect(await hand(session_key, request)).toMatchObject({ outcome: 'handed_on' });
});

test('a handoff takes as many statements at 10,000 entries as at 10', async () => {
  await hand(await open());
  const counts: number[] = [];
  for (const entries of [10, 10_000]) {
    const session_key = await open();
    for (let left = entries; left > 0; left -= 500)
      await operator.update({
        session_key,
        entries: Array.from({ length: Math.min(left, 500) }, (_, i) => says(`${i}`)),
      });
    const sent = await statementsOf(h.database, () => hand(session_key));
    // Rings of earlier turns are sent in the background.
    counts.push(sent.filter((text) => !/promote\.|^begin|^commit/.test(text)).length);
  }
  expect(counts[0]).toBeLessThan(25);
  expect(counts[1]).toBe(counts[0]);
}, 60_000);
