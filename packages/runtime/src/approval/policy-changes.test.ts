/** A policy that changes between the request for an approval and the start of its call. */
import { renameSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { argsHash, buildCard, type JsonValue, type ToolCallId, type TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { parkCall, transaction } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/index.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { ApprovalGate } from './approval-gate.js';

const ASK = 'tools: { pay: { permission: REQUIRE_APPROVAL }, refund: { permission: REQUIRE_APPROVAL } }';
const ALLOW = ASK.replace('REQUIRE_APPROVAL', 'ALWAYS');
const FORBID = ASK.replace('REQUIRE_APPROVAL', 'NEVER');
const ASK_OTHERWISE = `${ASK}\nrules: [{ condition: { tool_name: other }, permission: NEVER }]`;

let h: Harness;
let gate: ApprovalGate;
let folder: string;
let paid: unknown[];
let movedMs: number;

/** Replaces the policy file and sets the clock of the evaluator a minute forward. */
function change(text: string): void {
  const file = join(folder, 'policy.yaml');
  writeFileSync(`${file}.new`, text);
  renameSync(`${file}.new`, file);
  movedMs += 60_000;
}

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'boxcar-policy-'));
  movedMs = 0;
  paid = [];
  change(ASK);
  h = await harness({
    permissionEvaluator: new PermissionEvaluator({
      file: join(folder, 'policy.yaml'),
      environment: 'production',
      clock: { monotonicMs: () => performance.now() + movedMs, wallMs: () => Date.now() + movedMs },
    }),
  });
  gate = new ApprovalGate({ runtime: h.runtime });
  for (const name of ['pay', 'refund'])
    h.runtime.registerTool({
      name,
      description: 'Moves money.',
      input: z.object({ amount: z.number() }),
      run: (input) => {
        paid.push(input);
        return { receipt: paid.length };
      },
    });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await h[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

const PAY = { tool: 'pay', arguments: { amount: 5 } };
const REFUND = { tool: 'refund', arguments: { amount: 5 } };

/** A turn that waits for approvals, with its tickets by the name of the tool. */
async function parked(calls: readonly JsonValue[] = [PAY], rest = {}) {
  await h.profile('payer', [{ calls }, { say: 'done' }], { tools: ['pay', 'refund'], ...rest });
  await h.worker();
  const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
    profile_name: 'payer',
    instruction: 'go',
  })) as { turn_id: TurnId };
  await waitFor(
    async () =>
      (await h.rows("select from boxcar.turns where id = $1 and status = 'suspended'", [turnId])).length ===
      1,
    { message: 'the turn waits' },
  );
  const { approvals } = await gate.list();
  return { turnId, tickets: new Map(approvals.map((ticket) => [ticket.tool_name, ticket.ticket_id])) };
}
const end = (turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const errorOf = async (turnId: TurnId, name = 'pay'): Promise<JsonValue | undefined> =>
  (
    await h.rows<{ error: JsonValue }>(
      `select c.content->'error' as error from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 and k.name = $2`,
      [turnId, name],
    )
  )[0]?.error;

test('an approved call runs when the changed policy allows it', async () => {
  const { turnId, tickets } = await parked();
  change(ALLOW);
  await gate.approve(tickets.get('pay') ?? '');
  expect(await end(turnId)).toMatchObject({ status: 'success' });
  expect(paid).toHaveLength(1);
  expect(
    await h.rows('select from boxcar.approvals where voided_at is not null and consumed_at is null'),
  ).toHaveLength(1);
});

test('a call that a changed policy allows runs without a decision, and the request can no longer be decided', async () => {
  const { turnId, tickets } = await parked([PAY, REFUND]);
  change(ALLOW.replace('refund', 'other'));
  await gate.deny(tickets.get('refund') ?? '', { reason: 'no' });
  expect(await end(turnId)).toMatchObject({ status: 'success' });
  expect(paid).toEqual([{ amount: 5 }]);
  const id = tickets.get('pay') ?? '';
  expect(await gate.get(id)).toMatchObject({ status: 'expired', resolved_by: 'system:policy' });
  await expect(gate.approve(id)).rejects.toMatchObject({ code: 'approval_resolved' });
});

test.each([
  ['allows', ALLOW],
  ['asks', ASK_OTHERWISE],
])('a denial counts, also when the changed policy %s', async (_what, text) => {
  const { turnId, tickets } = await parked();
  change(text);
  await gate.deny(tickets.get('pay') ?? '', { reason: 'too much' });
  expect(await end(turnId)).toMatchObject({ status: 'success' });
  expect(paid).toEqual([]);
  expect(await errorOf(turnId)).toMatchObject({
    code: 'permission_denied',
    message: expect.stringContaining('too much'),
  });
  expect((await gate.list()).approvals).toHaveLength(1);
});

test('a call that the changed policy forbids leaves no request', async () => {
  const { turnId, tickets } = await parked([PAY, REFUND]);
  change(FORBID);
  await gate.deny(tickets.get('refund') ?? '');
  await waitFor(async () => (await errorOf(turnId)) !== undefined, { message: 'the call is refused' });
  expect(await errorOf(turnId)).toMatchObject({ code: 'permission_denied' });
  expect(await gate.get(tickets.get('pay') ?? '')).toMatchObject({ status: 'expired' });
});

test('a call that is requested again keeps its time', async () => {
  const { turnId, tickets } = await parked([PAY], { limits: { tool_timeout_seconds: 7 } });
  const first = tickets.get('pay') ?? '';
  change(ASK_OTHERWISE);
  await gate.approve(first);
  const again = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
    message: 'another ticket',
  });
  expect(await h.rows('select call_ms::int from boxcar.approvals')).toEqual([
    { call_ms: 7_000 },
    { call_ms: 7_000 },
  ]);
  await gate.approve(again.ticket_id);
  expect(await end(turnId)).toMatchObject({ status: 'success' });
  expect(paid).toHaveLength(1);
});

test.each([
  ['no approval was needed', ALLOW, ASK],
  ['it was approved', ASK, FORBID],
])(
  'a call that was interrupted when %s is not judged again, and does not run twice',
  async (_when, before, after) => {
    const named = (text: string): string => text.replace('pay', 'transfer');
    change(named(before));
    let begun = 0;
    h.runtime.registerTool({
      name: 'transfer',
      description: 'Takes long.',
      input: z.object({}),
      run: () => {
        begun += 1;
        return new Promise(() => undefined);
      },
    });
    await h.profile('payer', [{ calls: [{ tool: 'transfer', arguments: {} }] }, { say: 'done' }], {
      tools: ['transfer'],
    });
    await h.worker();
    const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
      profile_name: 'payer',
      instruction: 'go',
    })) as { turn_id: TurnId };
    if (before === ASK) {
      const ticket = await waitFor(async () => (await gate.list()).approvals[0], { message: 'a ticket' });
      await gate.approve(ticket.ticket_id);
    }
    await waitFor(() => begun === 1, { message: 'the call is begun' });
    change(named(after));
    // The state that a takeover leaves after the death of its worker.
    await h.rows(
      `update boxcar.turns set status = 'dispatched', epoch = epoch + 1, holder_id = null, dispatched_at = now() - interval '1 minute' where id = $1`,
      [turnId],
    );
    expect(await end(turnId)).toMatchObject({ status: 'success' });
    expect(begun).toBe(1);
    expect(await errorOf(turnId, 'transfer')).toMatchObject({ code: 'outcome_unknown' });
    expect((await gate.list({ status: 'pending' })).approvals).toEqual([]);
  },
);

test('a claim that has lost its turn makes no second ticket', async () => {
  const { turnId, tickets } = await parked();
  const ticketId = tickets.get('pay') ?? '';
  const [call] = await h.rows<{ id: ToolCallId; project_id: never }>(
    'select id, project_id from boxcar.tool_calls',
  );
  if (call === undefined) throw new Error('no call');
  await gate.approve(ticketId);
  await end(turnId);
  const ask = () =>
    transaction(h.database.pool, (tx) =>
      parkCall(
        tx,
        {
          id: newId<'ticket'>(),
          projectId: call.project_id,
          runId: turnId,
          turnId,
          toolCallId: call.id,
          agent: 'payer',
          toolName: 'pay',
          card: buildCard(
            {
              type: 'approval.request',
              role: null,
              content: { kind: 'json', data: {} },
              metadata: {},
              authorId: 'payer',
            },
            { id: newId<'card'>(), projectId: call.project_id },
          ),
          argsHash: argsHash({ amount: 5 }),
          contextHash: '',
          payloadHash: '',
          policyVersion: '',
          timeoutMs: 60_000,
          callMs: 1_000,
          metadata: {},
        },
        { epoch: 1 },
      ),
    );
  expect(await ask()).toBe(false);
  // The same result while the call of the newer claim still runs.
  await h.rows("update boxcar.tool_calls set status = 'pending', result_card_id = null, ended_at = null");
  expect(await ask()).toBe(false);
  expect(await h.rows('select from boxcar.approvals')).toHaveLength(1);
  await h.rows(
    "update boxcar.tool_calls k set status = 'success', ended_at = now(), result_card_id = (select e.card_id from boxcar.tape_entries e join boxcar.cards c on c.id = e.card_id where e.turn_id = k.turn_id and c.type = 'tool.result' limit 1)",
  );
});
