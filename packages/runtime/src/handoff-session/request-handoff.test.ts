/** A session is handed on: handoff, turn, anchor, right and session change together, or not at all. */
import { createModelRouter } from '@boxcar/llm';
import { PermissionEvaluator } from '@boxcar/policy';
import { createPool, isTransient } from '@boxcar/store';
import { type StatementFault, statementProxy } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { statementsOf } from '../testing/count-statements.js';
import { failureOf } from '../testing/failure-of.js';
import { untilAborted } from '../testing/faults/client.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type HandoffSessions, openHandoffSessions, requestHandoff } from './index.js';

let h: Harness;
let operator: HandoffSessions;
let bob: HandoffSessions;
let n = 0;
const fresh = (): string => `s-${++n}`;

const POLICY = `
version: 1
default: always
rules:
  - condition: { context: { target_agent: mallory } }
    permission: never
  - condition: { context: { target_agent: carol } }
    permission: require_approval
`;

beforeAll(async () => {
  h = await harness({ permissionEvaluator: new PermissionEvaluator({ text: POLICY }) });
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

test('the target does not read a session before it is handed on, and reads it up to the handoff after that', async () => {
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

test('after a full handoff nobody writes to the session, and the target goes on in one of its own', async () => {
  const session_key = await open();
  await hand(session_key, { request_type: 'full_handoff' });
  expect(await operator.get({ session_key })).toMatchObject({ status: 'completed', frozen_head: 7 });
  expect(await operator.update({ session_key, ...says('x') })).toMatchObject({ outcome: 'not_active' });
  expect(await hand(session_key)).toEqual({ outcome: 'not_active', status: 'completed' });
  const own = await bob.register({ session_key: fresh(), continues: session_key });
  expect(own).toMatchObject({ outcome: 'registered', session: { context_entries: 4, agent_from: 'bob' } });
});

test('in a collaboration the target reads what comes later, and adds to it', async () => {
  const session_key = await open();
  await hand(session_key, { request_type: 'collaboration' });
  await operator.update({ session_key, ...says('later') });
  expect(await bob.update({ session_key, ...says('from bob') })).toMatchObject({ outcome: 'updated' });
  expect(await contentsOf(bob, session_key)).toEqual(await contentsOf(operator, session_key));
});

test.each([
  ['an unknown target', 'nobody-here', 'not_found'],
  ['a target that the policy forbids', 'mallory', 'permission_denied'],
])('%s is refused, and the session is as before', async (_what, target_agent, code) => {
  const session_key = await open();
  const before = await operator.get({ session_key });
  expect(await failureOf(hand(session_key, { target_agent }))).toMatchObject({ code });
  expect(await operator.get({ session_key })).toEqual(before);
  expect(await anchorsOf(session_key)).toEqual(['session/start']);
});

test('while a handoff waits for its approval, the target reads nothing and the session goes on', async () => {
  const session_key = await open();
  const before = await operator.get({ session_key });
  const answer = await hand(session_key, { target_agent: 'carol', request_type: 'full_handoff' });
  expect(answer).toMatchObject({ outcome: 'waits', turn_id: null, ticket_id: expect.any(String) });
  expect(await operator.get({ session_key })).toEqual(before);
  const carol = await openHandoffSessions(h.runtime, { as: 'carol' });
  expect(await contentsOf(carol, session_key)).toBe('not_found');
});

test('the same key is one handoff; other arguments under it are refused', async () => {
  const session_key = await open();
  const first = await hand(session_key, { idempotency_key: 'k' });
  expect(await hand(session_key, { idempotency_key: 'k' })).toEqual(first);
  expect(await operator.get({ session_key })).toMatchObject({ context_entries: 3 });
  const other = hand(session_key, { idempotency_key: 'k', request_type: 'collaboration' });
  expect(await failureOf(other)).toMatchObject({ code: 'idempotency_conflict' });
});

test('it takes as many statements at 10,000 entries as at 10', async () => {
  const counts: number[] = [];
  for (const entries of [10, 10_000]) {
    const session_key = await open();
    for (let left = entries; left > 0; left -= 500)
      await operator.update({
        session_key,
        entries: Array.from({ length: Math.min(left, 500) }, (_, i) => says(`${i}`)),
      });
    counts.push((await statementsOf(h.database, () => hand(session_key))).length);
  }
  expect(counts[1]).toBe(counts[0]);
}, 60_000);

const MOMENTS: readonly Omit<StatementFault, 'at'>[] = [
  { scope: 'connection', when: 'before' },
  { scope: 'connection', when: 'after' },
  { scope: 'process', when: 'before' },
  { scope: 'process', when: 'after' },
];

/** One request by a process of its own, which is cut. */
async function cut(session_key: string, fault?: StatementFault): Promise<readonly string[]> {
  await using proxy = await statementProxy(h.database.url, fault);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  const runtime = new Runtime({
    pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({}),
    permissionEvaluator: new PermissionEvaluator({ text: POLICY }),
  });
  try {
    const request = { session_key, target_agent: 'bob', request_type: 'full_handoff', idempotency_key: 'k' };
    await untilAborted(requestHandoff(runtime, request), proxy.life).catch((error: unknown) => {
      if (!proxy.isDead && !isTransient(error)) throw error;
    });
    return proxy.statements;
  } finally {
    await runtime.close();
    await pool.end();
  }
}

test('a request that is cut at any of its statements is done whole or not at all, and once in the end', async () => {
  const statements = await cut(await open());
  expect(statements.length).toBeGreaterThan(8);
  for (const at of statements.keys())
    for (const moment of MOMENTS) {
      const session_key = await open();
      await cut(session_key, { at: at + 1, ...moment });
      const isDone = (await operator.get({ session_key }))?.status === 'completed';
      expect(await contentsOf(bob, session_key)).toEqual(isDone ? expect.any(Array) : 'not_found');
      await hand(session_key, { request_type: 'full_handoff', idempotency_key: 'k' });
      expect(await operator.get({ session_key })).toMatchObject({ status: 'completed', context_entries: 3 });
      expect(await anchorsOf(session_key)).toEqual(['session/start', 'handoff/bob']);
      const [made] = await h.rows<{ n: number }>(
        `select count(*)::int as n from boxcar.handoffs h join boxcar.cards c on c.id = h.context_card_id where c.content->'data'->>'session_key' = $1`,
        [session_key],
      );
      expect(made).toEqual({ n: 1 });
    }
}, 180_000);
