/** Waits for handoffs end with the handoff, with their time limit, or with the runtime. */
import type { HandoffId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { HandoffTool } from './handoff-tool.js';
import { HandoffWaits } from './handoff-waits.js';

let h: Harness;
let tool: HandoffTool;
let parked: string;

const intervals = (): number => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length;

beforeAll(async () => {
  h = await harness({
    permissionEvaluator: new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: ALWAYS }\nrules:\n  - { condition: { context: { target_agent: guarded } }, permission: REQUIRE_APPROVAL }\n',
      environment: 'production',
    }),
  });
  tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
  for (const name of ['guarded', 'open']) tool.registerAgent(name, () => name);
  parked = (await tool.handoff(ask('guarded'))).handoff_id;
});
afterAll(() => h[Symbol.asyncDispose]());

const ask = (target_agent: string) =>
  ({ source_agent: 'main', target_agent, task: 'do it', wait: false }) as const;

test('a time limit that is not valid is refused', async () => {
  for (const timeoutMs of [0, -1, Number.NaN, 1e15, '5' as never])
    expect(await failureOf(tool.waitForHandoff(parked, { timeoutMs }))).toMatchObject({
      code: 'bad_request',
    });
});

test('a wait whose time is over says so, whether a turn serves the handoff or not', async () => {
  const { handoff_id } = await tool.handoff(ask('open'));
  for (const id of [parked, handoff_id])
    expect(await failureOf(tool.waitForHandoff(id, { timeoutMs: 0.001 }))).toMatchObject({
      code: 'wait_timeout',
      details: { handoff_id: id },
    });
});

test('a wait whose signal has already fired does not wait', async () => {
  const waits = new HandoffWaits({ read: async () => [], isClosed: () => false });
  const left = waits.wait(parked as HandoffId, { signal: AbortSignal.abort(new Error('left')) });
  await expect(left).rejects.toThrow('left');
});

test('a wait for an approval ends when the runtime is closed, and leaves no timer', async () => {
  const before = intervals();
  const waiting = failureOf(tool.waitForHandoff(parked));
  await expect.poll(intervals).toBeGreaterThan(before);
  await h.runtime.close();
  expect(await waiting).toMatchObject({
    code: 'internal_error',
    message: expect.stringContaining('The runtime was closed while waiting'),
  });
  await expect.poll(intervals).toBeLessThanOrEqual(before);
});
