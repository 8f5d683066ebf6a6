/** An invalid request is refused with a code, and leaves a line in the log when there is no other trace of it. */
import type { HandoffAdapter } from '@boxcar/adapters';
import { KernelError } from '@boxcar/kernel';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { newId } from '../lib/index.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let tool: HandoffTool;

beforeAll(async () => {
  h = await harness();
  tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  tool.registerAgent('desk', () => 'served');
});
beforeEach(() => void h.log.splice(0));
afterAll(() => h[Symbol.asyncDispose]());

const good = { source_agent: 'main', target_agent: 'desk', task: 'do it', wait: false } as const;
const refusals = () => h.log.filter(({ event }) => event === 'handoff.refused');
const badRequest = { code: 'bad_request' };

/** The error that a function throws synchronously. */
function thrownBy(work: () => unknown): unknown {
  try {
    work();
  } catch (error) {
    return error;
  }
  throw new Error('it was accepted');
}

test.each([
  ['undefined', undefined],
  ['null', null],
  ['a text', 'desk'],
  ['a list', []],
  ['a word in place of wait', { ...good, wait: 'no' }],
])('a request that is %s is refused', async (_name, request) => {
  expect(await failureOf(tool.handoff(request as never))).toMatchObject(badRequest);
  expect(refusals()).toHaveLength(1);
});

test('the log shows at most as much of a name as a name may have', async () => {
  expect(await failureOf(tool.handoff({ ...good, target_agent: 'x'.repeat(1_000_000) }))).toMatchObject(
    badRequest,
  );
  expect(JSON.stringify(refusals()).length).toBeLessThan(2_000);
});

test('a call with arguments that do not match the schema is logged', async () => {
  const by = { source_agent: 'main' };
  for (const [platform, args] of [
    ['openai', { agent_id: 'desk' }],
    ['openai', { agent_id: 'desk', instructions: 'do it', more: 1 }],
    ['openai', { target_agent: 'desk', task: 'do it' }],
    ['openai', '{"agent_id":"desk","instructions":"do it"}'],
    ['agdd', null],
    ['no-such-platform', { target_agent: 'desk', task: 'do it' }],
    [undefined, { target_agent: 'desk', task: 'do it' }],
    [7, { target_agent: 'desk', task: 'do it' }],
  ] as const)
    expect([platform, await failureOf(tool.callTool(platform as string, args, by))]).toMatchObject([
      platform,
      badRequest,
    ]);
  expect(refusals()).toHaveLength(8);
  expect(refusals()[0]?.fields).toMatchObject({ source_agent: 'main' });
});

test('every call of a tool that is switched off is refused for that reason', async () => {
  const off = new HandoffTool({ runtime: h.runtime, handoffEnabled: false });
  const disabled = { code: 'feature_disabled', message: 'Handoff feature is disabled' };
  expect(await failureOf(off.handoff(good))).toMatchObject(disabled);
  expect(await failureOf(off.callTool('openai', {}, { source_agent: 'main' }))).toMatchObject(disabled);
  expect(await failureOf(off.retryCompensation(newId()))).toMatchObject(disabled);
});

test('a platform that is not a text is refused as unknown', () => {
  expect(thrownBy(() => tool.getToolSchema(null as never))).toMatchObject({
    ...badRequest,
    message: 'Unsupported platform: null',
  });
});

test('a request whose signal has already fired asks for nothing', async () => {
  const count = async (): Promise<number> => (await h.rows('select from boxcar.handoffs')).length;
  const before = await count();
  const signal = AbortSignal.abort(new Error('changed my mind'));
  await expect(tool.handoff(good, { signal })).rejects.toThrow('changed my mind');
  expect(await count()).toBe(before);
});

test('a page is requested by a valid cursor and by names that a row can have', async () => {
  await tool.handoff(good);
  await tool.handoff(good);
  const { next_cursor } = await tool.listHandoffs({ limit: 1 });
  expect((await tool.listHandoffs({ limit: 1, cursor: String(next_cursor) })).handoffs).toHaveLength(1);
  for (const options of [
    { cursor: `handoffs:${'9'.repeat(27)}:${'-'.repeat(36)}` },
    { cursor: 'handoffs:2026-13-45T99:99:99.000000Z:00000000-0000-7000-8000-000000000001' },
    { cursor: 'handoffs:2026-02-30T00:00:00.000000Z:00000000-0000-7000-8000-000000000001' },
    { cursor: `handoffs:2026-11-01T00:00:00.000000Z:${'-'.repeat(36)}` },
    { cursor: String(next_cursor).replace('handoffs', 'approvals') },
    { source_agent: 'a\0b' },
    { run: 'a\ud800b' },
  ])
    expect([options, await failureOf(tool.listHandoffs(options))]).toMatchObject([
      options,
      { code: 'bad_request', message: expect.stringMatching(/^options\./) },
    ]);
});

test('a value that is not an adapter is refused on registration, and affects no handoff', async () => {
  const acme: HandoffAdapter = {
    platform: 'Acme',
    retry: 'safe',
    capabilities: { streaming: false, cancel: false, messages: false, max_context_tokens: null, carries: [] },
    supportsPlatform: () => true,
    executeHandoff: () => Promise.reject(new Error('not here')),
  };
  for (const adapter of [null, undefined, {}, { ...acme, platform: '' }, { ...acme, platform: 5 }, acme])
    expect(thrownBy(() => tool.registerAdapter(adapter as never))).toMatchObject(badRequest);
  expect(await tool.handoff({ ...good, platform: 'openai', target_agent: 'model:any' })).toMatchObject({
    status: 'pending',
  });
});

test('a project is named by its id', () => {
  expect(
    thrownBy(() => new HandoffTool({ runtime: h.runtime, projectId: 'default' as never })),
  ).toBeInstanceOf(KernelError);
});
