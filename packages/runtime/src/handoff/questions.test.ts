/** Questions that a function asks while it serves a handoff, and their replies. */
import type { HandoffMessage, JsonValue } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkWire } from '../testing/check-wire.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import type { AgentFunction } from './agents.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let tool: HandoffTool;

beforeEach(async () => {
  h = await harness({ connections: 8 });
  tool = new HandoffTool({ runtime: h.runtime });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
});

const register = (run: AgentFunction): void => tool.registerAgent('clerk', run, { retry: 'safe' });
const begin = async (rest: object = {}): Promise<string> =>
  (await tool.handoff({ source_agent: 'main', target_agent: 'clerk', task: 'x', wait: false, ...rest }))
    .handoff_id;
const questionOf = (id: string, n = 1): Promise<HandoffMessage> =>
  waitFor(async () => (await tool.messages(id)).filter(({ type }) => type === 'question')[n - 1], {
    message: 'a question',
  });

describe('a question of a function', () => {
  test('waits for its reply, and the function continues with it', async () => {
    register(async (_input, { ask }) => `${await ask('Which colour?')} ${await ask('Which size?')}`);
    const id = await begin();
    const question = await questionOf(id);
    expect(question).toMatchObject({
      seq: 1,
      text: 'Which colour?',
      state: 'open',
      by: null,
      replies_to: null,
    });
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'waiting_input', status: 'in_progress' });
    expect(await tool.reply(id, 'red', { by: 'ann' })).toMatchObject([
      { state: 'answered' },
      { seq: 2, type: 'reply', text: 'red', by: 'ann', replies_to: 1 },
    ]);
    expect(await questionOf(id, 2)).toMatchObject({ seq: 3, text: 'Which size?' });
    await tool.reply(id, 'L');
    expect(await tool.waitForHandoff(id)).toMatchObject({
      status: 'completed',
      result: 'red L',
      attempts: 1,
    });
    expect((await tool.messages(id)).map(({ text, state }) => [text, state])).toEqual([
      ['Which colour?', 'answered'],
      ['red', null],
      ['Which size?', 'answered'],
      ['L', null],
    ]);
    const events = await tool.getEvents(id);
    expect(events.map(({ event_type }) => event_type.replace('handoff.', ''))).toEqual([
      'requested',
      'started',
      'question',
      'reply',
      'question',
      'reply',
      'completed',
    ]);
    expect(events[3]).toMatchObject({ question: 1, reply: 2, by: 'ann' });
  });

  test('takes one reply, none when it is closed, and none from another project', async () => {
    register(async (_input, { ask }) => `${await ask('a?')}${await ask('b?')}`);
    const id = await begin();
    await questionOf(id);
    const replies = await Promise.allSettled(
      ['1', '2', '3'].map((text) => tool.reply(id, text, { question: 1 })),
    );
    expect(replies.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    await questionOf(id, 2);
    expect(await failureOf(tool.reply(id, 'late', { question: 1 }))).toMatchObject({
      code: 'question_closed',
    });
    expect(await failureOf(tool.reply(id, 'x', { question: 9 }))).toMatchObject({ code: 'not_found' });
    const { project_id } = await h.runtime.createProject({ name: 'other' });
    const others = new HandoffTool({ runtime: h.runtime, projectId: project_id as never });
    expect(await failureOf(others.reply(id, 'x'))).toMatchObject({ code: 'not_found' });
    expect(await failureOf(others.messages(id))).toMatchObject({ code: 'not_found' });
    await tool.reply(id, 'b');
    await tool.waitForHandoff(id);
    expect(await failureOf(tool.reply(id, 'x'))).toMatchObject({ code: 'question_closed' });
    expect(await failureOf(tool.reply(id, 'x', { question: 3 }))).toMatchObject({ code: 'question_closed' });
    for (const text of [' ', 'a\0', 7 as never])
      expect(await failureOf(tool.reply(id, text))).toMatchObject({ code: 'bad_request' });
  });

  test('without a reply ends in time, and the function gets an error', async () => {
    register(async (_input, { ask }) => {
      try {
        return await ask('Anybody?', { timeout: 0.05 });
      } catch (error) {
        return { code: (error as { code?: JsonValue }).code ?? null };
      }
    });
    const id = await begin();
    expect(await tool.waitForHandoff(id)).toMatchObject({ result: { code: 'question_expired' } });
    expect(await tool.messages(id)).toMatchObject([{ state: 'expired' }]);
    expect((await tool.getEvents(id)).map(({ event_type }) => event_type)).toContain(
      'handoff.question_expired',
    );
    expect(await failureOf(tool.reply(id, 'me'))).toMatchObject({ code: 'question_closed' });
  });

  test('stops the clock of its handoff', async () => {
    register(async (_input, { ask }) => ask('Well?'));
    const id = await begin({ timeout: 1 });
    await questionOf(id);
    // Longer ago than the whole time of the handoff.
    await h.rows(
      "update boxcar.handoffs set asking_since = asking_since - interval '1 hour', deadline_at = deadline_at - interval '1 hour'",
    );
    await new Promise((settle) => setTimeout(settle, 1_200));
    await tool.reply(id, 'yes');
    expect(await tool.waitForHandoff(id)).toMatchObject({ status: 'completed', result: 'yes' });
  });

  test('can be one of several at the same time, which are answered by number in any order', async () => {
    register(async (_input, { ask }) =>
      (await Promise.all(['a?', 'b?', 'a?'].map((text) => ask(text)))).join(''),
    );
    const id = await begin();
    await questionOf(id, 3);
    const open = await tool.messages(id);
    for (const { seq, text } of open.toReversed())
      await tool.reply(id, `${text?.[0]}${seq}`, { question: seq });
    const { result } = await tool.waitForHandoff(id);
    expect(result).toMatch(/^a\db\da\d$/);
    const [first] = await h.rows<{ asking: boolean }>(
      'select asking_since is not null as asking from boxcar.handoffs',
    );
    expect(first).toEqual({ asking: false });
  });

  test('of a handoff that is canceled ends, and takes no reply', async () => {
    register(async (_input, { ask }) => ask('Well?'));
    const id = await begin();
    await questionOf(id);
    const { turn_id } = (await tool.getHandoff(id)) ?? {};
    await h.runtime.submit('cancel', { turn_id, reason: 'enough' });
    expect(await tool.waitForHandoff(id)).toMatchObject({ phase: 'canceled' });
    expect(await tool.messages(id)).toMatchObject([{ state: 'closed' }]);
    expect(await failureOf(tool.reply(id, 'x'))).toMatchObject({ code: 'question_closed' });
  });

  test.each<[string, unknown, unknown, string]>([
    ['a blank text', ' ', {}, 'text'],
    ['no text', undefined, {}, 'text'],
    ['no time', 'a?', { timeout: 0 }, 'timeout'],
    ['more than thirty days', 'a?', { timeout: 31 * 86_400 }, 'timeout'],
  ])('is refused for %s', async (_name, text, options, words) => {
    register(async (_input, { ask }) => ask(text as string, options as object));
    const error = await failureOf(tool.handoff({ source_agent: 'main', target_agent: 'clerk', task: 'x' }));
    expect(error.code).toBe('bad_request');
    expect(error.message).toContain(words);
  });

  test('is refused for a function that may not run again', async () => {
    tool.registerAgent('clerk', (_input, { ask }) => ask('a?'));
    const error = await failureOf(tool.handoff({ source_agent: 'main', target_agent: 'clerk', task: 'x' }));
    expect(error.message).toContain("{ retry: 'safe' }");
  });
});

describe('a question that an attempt has left open', () => {
  let go = (): void => undefined;
  let gone: Promise<void>;
  let attempts: number;

  beforeEach(() => {
    attempts = 0;
    gone = new Promise((settle) => {
      go = settle;
    });
  });
  const retry = { max_attempts: 2, base_seconds: 2, max_seconds: 2 };
  /** Asks, and fails before a reply arrives. */
  const failAsking = async (id: string, asked: Promise<string>): Promise<never> => {
    asked.catch(() => undefined);
    await questionOf(id);
    throw Object.assign(new Error('cut off'), { retryable: true });
  };
  const inPhase = (id: string, phase: string): Promise<unknown> =>
    waitFor(async () => (await tool.getHandoff(id))?.phase === phase, { message: `the phase ${phase}` });
  const isClosed = async (id: string): Promise<void> => {
    expect(await tool.messages(id)).toMatchObject([{ state: 'closed' }]);
    for (const options of [{}, { question: 1 }])
      expect(await failureOf(tool.reply(id, 'late', options))).toMatchObject({ code: 'question_closed' });
  };

  test('is closed when the attempt fails: the handoff does not wait for a reply', async () => {
    register(async (_input, { ask, handoff_id }) => {
      attempts += 1;
      if (attempts === 1) return failAsking(handoff_id, ask('Which?'));
      await gone;
      return 'done';
    });
    const id = await begin({ retry });
    await inPhase(id, 'queued');
    await isClosed(id);
    await inPhase(id, 'in_progress');
    await isClosed(id);
    go();
    expect(await tool.waitForHandoff(id)).toMatchObject({ status: 'completed', attempts: 2 });
  });

  test('is open again, as the same question, when the next attempt asks it', async () => {
    register(async (_input, { ask, handoff_id }) => {
      attempts += 1;
      const asked = ask('Which?');
      return attempts === 1 ? failAsking(handoff_id, asked) : asked;
    });
    const id = await begin({ retry });
    await inPhase(id, 'queued');
    await inPhase(id, 'waiting_input');
    expect(await tool.messages(id)).toMatchObject([{ seq: 1, state: 'open' }]);
    await tool.reply(id, 'this');
    expect(await tool.waitForHandoff(id)).toMatchObject({ result: 'this', attempts: 2 });
    expect(await tool.messages(id)).toMatchObject([{ state: 'answered' }, { text: 'this' }]);
  });

  test('is closed by the next attempt when its process has died', async () => {
    register(async (_input, { ask }) => {
      attempts += 1;
      if (attempts === 1) return ask('Which?');
      await gone;
      return 'done';
    });
    const id = await begin();
    await questionOf(id);
    // The worker is closed while the turn waits: the turn is given back.
    await tool.close();
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'waiting_input' });
    const ended = tool.waitForHandoff(id);
    await inPhase(id, 'in_progress');
    await isClosed(id);
    go();
    expect(await ended).toMatchObject({ status: 'completed', attempts: 2 });
  });
});

test('twenty questions wait in one process that serves two handoffs at a time', async () => {
  await using one = new HandoffTool({ runtime: h.runtime, concurrency: 2 });
  one.registerAgent('clerk', async (input, { ask }) => ask(`${input}?`), { retry: 'safe' });
  const ids = await Promise.all(
    Array.from(
      { length: 20 },
      async (_one, n) =>
        (
          await one.handoff({
            source_agent: 'main',
            target_agent: 'clerk',
            task: 'x',
            payload: n,
            wait: false,
          })
        ).handoff_id,
    ),
  );
  await Promise.all(ids.map((id) => questionOf(id)));
  await Promise.all(ids.map((id) => one.reply(id, 'yes')));
  const ended = await Promise.all(ids.map((id) => one.waitForHandoff(id)));
  expect(new Set(ended.map(({ result }) => result))).toEqual(new Set(['yes']));
});

test('the clock of a handoff stays stopped until the function has a slot of its worker again', async () => {
  await using one = new HandoffTool({ runtime: h.runtime, concurrency: 1 });
  const ask = async (target_agent: string, timeout: number) =>
    (await one.handoff({ source_agent: 'main', target_agent, task: 'x', timeout, wait: false })).handoff_id;
  one.registerAgent('clerk', async (_input, { ask }) => ask('Well?'), { retry: 'safe' });
  let go = (): void => undefined;
  const gone = new Promise<void>((settle) => {
    go = settle;
  });
  one.registerAgent('busy', async () => {
    await gone;
    return 'done';
  });
  const id = await ask('clerk', 1);
  await questionOf(id);
  const busy = await ask('busy', 60);
  await waitFor(async () => (await one.getHandoff(busy))?.phase === 'in_progress', {
    message: 'another one has the only place',
  });
  await one.reply(id, 'yes');
  await new Promise((settle) => setTimeout(settle, 1_500));
  go();
  expect(await one.waitForHandoff(id)).toMatchObject({ status: 'completed', result: 'yes' });
});

test('a part for which a function waits ends with the time of the function, and its question is closed', async () => {
  register(async (_input, { ask }) => ask('Well?'));
  tool.registerAgent(
    'outer',
    async (_input, { handoff }) => (await handoff({ target_agent: 'clerk', task: 'y' })).result,
  );
  const id = await begin({ target_agent: 'outer', timeout: 1 });
  const part = await waitFor(async () => (await tool.getChain(id))[1]?.handoff_id, { message: 'the part' });
  await questionOf(part);
  expect(await tool.waitForHandoff(id)).toMatchObject({ phase: 'timed_out' });
  expect(await tool.waitForHandoff(part)).toMatchObject({ phase: 'canceled' });
  expect(await tool.messages(part)).toMatchObject([{ state: 'closed' }]);
});

test('when the waiting process dies, another process asks the same question and gets its reply', async () => {
  let asked = 0;
  register(async (_input, { ask }) => {
    asked += 1;
    return `${await ask('One?')} ${await ask('Two?')}`;
  });
  const id = await begin();
  await questionOf(id);
  await tool.reply(id, '1');
  await questionOf(id, 2);
  // The worker is closed while the turn waits: the turn is given back.
  await tool.close();
  expect(await tool.getHandoff(id)).toMatchObject({ phase: 'waiting_input' });
  await tool.reply(id, '2');
  expect(await tool.waitForHandoff(id)).toMatchObject({ status: 'completed', result: '1 2' });
  expect(asked).toBe(2);
  expect(await tool.messages(id)).toHaveLength(4);
});
