/** Sessions of clients: their answers, their read rights, and the data that remains after an erasure. */
import type { BoxId, ProjectId } from '@boxcar/kernel';
import { eraseCards, findOwnCards, purgeTapes } from '@boxcar/store';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';
import {
  acceptHandoff,
  type ContextPageAnswer,
  completeHandoff,
  type HandoffSessions,
  openHandoffSessions,
  requestHandoff,
} from './index.js';

let h: Harness;
let operator: HandoffSessions;
let ada: HandoffSessions;
let bob: HandoffSessions;
let n = 0;
const fresh = (): string => `s-${++n}`;

beforeAll(async () => {
  h = await harness();
  await h.profile('idle', [{ say: 'done' }], { worker_target: 'nowhere' });
  for (const name of ['ada', 'bob'])
    await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'idle', agent_id: name });
  operator = await openHandoffSessions(h.runtime);
  ada = await openHandoffSessions(h.runtime, { as: 'ada' });
  bob = await openHandoffSessions(h.runtime, { as: 'bob' });
});
afterAll(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

/** The answer with this outcome; any other outcome fails the test. */
async function expectOutcome<A extends { readonly outcome: string }, O extends A['outcome']>(
  work: Promise<A>,
  outcome: O,
): Promise<Extract<A, { outcome: O }>> {
  const answer = await work;
  expect(answer.outcome).toBe(outcome);
  return answer as Extract<A, { outcome: O }>;
}

const register = (sessions: HandoffSessions, rest: object = {}) =>
  expectOutcome(sessions.register({ session_key: fresh(), ...rest }), 'registered');
const says = (content: string, rest: object = {}) => ({ context_type: 'message', content, ...rest });
/** Moves the last write of a session into the past. */
const age = (key: string, hours: number) =>
  h.rows(
    `update boxcar.handoff_sessions set last_write_at = last_write_at - $2 * interval '1 hour' where session_key = $1`,
    [key, hours],
  );

describe('the registration of a session', () => {
  test('begins the session with an entry of its own, in the state active', async () => {
    const { session, entry } = await register(operator, { agent_from: 'claude', metadata: { topic: 'x' } });
    expect(session).toMatchObject({
      status: 'active',
      agent_from: 'claude',
      agent_to: null,
      is_dormant: false,
      is_archived: false,
      context_entries: 1,
      counts: { message: 0, file: 0, tool_call: 0, system: 1 },
    });
    expect(entry).toMatchObject({ sequence_number: 1, context_type: 'system' });
    const { entries } = await expectOutcome(operator.context({ session_key: session.session_key }), 'found');
    expect(entries).toMatchObject([
      {
        content: 'Session registered by agent: claude',
        metadata: { action: 'session_registered', retention_policy: 'standard', metadata: { topic: 'x' } },
      },
    ]);
  });

  test('with a used session key returns the existing session', async () => {
    const { session } = await register(operator, { agent_from: 'claude' });
    const again = operator.register({ session_key: session.session_key, agent_from: 'other' });
    expect(await expectOutcome(again, 'exists')).toMatchObject({ session: { id: session.id } });
  });

  test('with the same idempotency key returns the first answer; other content with that key is refused', async () => {
    const asked = { session_key: fresh(), agent_from: 'claude', idempotency_key: 'k' };
    const first = await expectOutcome(operator.register(asked), 'registered');
    const second = await expectOutcome(operator.register(asked), 'registered');
    expect(second).toMatchObject({
      is_repeated: true,
      entry: first.entry,
      session: { id: first.session.id },
    });
    const other = operator.register({ ...asked, agent_from: 'other' });
    expect(await failureOf(other)).toMatchObject({ code: 'idempotency_conflict' });
  });

  test('of one session key by ten clients at once makes one session', async () => {
    const session_key = fresh();
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => operator.register({ session_key, agent_from: 'claude' })),
    );
    expect(answers.map(({ outcome }) => outcome).sort()).toEqual([
      ...Array.from({ length: 9 }, () => 'exists'),
      'registered',
    ]);
  });

  test('accepts a policy in the metadata, and refuses an unknown policy', async () => {
    const { session } = await register(operator, {
      agent_from: 'x',
      metadata: { retention_policy: 'short' },
    });
    expect(session.retention_policy).toBe('short');
    const unknown = { session_key: fresh(), agent_from: 'x', metadata: { retention_policy: 'for ever' } };
    expect(await failureOf(operator.register(unknown))).toMatchObject({ code: 'bad_request' });
  });

  test('by an agent is possible only in its own name', async () => {
    expect((await register(ada)).session.agent_from).toBe('ada');
    const other = ada.register({ session_key: fresh(), agent_from: 'bob' });
    expect(await failureOf(other)).toMatchObject({ code: 'bad_request' });
    expect(await failureOf(operator.register({ session_key: fresh() }))).toMatchObject({
      code: 'bad_request',
    });
  });

  test('does not take over an existing tape of the same name', async () => {
    const session_key = fresh();
    await h.runtime.tape(`session/${session_key}`);
    expect(await failureOf(operator.register({ session_key, agent_from: 'x' }))).toMatchObject({
      code: 'conflict',
    });
    expect(await operator.get({ session_key })).toBeUndefined();
  });
});

describe('an update of a session', () => {
  test('numbers its entries in order, counts them by type, and returns them as they were written', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    const one = await expectOutcome(operator.update({ session_key, ...says('Hello 😀') }), 'updated');
    expect(one.entries).toMatchObject([{ sequence_number: 2, content_length: 8 }]);
    const more = await expectOutcome(
      operator.update({
        session_key,
        entries: [
          { context_type: 'file', content: 'a.ts', metadata: { lines: 3 } },
          { context_type: 'tool_call', content: 'grep' },
          { context_type: 'system', content: 'note' },
          says('Bye.', { metadata: { role: 'assistant' } }),
        ],
      }),
      'updated',
    );
    expect(more.entries.map(({ sequence_number }) => sequence_number)).toEqual([3, 4, 5, 6]);
    expect(more.session).toMatchObject({
      context_entries: 6,
      counts: { message: 2, file: 1, tool_call: 1, system: 2 },
    });
    const { entries } = await expectOutcome(operator.context({ session_key }), 'found');
    expect(entries.slice(1)).toMatchObject([
      { sequence_number: 2, context_type: 'message', content: 'Hello 😀', metadata: {} },
      { sequence_number: 3, context_type: 'file', content: 'a.ts', metadata: { lines: 3 } },
      { sequence_number: 4, context_type: 'tool_call', content: 'grep' },
      { sequence_number: 5, context_type: 'system', content: 'note' },
      { sequence_number: 6, context_type: 'message', content: 'Bye.', metadata: { role: 'assistant' } },
    ]);
  });

  test('with the same key is one update, also after the session has ended; other content with that key is refused', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    const asked = { session_key, entries: [says('a'), says('b')], idempotency_key: 'u' };
    const answers = await Promise.all([1, 2, 3].map(() => expectOutcome(operator.update(asked), 'updated')));
    for (const { entries } of answers)
      expect(entries.map(({ sequence_number }) => sequence_number)).toEqual([2, 3]);
    expect(answers.filter(({ is_repeated }) => is_repeated)).toHaveLength(2);
    await expectOutcome(operator.close({ session_key }), 'closed');
    expect(await expectOutcome(operator.update(asked), 'updated')).toMatchObject({ is_repeated: true });
    const other = operator.update({ session_key, ...says('c'), idempotency_key: 'u' });
    expect(await failureOf(other)).toMatchObject({ code: 'idempotency_conflict' });
    expect(await operator.get({ session_key })).toMatchObject({ context_entries: 4 });
  });

  test('with the same text as a message and as a file makes two entries', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    await expectOutcome(operator.update({ session_key, ...says('a'), idempotency_key: 'u' }), 'updated');
    const file = { session_key, context_type: 'file', content: 'a', idempotency_key: 'u' };
    expect(await failureOf(operator.update(file))).toMatchObject({ code: 'idempotency_conflict' });
  });

  test('accepts 1,048,576 bytes of UTF-8, however they are escaped, and refuses a byte more', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    const most = 1_048_576;
    for (const content of ['a'.repeat(most), 'ä'.repeat(most / 2), '\u0001'.repeat(most)])
      await expectOutcome(operator.update({ session_key, ...says(content) }), 'updated');
    expect(
      await failureOf(operator.update({ session_key, ...says(`ä${'a'.repeat(most - 1)}`) })),
    ).toMatchObject({ code: 'payload_too_large' });
  });

  test.each([
    ['no content', { context_type: 'message' }],
    ['empty content', { context_type: 'message', content: '' }],
    ['an unknown type', { context_type: 'thought', content: 'x' }],
    ['a number', { context_type: 'message', content: 7 }],
    ['a lone surrogate', { context_type: 'message', content: '\ud800' }],
    ['a NUL', { context_type: 'message', content: '\0' }],
    ['no entries', { entries: [] }],
    ['both forms of content', { context_type: 'message', content: 'x', entries: [says('y')] }],
    ['large metadata', says('x', { metadata: { a: 'a'.repeat(65_536) } })],
  ])('with %s is refused, and nothing is written', async (_what, input) => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    expect((await failureOf(operator.update({ session_key, ...input }))).code).toMatch(
      /^(bad_request|payload_too_large)$/,
    );
    expect(await operator.get({ session_key })).toMatchObject({ context_entries: 1 });
  });

  test('with one bad entry in a batch writes none of the batch', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    await failureOf(operator.update({ session_key, entries: [says('a'), says('\0')] }));
    expect(await operator.get({ session_key })).toMatchObject({ context_entries: 1 });
  });

  test('of an unknown session is refused as not found', async () => {
    await expectOutcome(operator.update({ session_key: 'nowhere', ...says('x') }), 'not_found');
    await expectOutcome(operator.context({ session_key: 'nowhere' }), 'not_found');
    await expectOutcome(operator.summary({ session_key: 'nowhere' }), 'not_found');
    await expectOutcome(operator.close({ session_key: 'nowhere' }), 'not_found');
  });

  test('after a reset of the session’s tape is refused', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    const tape = await h.runtime.tape(`session/${session_key}`, { create: false });
    await tape.reset();
    expect(await failureOf(operator.update({ session_key, ...says('x') }))).toMatchObject({
      code: 'tape_conflict',
    });
  });
});

describe('the life of a session', () => {
  test('makes it dormant, expired and archived at the time of each question, without any job', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    await age(session_key, 3);
    expect(await operator.get({ session_key })).toMatchObject({ status: 'active', is_dormant: true });
    const { session: woken } = await expectOutcome(operator.update({ session_key, ...says('x') }), 'updated');
    expect(woken).toMatchObject({ status: 'active', is_dormant: false });
    await age(session_key, 25);
    const { session: over } = await expectOutcome(
      operator.update({ session_key, ...says('too late') }),
      'not_active',
    );
    expect(over).toMatchObject({ status: 'expired', context_entries: 2, is_archived: false });
    await expectOutcome(operator.close({ session_key }), 'not_active');
    expect((await operator.list({ status: 'expired' })).sessions.map((s) => s.session_key)).toContain(
      session_key,
    );
    expect((await operator.list({ status: 'active' })).sessions.map((s) => s.session_key)).not.toContain(
      session_key,
    );
    await age(session_key, 30 * 24);
    expect(await operator.get({ session_key })).toMatchObject({ status: 'expired', is_archived: true });
  });

  test('lets a closed session be read, and refuses writes', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    const closed = await expectOutcome(operator.close({ session_key, idempotency_key: 'c' }), 'closed');
    expect(closed.session).toMatchObject({ status: 'completed', expires_at: null, context_entries: 2 });
    expect(closed.session.frozen_head).toBe(4);
    expect(
      await expectOutcome(operator.close({ session_key, idempotency_key: 'c' }), 'closed'),
    ).toMatchObject({
      is_repeated: true,
    });
    expect(await expectOutcome(operator.close({ session_key }), 'not_active')).toMatchObject({
      session: { status: 'completed' },
    });
    await expectOutcome(operator.update({ session_key, ...says('x') }), 'not_active');
    expect((await expectOutcome(operator.context({ session_key }), 'found')).entries).toHaveLength(2);
  });

  test('leaves a canceled session without a frozen head', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const closed = await expectOutcome(
      operator.close({ session_key: session.session_key, status: 'cancelled', reason: 'a mistake' }),
      'closed',
    );
    expect(closed.session).toMatchObject({ status: 'cancelled', frozen_head: null });
  });

  test('lets a session continue another: it reads the other session, continues its numbers, and leaves it unchanged', async () => {
    const first = (await register(operator, { agent_from: 'x' })).session.session_key;
    await operator.update({ session_key: first, ...says('one') });
    await operator.close({ session_key: first });
    const second = (await register(operator, { agent_from: 'y', continues: first })).session;
    expect(second).toMatchObject({ continues: first, context_entries: 4 });
    await operator.update({ session_key: second.session_key, ...says('two') });
    await operator.close({ session_key: second.session_key });
    const third = (await register(operator, { agent_from: 'z', continues: second.session_key })).session;
    const { entries } = await expectOutcome(operator.context({ session_key: third.session_key }), 'found');
    expect(entries.map(({ sequence_number }) => sequence_number)).toEqual([1, 2, 3, 4, 5, 6, 7]);
    expect(entries.map(({ content }) => content)).toEqual([
      'Session registered by agent: x',
      'one',
      'Session completed by agent: operator',
      'Session registered by agent: y',
      'two',
      'Session completed by agent: operator',
      'Session registered by agent: z',
    ]);
    expect(await expectOutcome(operator.summary({ session_key: third.session_key }), 'found')).toMatchObject({
      key_points: expect.arrayContaining(['First message: one', 'Last message: two']),
    });
    expect(await operator.get({ session_key: first })).toMatchObject({ context_entries: 3 });
  });

  test('gives a summary with the types of files and tools in the metadata of the newest entries', async () => {
    const session_key = (await register(operator, { agent_from: 'x' })).session.session_key;
    const file = (metadata?: object) => ({ context_type: 'file', content: 'x', metadata });
    const call = (metadata?: object) => ({ context_type: 'tool_call', content: 'x', metadata });
    await operator.update({
      session_key,
      entries: [
        file({ file_path: 'src/a.ts' }),
        file({ path: 'C:\\docs\\b.md' }),
        file({ filename: '.gitignore' }),
        file({ file_path: { no: 'text' } }),
        file(),
        call({ tool_name: 'grep' }),
        call({ tool: 'ls' }),
        call({ tool_name: 'grep' }),
        call(),
      ],
    });
    const { key_points } = await expectOutcome(operator.summary({ session_key }), 'found');
    expect(key_points).toEqual([
      'System: session_registered',
      '5 file operations',
      'File types: .md, .ts',
      '4 tool calls',
      'Tools used: grep, ls',
    ]);
  });

  test('does not give later sessions what is written to the tape of a completed session afterwards', async () => {
    const first = (await register(operator, { agent_from: 'x' })).session.session_key;
    await operator.close({ session_key: first });
    const tape = await h.runtime.tape(`session/${first}`, { create: false });
    await tape.handoff('late', { state: { a: 1 } });
    const { session } = await register(operator, { agent_from: 'y', continues: first });
    const fork = await h.runtime.tape(`session/${session.session_key}`, { create: false });
    expect((await fork.anchors()).map(({ name }) => name)).toEqual(['session/start']);
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('allows only a completed session to be continued', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    const asked = { session_key: fresh(), agent_from: 'y', continues: session_key };
    expect(await failureOf(operator.register(asked))).toMatchObject({ code: 'bad_request' });
    expect(await failureOf(operator.register({ ...asked, continues: 'nowhere' }))).toMatchObject({
      code: 'not_found',
    });
    expect(await operator.get({ session_key: asked.session_key })).toBeUndefined();
  });
});

describe('access to sessions', () => {
  const grant = (box_id: string, grantee: string, rest: object = {}) =>
    h.runtime.submit('grant_box', { box_id, grantee, mode: 'read', ...rest });
  /** Grants up to a position, as a handoff does. */
  const grantUpto = (box_id: string, grantee: string, upto: number) =>
    h.rows(
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, source)
       select a.project_id, a.id, $1, 'read', $3, a.id::text from boxcar.agents a where a.name = $2
       on conflict (agent_id, box_id, mode) do update set upto_position = excluded.upto_position`,
      [box_id, grantee, upto],
    );

  test('by an agent is limited to its own sessions; the operator has access to all', async () => {
    const { session } = await register(ada);
    const { session_key } = session;
    expect(await ada.get({ session_key })).toMatchObject({ id: session.id });
    expect(await operator.get({ session_key })).toMatchObject({ id: session.id });
    expect(await bob.get({ session_key })).toBeUndefined();
    await expectOutcome(bob.update({ session_key, ...says('x') }), 'not_found');
    await expectOutcome(bob.close({ session_key }), 'not_found');
    await expectOutcome(bob.context({ session_key }), 'not_found');
    await expectOutcome(bob.summary({ session_key }), 'not_found');
    expect(await expectOutcome(bob.register({ session_key }), 'exists')).toMatchObject({ session: null });
    expect((await bob.list()).sessions.map((s) => s.session_key)).not.toContain(session_key);
    expect((await ada.list()).sessions.map((s) => s.session_key)).toContain(session_key);
  });

  test('with a grant up to a position shows the session as it was at that position', async () => {
    const { session } = await register(ada);
    const { session_key, tape_box_id } = session;
    await ada.update({ session_key, entries: [says('one'), says('two')] });
    // The bootstrap has two entries, the registration is the third.
    await grantUpto(tape_box_id, 'bob', 5);
    await ada.update({ session_key, ...says('three') });
    await ada.update({ session_key, context_type: 'file', content: 'secret.ts' });
    expect(await bob.get({ session_key })).toMatchObject({
      context_entries: 3,
      counts: { message: 2, file: 0, tool_call: 0, system: 1 },
    });
    const { entries, has_more } = await expectOutcome(bob.context({ session_key }), 'found');
    expect(entries.map(({ content }) => content).slice(1)).toEqual(['one', 'two']);
    expect(has_more).toBe(false);
    expect((await expectOutcome(bob.context({ session_key, cursor: 3 }), 'found')).entries).toEqual([]);
    const { key_points } = await expectOutcome(bob.summary({ session_key }), 'found');
    expect(key_points).toContain('Last message: two');
    expect(key_points.join()).not.toMatch(/three|file/);
    expect(await bob.list()).toMatchObject({ sessions: [{ session_key, context_entries: 3 }], total: 1 });
    expect(await failureOf(bob.update({ session_key, ...says('x') }))).toMatchObject({
      code: 'box_not_authorized',
    });
  });

  test('with a right to append allows adding entries, and not ending the session', async () => {
    const { session } = await register(ada);
    const { session_key, tape_box_id } = session;
    await grant(tape_box_id, 'bob');
    await grant(tape_box_id, 'bob', { mode: 'append' });
    const { entries } = await expectOutcome(bob.update({ session_key, ...says('from bob') }), 'updated');
    expect(entries).toMatchObject([{ sequence_number: 2 }]);
    expect(await failureOf(bob.close({ session_key }))).toMatchObject({ code: 'box_not_authorized' });
    expect(await ada.get({ session_key })).toMatchObject({ status: 'active', context_entries: 2 });
  });

  test('to the end of a session allows an agent to continue it', async () => {
    const { session } = await register(ada);
    const { session_key, tape_box_id } = session;
    await ada.close({ session_key });
    const asked = { session_key: fresh(), continues: session_key };
    expect(await failureOf(bob.register(asked))).toMatchObject({ code: 'not_found' });
    await grantUpto(tape_box_id, 'bob', 3);
    expect(await failureOf(bob.register(asked))).toMatchObject({ code: 'not_found' });
    await grantUpto(tape_box_id, 'bob', 4);
    expect(await expectOutcome(bob.register(asked), 'registered')).toMatchObject({
      session: { context_entries: 3, agent_from: 'bob' },
    });
  });

  test('does not cross projects: another project has its own sessions', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    await h.runtime.createProject({ name: 'elsewhere' });
    const elsewhere = await openHandoffSessions(h.runtime, { projectId: 'elsewhere' });
    expect(await elsewhere.get({ session_key })).toBeUndefined();
    expect(await elsewhere.list()).toEqual({ sessions: [], total: 0, next_cursor: null });
    await expectOutcome(elsewhere.register({ session_key, agent_from: 'x' }), 'registered');
  });
});

describe('a list or page of sessions', () => {
  test('shows sessions from and to an agent, page by page, the newest first', async () => {
    const keys: string[] = [];
    for (let i = 0; i < 5; i += 1)
      keys.unshift((await register(operator, { agent_from: 'lister' })).session.session_key);
    await h.rows(
      `update boxcar.handoff_sessions set agent_from = 'z', agent_to = 'lister' where session_key = $1`,
      [keys[0]],
    );
    const seen: string[] = [];
    let cursor: string | null = null;
    do {
      const asked = { agent: 'lister', limit: 2, ...(cursor === null ? {} : { cursor }) };
      const { sessions, next_cursor, total } = await operator.list(asked);
      expect(total).toBe(5);
      seen.push(...sessions.map(({ session_key }) => session_key));
      cursor = next_cursor;
    } while (cursor !== null);
    expect(seen).toEqual(keys);
    expect(await failureOf(operator.list({ cursor: 'x' }))).toMatchObject({ code: 'bad_request' });
  });

  test('of context ends at 256 KiB, and has at least one entry', async () => {
    const { session } = await register(operator, { agent_from: 'x' });
    const { session_key } = session;
    for (const size of [200_000, 200_000, 600_000])
      await operator.update({ session_key, ...says('a'.repeat(size)) });
    const pages: number[][] = [];
    let cursor: number | null = 0;
    while (cursor !== null) {
      const page: Extract<ContextPageAnswer, { outcome: 'found' }> = await expectOutcome(
        operator.context({ session_key, cursor }),
        'found',
      );
      pages.push(page.entries.map(({ sequence_number }) => sequence_number));
      expect(page.has_more).toBe(page.next_cursor !== null);
      cursor = page.next_cursor;
    }
    expect(pages).toEqual([[1, 2], [3], [4]]);
  });
});

test('leaves out erased words of a session, and nothing else', async () => {
  const secret = 'the-secret-word';
  const { session } = await register(operator, { agent_from: 'x', metadata: { note: secret } });
  const { session_key } = session;
  await operator.update({ session_key, entries: [says(secret), says('b', { metadata: { note: secret } })] });
  await operator.close({ session_key, reason: secret });
  const [{ project_id } = { project_id: '' }] = await h.rows<{ project_id: string }>(
    'select project_id from boxcar.handoff_sessions where session_key = $1',
    [session_key],
  );
  const projectId = project_id as ProjectId;
  const cards = await findOwnCards(h.database.pool, session.tape_box_id as BoxId, projectId);
  await eraseCards(h.database.pool, cards, { projectId, reason: 'asked to' });
  const context = await expectOutcome(operator.context({ session_key }), 'found');
  expect(context.entries).toHaveLength(4);
  const summary = await expectOutcome(operator.summary({ session_key }), 'found');
  expect(summary.summary).toContain('2 messages');
  expect(JSON.stringify([context, summary])).not.toContain(secret);
  for (const table of ['cards', 'tape_entries', 'tape_words', 'handoff_sessions', 'handoff_session_entries'])
    expect(
      (
        await h.rows<{ n: number }>(
          `select count(*)::int as n from boxcar.${table} t where t::text like $1`,
          [`%${secret}%`],
        )
      )[0]?.n,
      table,
    ).toBe(0);
});

describe('a purge of sessions', () => {
  const purge = (hours: number) =>
    purgeTapes(h.database.pool, { before: new Date(Date.now() - hours * 3_600_000 + 60_000) });
  const isThere = async (key: string): Promise<boolean> =>
    (await operator.get({ session_key: key })) !== undefined;
  /** As if everything had happened that long ago. */
  const backdate = async (key: string, hours: number): Promise<void> => {
    await age(key, hours);
    await h.rows(
      `update boxcar.handoff_sessions set ended_at = ended_at - $2 * interval '1 hour' where session_key = $1`,
      [key, hours],
    );
  };

  test('removes ended sessions with their tapes, and no others', async () => {
    const keys = { active: fresh(), expired: fresh(), closed: fresh() };
    for (const session_key of Object.values(keys)) {
      await operator.register({ session_key, agent_from: 'x' });
      await operator.update({ session_key, ...says('x') });
    }
    await operator.close({ session_key: keys.closed });
    await backdate(keys.closed, 1);
    await backdate(keys.expired, 25);
    const before = await rowCounts(h.database.pool);
    await purge(0);
    expect(await isThere(keys.active)).toBe(true);
    expect(await isThere(keys.expired)).toBe(false);
    expect(await isThere(keys.closed)).toBe(false);
    const after = await rowCounts(h.database.pool);
    expect((after.handoff_sessions ?? 0) < (before.handoff_sessions ?? 0)).toBe(true);
    const [left] = await h.rows<{ n: number }>(
      'select count(*)::int as n from boxcar.handoff_session_entries e where not exists (select from boxcar.handoff_sessions s where s.id = e.session_id)',
    );
    expect(left).toEqual({ n: 0 });
    await checkInvariants(h.database.pool, { isSettled: false });
    // The key is free again.
    await expectOutcome(operator.register({ session_key: keys.closed, agent_from: 'x' }), 'registered');
  });

  test('removes a session that was accepted, and ends the packages of a removed session', async () => {
    const fetched = (await register(operator, { agent_from: 'x' })).session.session_key;
    const left = (await register(operator, { agent_from: 'x' })).session.session_key;
    const hand = async (session_key: string, rest: object = {}): Promise<string> => {
      const answer = await requestHandoff(h.runtime, { session_key, target_agent: 'bob', ...rest });
      if (answer.outcome !== 'handed_on') throw new Error(answer.outcome);
      return answer.handoff_id;
    };
    const [done, open] = [
      await hand(fetched, { target_agent: 'elsewhere' }),
      await hand(left, { target_agent: 'elsewhere' }),
    ];
    await acceptHandoff(h.runtime, { handoff_id: done });
    await completeHandoff(h.runtime, { handoff_id: done, result: 'done' });
    // A segment of its tape is in the context of a turn, and remains as long as that turn.
    const packed = (await register(operator, { agent_from: 'x' })).session.session_key;
    await hand(packed);
    for (const key of [fetched, left, packed]) await backdate(key, 25);
    await purge(0);
    expect([await isThere(fetched), await isThere(left), await isThere(packed)]).toEqual([
      false,
      false,
      true,
    ]);
    const handoffs = await h.rows(
      "select phase, session_id, error->>'message' as said from boxcar.handoffs where id = any ($1::uuid[]) order by created_at",
      [[done, open]],
    );
    expect(handoffs).toEqual([
      { phase: 'completed', session_id: null, said: null },
      { phase: 'canceled', session_id: null, said: 'The session was purged.' },
    ]);
    expect(await acceptHandoff(h.runtime, { handoff_id: open })).toMatchObject({
      outcome: 'not_possible',
      why: 'It has ended.',
    });
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('keeps a session that another session continues, until that one has also ended', async () => {
    const first = (await register(operator, { agent_from: 'x' })).session.session_key;
    await operator.close({ session_key: first });
    const second = (await register(operator, { agent_from: 'y', continues: first })).session.session_key;
    await backdate(first, 1);
    await purge(0);
    expect(await isThere(first)).toBe(true);
    await operator.close({ session_key: second });
    await backdate(second, 1);
    await purge(0);
    expect([await isThere(first), await isThere(second)]).toEqual([false, false]);
  });
});
