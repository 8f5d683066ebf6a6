/** Questions of agents on other platforms, asked by the server of the official SDK, in both protocols. */
import {
  a2aDialect,
  openPlatform,
  PLATFORM_KEY,
  type PlatformServer,
  playQuestions,
} from '@boxcar/adapters/testing';
import type { HandoffMessage } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { checkWire } from '../testing/check-wire.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;

beforeEach(async () => {
  vi.stubEnv('HARBOUR_KEY', PLATFORM_KEY);
  vi.stubEnv('BOXCAR_TARGETS_ALLOW_PRIVATE', '127.0.0.1');
  h = await harness({ connections: 8 });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
  vi.unstubAllEnvs();
});

const openAgent = (version: '1.0' | '0.3', play: ReturnType<typeof playQuestions>): Promise<PlatformServer> =>
  openPlatform(a2aDialect({ version, play }), { kind: 'answer', text: 'Done.' });
const toolAt = (server: PlatformServer): HandoffTool =>
  new HandoffTool({
    runtime: h.runtime,
    targets: {
      harbour: { platform: 'adk', card_url: `${server.origin}/card.json`, api_key_env: 'HARBOUR_KEY' },
    },
  });
const begin = async (tool: HandoffTool): Promise<string> =>
  (await tool.handoff({ source_agent: 'desk', target_agent: 'harbour', task: 'Moor.', wait: false }))
    .handoff_id;
const questionOf = (tool: HandoffTool, id: string, n = 1): Promise<HandoffMessage> =>
  waitFor(async () => (await tool.messages(id)).filter(({ type }) => type === 'question')[n - 1], {
    message: 'a question',
  });
const sent = ({ works }: PlatformServer): readonly (string | undefined)[] =>
  works.map(({ text }) => /"messageId":"([^"]+)"/.exec(text)?.[1]);

describe.each(['1.0', '0.3'] as const)('an agent of protocol version %s', (version) => {
  test('asks a question of its handoff, and the reply is sent to its task', async () => {
    await using server = await openAgent(version, playQuestions('Which harbour?'));
    await using tool = toolAt(server);
    const id = await begin(tool);
    expect(await questionOf(tool, id)).toMatchObject({ seq: 1, text: 'Which harbour?', state: 'open' });
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'waiting_input' });
    await tool.reply(id, 'The northern one');
    expect(await tool.waitForHandoff(id)).toMatchObject({
      status: 'completed',
      result: 'The northern one: Done.',
      attempts: 1,
    });
    expect(sent(server)).toEqual([id, expect.stringMatching(new RegExp(`^${id}/[0-9a-f]{32}$`))]);
  });

  test('that waits for a reply is continued by another process, and gets each message once', async () => {
    await using server = await openAgent(version, playQuestions('Which harbour?'));
    const tool = toolAt(server);
    const id = await begin(tool);
    await questionOf(tool, id);
    // The worker is closed while the turn waits: the turn is given back.
    await tool.close();
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'waiting_input' });
    expect(server.works).toHaveLength(1);
    await tool.reply(id, 'The northern one');
    await using other = toolAt(server);
    expect(await other.waitForHandoff(id)).toMatchObject({
      status: 'completed',
      result: 'The northern one: Done.',
      attempts: 2,
    });
    expect(server.works).toHaveLength(2);
    expect(await other.messages(id)).toHaveLength(2);
    expect(server.requests.map(({ text }) => text).join()).not.toMatch(/CancelTask|tasks\/cancel/);
  });

  test('is told to stop when no reply arrives in time', async () => {
    await using server = await openAgent(version, playQuestions('Which harbour?'));
    await using tool = toolAt(server);
    const id = await begin(tool);
    await questionOf(tool, id);
    await h.rows(
      "with late as (update boxcar.handoff_messages set expires_at = now() returning handoff_id) select pg_notify('boxcar_parts', h.turn_id::text) from late join boxcar.handoffs h on h.id = late.handoff_id",
    );
    expect((await tool.waitForHandoff(id)).error?.code).toBe('question_expired');
    await waitFor(
      async () => server.requests.some(({ text }) => /CancelTask|tasks\/cancel/.test(text)) || undefined,
      { message: 'the agent is told to stop' },
    );
  });
});

test('an agent is told to stop when its handoff is canceled while it waits', async () => {
  await using server = await openAgent('1.0', playQuestions('Which harbour?'));
  await using tool = toolAt(server);
  const id = await begin(tool);
  await questionOf(tool, id);
  const { turn_id } = (await tool.getHandoff(id)) ?? {};
  await h.runtime.submit('cancel', { turn_id });
  expect(await tool.waitForHandoff(id)).toMatchObject({ phase: 'canceled' });
  await waitFor(async () => server.requests.some(({ text }) => text.includes('CancelTask')) || undefined, {
    message: 'the agent is told to stop',
  });
});

test('a question that contains the key of its target is shown without the key, and a question without text says so', async () => {
  await using server = await openAgent('1.0', playQuestions(`Is it ${PLATFORM_KEY}?`, ' '));
  await using tool = toolAt(server);
  const id = await begin(tool);
  expect((await questionOf(tool, id)).text).not.toContain(PLATFORM_KEY);
  await tool.reply(id, 'no');
  expect((await questionOf(tool, id, 2)).text).toContain('waits for input');
  await tool.reply(id, 'yes');
  expect(await tool.waitForHandoff(id)).toMatchObject({ status: 'completed' });
});

test('the same question asked a second time is not answered with the reply to the first by another process', async () => {
  await using server = await openAgent('1.0', playQuestions('Go on?', 'Go on?'));
  const tool = toolAt(server);
  const id = await begin(tool);
  await questionOf(tool, id);
  await tool.reply(id, 'yes');
  await questionOf(tool, id, 2);
  await tool.close();
  await using other = toolAt(server);
  const done = other.waitForHandoff(id);
  await waitFor(async () => ((await other.getHandoff(id))?.attempts === 2 ? true : undefined), {
    message: 'another attempt',
  });
  await waitFor(
    async () =>
      (await other.messages(id)).some(({ seq, state }) => seq === 3 && state === 'open') || undefined,
    { message: 'it is asked again' },
  );
  await other.reply(id, 'no');
  expect(await done).toMatchObject({ status: 'completed', result: 'no: Done.' });
  expect(new Set(sent(server)).size).toBe(3);
  expect(server.works).toHaveLength(3);
});

test('an agent whose question is longer than a card allows is told to stop', async () => {
  await using server = await openAgent('1.0', playQuestions('Which harbour? '.repeat(80_000)));
  await using tool = toolAt(server);
  const id = await begin(tool);
  expect((await tool.waitForHandoff(id)).error?.code).toBe('payload_too_large');
  await waitFor(async () => server.requests.some(({ text }) => text.includes('CancelTask')) || undefined, {
    message: 'the agent is told to stop',
  });
});

test.each([
  ['a NUL', 'a\0b'],
  ['a lone surrogate', 'a\ud800b'],
  ['more characters than a name may have', 'x'.repeat(100_000)],
])('an agent whose task has a name with %s fails with an error about the name', async (_what, remoteId) => {
  await using tool = new HandoffTool({ runtime: h.runtime });
  tool.registerAdapter({
    platform: 'quay',
    retry: 'never',
    resumes: true,
    capabilities: {
      streaming: false,
      cancel: false,
      messages: false,
      max_context_tokens: null,
      carries: ['text'],
    },
    supportsPlatform: (name) => name === 'quay',
    executeHandoff: async (_request, { ask }) => ({
      result: (await ask?.('Which harbour?', { questionId: 'q', remoteId })) ?? null,
      usage: null,
      remote_id: null,
      loss: { sent_cards: [], lost: [] },
    }),
  });
  const failed = tool.handoff({ source_agent: 'desk', target_agent: 'x', platform: 'quay', task: 'Moor.' });
  await expect(failed).rejects.toMatchObject({
    code: 'platform_failed',
    message: expect.stringContaining('name of its task'),
  });
  expect(await h.rows('select from boxcar.handoff_messages')).toEqual([]);
});
