/** Calls that wait for the approval of a person. */
import type { JsonValue, Principal, TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { Sweeper } from '../sweep/sweeper.js';
import { checkWire } from '../testing/check-wire.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { ApprovalGate } from './approval-gate.js';

let h: Harness;
let gate: ApprovalGate;
/** The effects of the tool. */
let paid: unknown[];

beforeEach(async () => {
  h = await harness();
  gate = new ApprovalGate({ runtime: h.runtime });
  paid = [];
  h.runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    input: z.object({ amount: z.number(), api_key: z.string().optional() }),
    run: (input) => {
      paid.push(input);
      return { receipt: paid.length };
    },
  });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    isReadOnly: true,
    input: z.object({}),
    run: () => ({ seen: true }),
  });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
});

const PAY = { tool: 'pay', arguments: { amount: 5 } };
const profile = (
  calls: readonly JsonValue[] = [PAY],
  rest: Readonly<Record<string, unknown>> = { requires_approval: ['pay'] },
) => h.profile('payer', [{ calls }, { say: 'done' }], { tools: ['pay', 'look'], ...rest });
const launch = async (): Promise<TurnId> =>
  (
    (await h.runtime.submit('launch_principal', { profile_name: 'payer', instruction: 'go' })) as {
      turn_id: TurnId;
    }
  ).turn_id;
const ticketOf = (turnId: TurnId, status = 'pending'): Promise<string> =>
  waitFor(
    async () =>
      (
        await h.rows<{ id: string }>(
          'select id from boxcar.approvals where turn_id = $1 and status = $2 order by id desc',
          [turnId, status],
        )
      )[0]?.id,
    { message: `a ticket is ${status}` },
  );
const suspended = (turnId: TurnId) =>
  waitFor(
    async () =>
      (await h.rows("select from boxcar.turns where id = $1 and status = 'suspended'", [turnId])).length ===
      1,
    { message: 'the turn waits' },
  );
const end = (turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const resultsOf = async (turnId: TurnId) =>
  (
    await h.rows<{ name: string; status: string; content: { data: JsonValue } }>(
      `select k.name, k.status, c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
       where k.turn_id = $1 order by k.step, k.ordinal`,
      [turnId],
    )
  ).map(({ name, status, content }) => [name, status, content]);

describe('a call that needs an approval', () => {
  test('waits without a worker, and runs once when it is approved', async () => {
    await profile();
    const worker = await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    await waitFor(() => worker.activeCount === 0, { message: 'the worker holds nothing' });
    expect(paid).toEqual([]);
    expect(await gate.get(ticket)).toMatchObject({
      status: 'pending',
      tool_name: 'pay',
      tool_args: { amount: 5 },
      metadata: { turn_id: turn },
    });
    expect(await gate.approve(ticket, { reason: 'fine' })).toMatchObject({
      status: 'approved',
      resolved_by: 'operator',
      decision_reason: 'fine',
    });
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toEqual([{ amount: 5 }]);
    await expect(gate.deny(ticket)).rejects.toMatchObject({
      code: 'approval_resolved',
      message: `Approval ticket ${ticket} already approved`,
    });
    expect(await h.rows('select from boxcar.approvals where consumed_at is not null')).toHaveLength(1);
  });

  test('is refused when it is denied, and the turn continues', async () => {
    await profile();
    await h.worker();
    const turn = await launch();
    await gate.deny(await ticketOf(turn), { reason: 'too much' });
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toEqual([]);
    expect(await resultsOf(turn)).toMatchObject([
      [
        'pay',
        'failed',
        { error: { code: 'permission_denied', message: expect.stringContaining('too much') } },
      ],
    ]);
  });

  test('is refused when no decision is made in time, by any sweep', async () => {
    await profile();
    await h.worker({ sweepMs: 3_600_000 });
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    await h.rows("update boxcar.approvals set expires_at = now() - interval '1 second' where id = $1", [
      ticket,
    ]);
    await new Sweeper(h.runtime, {
      lostRingMs: 3_600_000,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    }).sweep();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(await resultsOf(turn)).toMatchObject([
      ['pay', 'failed', { error: { message: expect.stringContaining('Approval request expired') } }],
    ]);
    expect(await gate.get(ticket)).toMatchObject({ status: 'expired', resolved_by: 'system:auto-expire' });
  });

  test('does not delay the other calls of its step', async () => {
    await profile([PAY, { tool: 'look', arguments: {} }]);
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    expect(await resultsOf(turn)).toMatchObject([['look', 'success', {}]]);
    await gate.approve(ticket);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
  });

  test('shows no secret to the people who decide', async () => {
    await profile([{ tool: 'pay', arguments: { amount: 5, api_key: 'abc' } }]);
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    expect((await gate.get(ticket)).tool_args).toEqual({ amount: 5, api_key: '***redacted***' });
    await gate.approve(ticket);
    await end(turn);
    expect(paid).toEqual([{ amount: 5, api_key: 'abc' }]);
  });

  test('is refused when its arguments are too large to be shown', async () => {
    h.runtime.registerTool({
      name: 'send',
      description: 'Sends.',
      requiresApproval: true,
      input: z.looseObject({}),
      run: () => paid.push('sent'),
    });
    // With masked values they are larger than a card may be.
    const items = Array.from({ length: 60_000 }, () => ({ key: 1 }));
    await profile([{ tool: 'send', arguments: { items } }], { tools: ['send'] });
    await h.worker();
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toEqual([]);
    expect(await resultsOf(turn)).toMatchObject([
      [
        'send',
        'failed',
        { error: { code: 'permission_denied', message: expect.stringContaining('too large') } },
      ],
    ]);
  });

  test('is refused without a request when its arguments cannot be read, since their secrets could not be masked', async () => {
    await profile([{ tool: 'pay', arguments: '{"api_key": "sk hidden", "amount": ' }]);
    await h.worker();
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(await resultsOf(turn)).toMatchObject([
      ['pay', 'failed', { error: { code: 'tool_arguments_invalid' } }],
    ]);
    expect(await h.rows('select from boxcar.approvals')).toEqual([]);
  });

  test('needs a separate decision for each of two equal calls', async () => {
    await profile([PAY, PAY]);
    await h.worker();
    const turn = await launch();
    await suspended(turn);
    const tickets = await waitFor(
      async () => {
        const rows = await h.rows<{ id: string }>('select id from boxcar.approvals order by id');
        return rows.length === 2 ? rows : undefined;
      },
      { message: 'two tickets' },
    );
    await gate.approve(tickets[0]?.id ?? '');
    await waitFor(() => paid.length === 1, { message: 'one is paid' });
    await suspended(turn);
    await gate.deny(tickets[1]?.id ?? '');
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
  });

  test('has its full time after the approval', async () => {
    await profile(undefined, { requires_approval: ['pay'], limits: { tool_timeout_seconds: 1 } });
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    // Its second of time has not begun: its deadline is after the expiry of the ticket.
    const rows = await h.rows<{ is_later: boolean }>(
      `select k.deadline_at > a.expires_at as is_later from boxcar.tool_calls k join boxcar.approvals a on a.tool_call_id = k.id where k.turn_id = $1`,
      [turn],
    );
    expect(rows).toEqual([{ is_later: true }]);
    await gate.approve(ticket);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
  });

  test('can be required by its tool', async () => {
    h.runtime.registerTool({
      name: 'erase_disk',
      description: 'Erases.',
      requiresApproval: true,
      input: z.object({}),
      run: () => ({ done: true }),
    });
    await profile([{ tool: 'erase_disk', arguments: {} }], { tools: ['erase_disk'] });
    await h.worker();
    const turn = await launch();
    await gate.approve(await ticketOf(turn));
    expect(await end(turn)).toMatchObject({ status: 'success' });
  });

  test('ends with its turn when the turn is canceled, and its request is withdrawn', async () => {
    await profile();
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    await h.runtime.submit('cancel', { turn_id: turn });
    expect(await end(turn)).toMatchObject({ status: 'canceled' });
    expect((await gate.list({ status: 'pending' })).approvals).toEqual([]);
    expect(await gate.get(ticket)).toMatchObject({ status: 'expired', resolved_by: 'system:turn-ended' });
    await expect(gate.approve(ticket)).rejects.toMatchObject({ code: 'approval_resolved' });
    expect(paid).toEqual([]);
  });

  test('ends with its turn when the turn’s time is over', async () => {
    await profile();
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    await h.rows("update boxcar.turns set deadline_at = now() - interval '1 second' where id = $1", [turn]);
    expect(await end(turn)).toMatchObject({ status: 'timeout' });
    expect(await gate.get(ticket)).toMatchObject({ status: 'expired', resolved_by: 'system:turn-ended' });
  });
});

describe('the right to decide', () => {
  test.each([
    [{ id: 'bot', kind: 'agent', scopes: ['approvals:write'] }, /never decides/],
    [{ id: 'reader', kind: 'key', scopes: ['approvals:read'] }, /approvals:write/],
  ] as const)('is not given to the caller %j', async (principal, message) => {
    await profile();
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await expect(gate.approve(ticket, { principal: principal as Principal })).rejects.toMatchObject({
      code: 'permission_denied',
      message: expect.stringMatching(message),
    });
    expect(await gate.get(ticket)).toMatchObject({ status: 'pending' });
    await gate.deny(ticket, { principal: { id: 'chief', kind: 'person', scopes: ['approvals:write'] } });
    expect(await gate.get(ticket)).toMatchObject({ resolved_by: 'chief' });
    await end(turn);
  });

  test('does not help when the ticket does not exist or its id is not valid: the caller gets an error', async () => {
    await expect(gate.approve('01890a5d-ac96-774b-bcce-b302099a8057')).rejects.toMatchObject({
      code: 'not_found',
    });
    await expect(gate.get('x')).rejects.toMatchObject({ code: 'bad_request' });
  });
});

describe('a policy that names a tool', () => {
  const withPolicy = async (text: string, environment = 'production'): Promise<void> => {
    await h[Symbol.asyncDispose]();
    h = await harness({ permissionEvaluator: new PermissionEvaluator({ text, environment }) });
    gate = new ApprovalGate({ runtime: h.runtime });
    h.runtime.registerTool({
      name: 'pay',
      description: 'Pays.',
      input: z.object({ amount: z.number() }),
      run: (input) => {
        paid.push(input);
        return { receipt: paid.length };
      },
    });
    await profile([PAY], { tools: ['pay'] });
    await h.worker();
  };
  const RULES = `
tools:
  pay: { permission: REQUIRE_APPROVAL }
rules:
  - condition: { environment: development, tool_name: pay }
    permission: ALWAYS
  - condition: { tool_name: pay, context: { args: { amount: { greater_than: 100 } } } }
    permission: NEVER
`;

  test('asks where the rule says so, stores its text, and names the rule', async () => {
    await withPolicy(RULES);
    const turn = await launch();
    const ticket = await ticketOf(turn);
    expect((await gate.get(ticket)).metadata).toMatchObject({
      policy: { rule_id: 'tools.pay', level: 'require_approval' },
      policy_version: expect.stringMatching(/^[0-9a-f]{64}$/),
    });
    expect(await h.rows('select version, content from boxcar.policies')).toEqual([
      { version: (await gate.get(ticket)).metadata.policy_version, content: RULES },
    ]);
    await gate.approve(ticket);
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
  });

  test('lets a call run where the rule allows it', async () => {
    await withPolicy(RULES, 'development');
    expect(await end(await launch())).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
    expect(await h.rows('select from boxcar.approvals')).toEqual([]);
  });

  test('refuses a call that the rule forbids, without a request', async () => {
    await withPolicy(RULES.replace('greater_than: 100', 'greater_than: 1'), 'development');
    const turn = await launch();
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toEqual([]);
    expect(await resultsOf(turn)).toMatchObject([
      [
        'pay',
        'failed',
        { error: { code: 'permission_denied', message: expect.stringContaining('not allowed by policy') } },
      ],
    ]);
    expect(await h.rows('select from boxcar.approvals')).toEqual([]);
  });

  test('does not affect tools that it does not name', async () => {
    await withPolicy('tools: { other: { permission: NEVER } }');
    expect(await end(await launch())).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
  });
});

test('without a gate, a call that needs an approval is refused', async () => {
  await h[Symbol.asyncDispose]();
  h = await harness({ approvalMs: null });
  h.runtime.registerTool({
    name: 'pay',
    description: 'Pays.',
    input: z.object({ amount: z.number() }),
    run: (input) => paid.push(input),
  });
  await h.profile('payer', [{ calls: [PAY] }, { say: 'done' }], {
    tools: ['pay'],
    requires_approval: ['pay'],
  });
  await h.worker();
  const turn = await launch();
  expect(await end(turn)).toMatchObject({ status: 'success' });
  expect(paid).toEqual([]);
  expect(await resultsOf(turn)).toMatchObject([
    [
      'pay',
      'failed',
      {
        error: { message: expect.stringContaining('requires approval but approval gate is not configured') },
      },
    ],
  ]);
});

describe('the death of a process between a decision and its turn', () => {
  test('is repaired by the sweep, which continues the turn', async () => {
    await profile();
    await h.worker();
    const turn = await launch();
    const ticket = await ticketOf(turn);
    await suspended(turn);
    // As after the death of a process whose decision was committed.
    await h.rows(
      "update boxcar.approvals set status = 'approved', resolved_at = now() - interval '1 minute', resolved_by = 'x' where id = $1",
      [ticket],
    );
    expect(await end(turn)).toMatchObject({ status: 'success' });
    expect(paid).toHaveLength(1);
  });

  test('a decision that arrives while the turn still runs is not missed, in 30 rounds', async () => {
    await profile([PAY, { tool: 'look', arguments: {} }]);
    await h.worker({ sweepMs: 3_600_000 });
    for (let round = 0; round < 30; round += 1) {
      const turn = await launch();
      await gate.approve(await ticketOf(turn));
      expect(await end(turn)).toMatchObject({ status: 'success' });
    }
    expect(paid).toHaveLength(30);
  });
});

test('tickets are listed page by page, and a wait for a ticket returns its decision', async () => {
  await profile([PAY, PAY, PAY]);
  await h.worker();
  const turn = await launch();
  await suspended(turn);
  const all = await gate.list();
  expect(all).toMatchObject({ next_cursor: null });
  expect(all.approvals).toHaveLength(3);
  const first = await gate.list({ limit: 2 });
  const rest = await gate.list({ limit: 2, cursor: first.next_cursor ?? '' });
  expect([...first.approvals, ...rest.approvals]).toEqual(all.approvals);
  const [one, ...others] = all.approvals;
  const waiting = gate.wait(one?.ticket_id ?? '');
  await gate.approve(one?.ticket_id ?? '');
  expect(await waiting).toMatchObject({ status: 'approved' });
  for (const { ticket_id } of others) await gate.deny(ticket_id);
  expect((await gate.list({ status: 'denied' })).approvals).toHaveLength(2);
  expect(
    (await gate.list({ run_id: one?.run_id ?? '', agent: one?.agent_slug ?? '' })).approvals,
  ).toHaveLength(3);
  expect((await gate.list({ agent: 'nobody' })).approvals).toEqual([]);
  for (const wrong of [{ limit: 0 }, { status: 'open' }, { cursor: 'turns:x' }, { more: 1 }])
    await expect(gate.list(wrong as never)).rejects.toMatchObject({ code: 'bad_request' });
  await end(turn);
});
