/** Handoffs to other platforms, over real HTTP servers that speak their wire formats. */
import {
  type Behaviour,
  openaiDialect,
  openPlatform,
  PLATFORM_KEY,
  type PlatformServer,
} from '@boxcar/adapters/testing';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { checkWire } from '../testing/check-wire.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';
import type { HandoffInput } from './handoff-types.js';

let h: Harness;

beforeEach(async () => {
  vi.stubEnv('WRITER_KEY', PLATFORM_KEY);
  h = await harness({ connections: 8 });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
  vi.unstubAllEnvs();
});

const open = (...behaviours: readonly Behaviour[]): Promise<PlatformServer> =>
  openPlatform(openaiDialect, ...behaviours);
const toolAt = (server: PlatformServer, entry: object = {}): HandoffTool =>
  new HandoffTool({
    runtime: h.runtime,
    targets: {
      asst_abc123: {
        platform: 'openai',
        model: 'writer-large-2',
        api_key_env: 'WRITER_KEY',
        base_url: `${server.origin}/v1`,
        ...entry,
      },
    },
  });
const ask = (rest: Partial<HandoffInput> = {}): HandoffInput => ({
  source_agent: 'agdd-main',
  target_agent: 'asst_abc123',
  task: 'Generate creative content',
  platform: 'openai',
  ...rest,
});
const turns = () =>
  h.rows<{ status: string; worker_target: string; attempt: number }>(
    'select status, worker_target, attempt from boxcar.turns',
  );

describe('a handoff to a platform', () => {
  test('is executed there once, and the result is returned with a report of what was lost', async () => {
    await using server = await open({ kind: 'answer', text: 'A poem.' });
    const tool = toolAt(server);
    const { packer } = h.runtime;
    const box = await packer.createBox({
      projectId: 'default',
      sourceAgentId: 'operator',
      cards: [
        { type: 'note', content: { kind: 'text', text: 'The harbour is calm.' } },
        {
          type: 'attachment',
          content: {
            kind: 'file',
            uri: 'file:///plan.pdf',
            checksum: 'a'.repeat(64),
            content_type: 'application/pdf',
          },
        },
      ],
    });
    const { handoff_id, ...rest } = await tool.handoff(
      ask({ context: { tone: 'warm' }, payload: { lines: 2 }, context_box_id: box }),
    );
    expect(rest).toEqual({ status: 'completed', result: 'A poem.' });
    expect(server.works).toHaveLength(1);
    expect(server.works[0]?.text).toContain('Generate creative content');
    expect(server.works[0]?.text).toContain('The harbour is calm.');
    const handoff = await tool.getHandoff(handoff_id);
    expect(handoff).toMatchObject({ platform: 'openai', attempts: 1, phase: 'completed' });
    const { sent_cards, lost } = (handoff?.loss ?? {}) as unknown as {
      sent_cards: string[];
      lost: { why: string }[];
    };
    expect([sent_cards.length, lost.length]).toEqual([1, 1]);
    expect((await tool.getEvents(handoff_id)).map(({ event_type }) => event_type)).toEqual([
      'handoff.requested',
      'handoff.started',
      'handoff.completed',
    ]);
    expect(h.log).toContainEqual(
      expect.objectContaining({ event: 'handoff.started', fields: { handoff_id, attempt: 1 } }),
    );
    // Data that only the operator may see is in no row.
    for (const [table, text] of await allTexts())
      for (const secret of [PLATFORM_KEY, server.origin, 'writer-large-2'])
        expect([table, text.includes(secret)]).toEqual([table, false]);
  });

  test('finds its platform by the names when none is given', async () => {
    await using server = await open({ kind: 'answer', text: 'one' });
    const tool = toolAt(server);
    const { platform: _platform, ...bare } = ask();
    expect(await tool.handoff(bare)).toMatchObject({ result: 'one' });
    expect((await tool.listHandoffs({ platform: 'OpenAI-Compat' })).handoffs).toHaveLength(1);
  });

  test('by a tool call in the shape of the platform is executed there', async () => {
    await using server = await open({ kind: 'answer', text: 'called' });
    const tool = toolAt(server);
    const call = { agent_id: 'asst_abc123', instructions: 'Write.' };
    expect(await tool.callTool('openai', call, { source_agent: 'main', run_id: 'r' })).toMatchObject({
      status: 'completed',
      result: 'called',
    });
    expect((await tool.listHandoffs({ run: 'r' })).handoffs).toMatchObject([
      { task: 'Write.', platform: 'openai' },
    ]);
    expect(tool.getToolSchema()).toMatchObject({
      name: 'handoff',
      parameters: { required: ['target_agent', 'task'] },
    });
  });

  test('to a name that is not a target is refused with the line to add to the configuration, and is recorded', async () => {
    await using server = await open();
    const tool = toolAt(server);
    const error = await failureOf(tool.handoff(ask({ target_agent: 'editor' })));
    expect(error.code).toBe('bad_request');
    expect(error.message).toContain('editor: { platform: openai, model: <model> }');
    expect(await tool.getHandoff(String(error.details.handoff_id))).toMatchObject({ status: 'failed' });
    expect(server.requests).toEqual([]);
  });

  test('is tried again after a temporary failure as the request says, and a permanent failure is reported', async () => {
    await using server = await open(
      { kind: 'status', status: 503 },
      { kind: 'status', status: 429, headers: { 'retry-after': '0' } },
      { kind: 'answer', text: 'third time' },
    );
    const tool = toolAt(server);
    const { handoff_id, result } = await tool.handoff(
      ask({ retry: { max_attempts: 3, base_seconds: 0.05, max_seconds: 0.2 } }),
    );
    expect(result).toBe('third time');
    expect(server.works).toHaveLength(3);
    expect(
      (await tool.getEvents(handoff_id)).map(({ event_type, attempt, code }) => [event_type, attempt, code]),
    ).toEqual([
      ['handoff.requested', undefined, undefined],
      ['handoff.started', 1, undefined],
      ['handoff.retrying', 1, 'platform_unavailable'],
      ['handoff.started', 2, undefined],
      ['handoff.retrying', 2, 'platform_rate_limited'],
      ['handoff.started', 3, undefined],
      ['handoff.completed', undefined, undefined],
    ]);
  });

  test('has one attempt by default, and is never tried again after a refusal', async () => {
    await using server = await open(
      { kind: 'status', status: 503 },
      { kind: 'status', status: 400, message: 'no' },
    );
    const tool = toolAt(server);
    expect(await failureOf(tool.handoff(ask()))).toMatchObject({ code: 'platform_unavailable' });
    const error = await failureOf(tool.handoff(ask({ retry: { max_attempts: 5, base_seconds: 0 } })));
    expect(server.works).toHaveLength(2);
    expect(await tool.getHandoff(String(error.details.handoff_id))).toMatchObject({
      status: 'failed',
      attempts: 1,
      error: { code: error.code },
    });
  });

  test('ends after one request, also when the answer has text that Postgres cannot store', async () => {
    await using server = await open({ kind: 'status', status: 400, message: 'no\u0000 more \ud800' });
    const tool = toolAt(server);
    const error = await failureOf(tool.handoff(ask({ timeout: 10 })));
    expect([error.code, error.message.includes('no\ufffd more \ufffd')]).toEqual(['platform_failed', true]);
    expect(server.works).toHaveLength(1);
  });

  test('keeps an adapter’s additional report without text that Postgres cannot store', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    tool.registerAdapter({
      platform: 'acme',
      retry: 'never',
      capabilities: {
        streaming: false,
        cancel: false,
        messages: false,
        max_context_tokens: null,
        carries: ['text'],
      },
      supportsPlatform: (name) => name === 'acme',
      executeHandoff: async () => ({
        result: 'done',
        usage: null,
        remote_id: 'task\u0000',
        loss: { sent_cards: [], lost: [{ card_id: 'a', what: 'file', why: 'no\u0000' }] },
      }),
    });
    const { handoff_id, result } = await tool.handoff(ask({ platform: 'acme', target_agent: 'anvil' }));
    expect(result).toBe('done');
    expect((await tool.getHandoff(handoff_id))?.loss).toMatchObject({ lost: [{ why: 'no\ufffd' }] });
  });

  test('fails when a key is missing', async () => {
    await using server = await open();
    const tool = toolAt(server, { api_key_env: 'NO_SUCH_KEY' });
    expect(await failureOf(tool.handoff(ask()))).toMatchObject({ code: 'platform_unauthorized' });
    expect(server.requests).toEqual([]);
  });

  test('to a platform that does not answer in time closes the connection, and the row gives the reason', async () => {
    await using server = await open({ kind: 'silent' });
    const tool = toolAt(server);
    const error = await failureOf(tool.handoff(ask({ timeout: 0.3 })));
    expect(error.code).toBe('handoff_timeout');
    await server.abandoned();
    expect(await tool.getHandoff(String(error.details.handoff_id))).toMatchObject({
      status: 'failed',
      phase: 'timed_out',
    });
  });

  test('ends together with its request when the tree is canceled', async () => {
    await using server = await open({ kind: 'silent' });
    const tool = toolAt(server);
    const { handoff_id } = await tool.handoff(ask({ wait: false }));
    await server.reached();
    const { turn_id } = (await tool.getHandoff(handoff_id)) ?? {};
    await h.runtime.submit('cancel', { turn_id, reason: 'changed my mind' });
    await server.abandoned();
    expect(await tool.waitForHandoff(handoff_id)).toMatchObject({ phase: 'canceled', status: 'failed' });
  });
});

describe('a handoff to a platform without a handoff worker', () => {
  test('is not taken by an ordinary worker, and is taken by a process that serves handoffs', async () => {
    await using server = await open({ kind: 'answer', text: 'served' });
    await h.worker();
    const tool = toolAt(server);
    const idle = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
    const { handoff_id } = await idle.handoff(ask({ wait: false }));
    expect(await turns()).toMatchObject([{ worker_target: 'handoff-platform-openai' }]);
    expect(await idle.getHandoff(handoff_id)).toMatchObject({ status: 'pending', phase: 'pending' });
    expect(await tool.waitForHandoff(handoff_id)).toMatchObject({ result: 'served' });
  });
});

/** All texts in all tables, by table. */
async function allTexts(): Promise<[string, string][]> {
  const tables = await h.rows<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'boxcar'::regnamespace and relkind = 'r'",
  );
  return Promise.all(
    tables.map(
      async ({ name }): Promise<[string, string]> => [
        name,
        JSON.stringify(await h.rows(`select x::text from boxcar.${name} x`)),
      ],
    ),
  );
}
