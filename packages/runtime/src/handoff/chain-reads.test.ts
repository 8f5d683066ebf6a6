/** How much a chain reads of the results of its hops, which may be large. */
import { KernelError } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { watchFields } from '../testing/read-fields.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let tool: HandoffTool;

beforeEach(async () => {
  h = await harness({ connections: 8 });
  tool = new HandoffTool({
    runtime: h.runtime,
    permissionEvaluator: new PermissionEvaluator({
      text: 'tools:\n  handoff: { permission: ALWAYS }\nrules:\n  - { condition: { context: { target_agent: agent-2 } }, permission: REQUIRE_APPROVAL }\n',
    }),
  });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
});

const HOPS = [1, 2, 3, 4, 5];
const resultOf = (hop: number): string => `result-of-hop-${hop}-${'x'.repeat(100)}`;

test('each move reads only the result that it passes on, and an overview of the chain reads no result', async () => {
  let during = 0;
  const read: { readonly during: number; readonly hop: number }[] = [];
  using _watch = watchFields((field) => {
    for (const [, hop] of field.matchAll(/result-of-hop-([0-9])-x/g)) read.push({ during, hop: Number(hop) });
  });
  const undone: unknown[] = [];
  for (const hop of HOPS)
    tool.registerAgent(`agent-${hop}`, () => {
      during = hop;
      if (hop === 5) throw new KernelError('platform_failed', { message: 'no seats' });
      return resultOf(hop);
    });
  tool.registerAgent('undo', (input) => undone.push(input));
  const hops = HOPS.map((hop) => ({
    target_agent: `agent-${hop}`,
    task: 'Book.',
    ...(hop === 4 ? { compensate: { target_agent: 'undo', task: 'Give back.' } } : {}),
  }));
  const running = failureOf(tool.chain(hops, { source_agent: 'desk' }));
  // One hop begins after an approval, and is answered as the other hops are.
  const gate = new ApprovalGate({ runtime: h.runtime });
  const ticket = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
    message: 'a ticket',
  });
  await gate.approve(ticket.ticket_id);
  const error = await running;
  expect(error.details.phase).toBe('rolled_back');
  expect(undone).toEqual([resultOf(4)]);
  expect(read.filter((one) => one.during === 3).map(({ hop }) => hop)).toContain(3);
  // The input of a hop is read when the hop begins, and its own result when it has ended.
  expect(read.filter((one) => one.hop < one.during - 1)).toEqual([]);

  read.length = 0;
  const picture = await tool.getChain(String(error.details.handoff_id));
  expect(picture.map(({ phase }) => phase)).toEqual([
    ...['rolled_back', 'completed', 'completed', 'completed', 'completed', 'failed', 'completed'],
  ]);
  expect(read).toEqual([]);
});
