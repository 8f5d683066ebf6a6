/** Handoffs of models and programs: keys, chains, functions, budgets, approvals that change. */
import type { JsonValue, TurnId } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { Sweeper } from '../sweep/sweeper.js';
import { checkWire } from '../testing/check-wire.js';
import { statementsOf } from '../testing/count-statements.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let gate: ApprovalGate;

async function open(options: Parameters<typeof harness>[0] = {}): Promise<void> {
  h = await harness({ connections: 8, handoffs: { enabled: true }, ...options });
  gate = new ApprovalGate({ runtime: h.runtime });
}
const close = async (): Promise<void> => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
};

const HANDS_OFF = { tools: ['handoff'], delegation_policy: { target_profiles: null } };
const ASKS = `tools:\n  handoff:\n    permission: REQUIRE_APPROVAL\n`;
const asks = () => new PermissionEvaluator({ text: ASKS, environment: 'production' });
const ask = (target_agent: string, rest: object = {}) => ({
  source_agent: 'main',
  target_agent,
  task: 'do it',
  ...rest,
});
const pendingTicket = () =>
  waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
    message: 'a request for approval',
  });
const launch = async (profile_name: string): Promise<TurnId> =>
  ((await h.runtime.submit('launch_principal', { profile_name, instruction: 'go' })) as { turn_id: TurnId })
    .turn_id;
const end = (turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 30_000 });
/** The results of the model's calls. */
const results = async (turnId: TurnId) =>
  h.rows<{ status: string; data: { result?: JsonValue; error?: JsonValue } }>(
    `select k.status, c.content as data from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 order by k.ordinal`,
    [turnId],
  );
const handing = (target_agent: string, rest: object = {}) => ({
  tool: 'handoff',
  arguments: { target_agent, task: 'do it', ...rest },
});

describe('a model with the handoff tool', () => {
  beforeEach(() => open());
  afterEach(close);

  test('hands off and gets the result as the result of its call', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile('main', [{ calls: [handing('helper', { context: { a: 1 } })] }, { say: 'done' }], {
      ...HANDS_OFF,
    });
    await h.worker();
    const turnId = await launch('main');
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'done' });
    expect((await results(turnId))[0]?.data).toMatchObject({
      status: 'success',
      result: { status: 'success', result: 'helped' },
    });
    const tool = new HandoffTool({ runtime: h.runtime });
    const [handoff] = (await tool.listHandoffs()).handoffs;
    expect(handoff).toMatchObject({
      status: 'completed',
      target_agent: 'helper',
      context: { a: 1 },
      calling_run_id: expect.any(String),
    });
    expect(handoff?.target_run_id).toBe(handoff?.calling_run_id);
    expect((await tool.listHandoffs({ run: String(handoff?.calling_run_id) })).handoffs).toHaveLength(1);
  });

  test('gets the tool in the shape of the source, without a platform', async () => {
    await h.profile('main', [{ say: 'x' }], HANDS_OFF);
    await h.worker();
    const turnId = await launch('main');
    await end(turnId);
    const [row] = await h.rows<{
      tools: { name: string; parameters: { properties: object; required: string[] } }[];
    }>('select to_json(t) as tools from boxcar.toolsets t');
    const shown = JSON.stringify(row);
    expect(shown).toContain('Agent slug or identifier to delegate to');
    expect(shown).not.toContain('platform');
  });

  test('cannot speak for another agent', async () => {
    await h.profile('helper', [{ say: 'x' }]);
    await h.profile('main', [{ calls: [handing('helper', { source_agent: 'somebody' })] }, { say: 'done' }], {
      ...HANDS_OFF,
    });
    await h.worker();
    const turnId = await launch('main');
    await end(turnId);
    expect((await results(turnId))[0]).toMatchObject({
      status: 'failed',
      data: { error: { code: 'bad_request' } },
    });
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
  });

  test('hands on: the second handoff is part of the first, and a target that is already in the chain is refused', async () => {
    await h.profile('third', [{ calls: [handing('second')] }, { say: 'end' }], HANDS_OFF);
    await h.profile('second', [{ calls: [handing('third')] }, { say: 'mid' }], HANDS_OFF);
    await h.worker();
    const tool = new HandoffTool({ runtime: h.runtime });
    const { handoff_id } = await tool.handoff(ask('second'));
    const all = (await tool.listHandoffs()).handoffs.toReversed();
    expect(
      all.map(({ target_agent, depth, status, error }) => [target_agent, depth, status, error?.code]),
    ).toEqual([
      ['second', 0, 'completed', undefined],
      ['third', 1, 'completed', undefined],
      ['second', 2, 'failed', 'delegation_cycle'],
    ]);
    expect(all.map(({ root_handoff_id }) => root_handoff_id)).toEqual([handoff_id, handoff_id, handoff_id]);
    expect(all[1]?.parent_handoff_id).toBe(handoff_id);
    expect(all[2]?.error?.message).toContain('main → second → third → second');
  });
});

describe('with the feature off', () => {
  beforeEach(() => open({ handoffs: {} }));
  afterEach(close);

  test('a function of a tool that is on can still hand off', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    tool.registerAgent('inner', () => 'in');
    tool.registerAgent(
      'outer',
      async (_input, { handoff }) => (await handoff({ target_agent: 'inner', task: 'go' })).result,
    );
    expect((await tool.handoff(ask('outer'))).result).toBe('in');
  });

  test('models do not get the tool, and their calls are refused', async () => {
    await h.profile('helper', [{ say: 'x' }]);
    await h.profile('main', [{ calls: [handing('helper')] }, { say: 'done' }], HANDS_OFF);
    await h.worker();
    const turnId = await launch('main');
    await end(turnId);
    expect((await results(turnId))[0]).toMatchObject({ data: { error: { code: 'feature_disabled' } } });
    expect(JSON.stringify(await h.rows('select * from boxcar.toolsets'))).not.toContain('Agent slug');
    expect(await failureOf(h.runtime.submit('handoff', ask('helper')))).toMatchObject({
      code: 'feature_disabled',
    });
  });
});

describe('with a policy that requires an approval', () => {
  beforeEach(() => open({ permissionEvaluator: asks() }));
  afterEach(close);

  test('a model’s call waits without a worker, and gets the result after the approval', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile('main', [{ calls: [handing('helper')] }, { say: 'done' }], HANDS_OFF);
    const worker = await h.worker();
    const turnId = await launch('main');
    const ticket = await pendingTicket();
    await waitFor(() => worker.activeCount === 0, { message: 'the worker is free' });
    expect(await h.rows('select status from boxcar.turns')).toEqual([{ status: 'suspended' }]);
    await gate.approve(ticket.ticket_id);
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'done' });
    expect((await results(turnId))[0]?.data).toMatchObject({ result: { result: 'helped' } });
  });

  test('a profile that itself requires approvals is asked first, before the handoff is requested', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile('main', [{ calls: [handing('helper')] }, { say: 'done' }], {
      ...HANDS_OFF,
      requires_approval: ['handoff'],
    });
    await h.worker({ sweepMs: 60_000 });
    const turnId = await launch('main');
    await waitFor(
      async () => (await h.rows("select from boxcar.turns where status = 'suspended'")).length === 1,
      {
        message: 'the call waits',
      },
    );
    await gate.approve((await pendingTicket()).ticket_id);
    await waitFor(async () => (await h.rows('select from boxcar.handoffs')).length === 1, {
      message: 'it is requested',
    });
    await gate.approve((await pendingTicket()).ticket_id);
    expect(await end(turnId)).toMatchObject({ status: 'success' });
  });

  test('a call without wait is answered at once, and its handoff waits for the approval', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile(
      'main',
      [{ calls: [handing('helper', { wait: false })] }, { say: 'done', delayMs: 3_000 }],
      {
        ...HANDS_OFF,
      },
    );
    await h.worker();
    const turnId = await launch('main');
    const ticket = await pendingTicket();
    await waitFor(async () => (await results(turnId)).length === 1, { message: 'the call has its answer' });
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 2_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    });
    await sweeper.sweep();
    expect(await h.rows('select phase from boxcar.handoffs')).toEqual([{ phase: 'awaiting_approval' }]);
    await gate.approve(ticket.ticket_id);
    const tool = new HandoffTool({ runtime: h.runtime });
    const [handoff] = (await tool.listHandoffs()).handoffs;
    expect(await tool.waitForHandoff(String(handoff?.handoff_id), { timeoutMs: 20_000 })).toMatchObject({
      result: 'helped',
    });
    expect(await end(turnId)).toMatchObject({ result: 'done' });
  });

  test('the end of a turn cancels a handoff for which it did not wait, and the ticket expires', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile('main', [{ calls: [handing('helper', { wait: false })] }, { say: 'done' }], HANDS_OFF);
    await h.worker();
    await end(await launch('main'));
    const tool = new HandoffTool({ runtime: h.runtime });
    const [handoff] = (await tool.listHandoffs()).handoffs;
    expect(await tool.waitForHandoff(String(handoff?.handoff_id), { timeoutMs: 20_000 })).toMatchObject({
      phase: 'canceled',
    });
    expect(await h.rows('select status, resolved_by from boxcar.approvals')).toEqual([
      { status: 'expired', resolved_by: 'system:turn-ended' },
    ]);
  });

  test('a refusal is the result of the call', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile('main', [{ calls: [handing('helper')] }, { say: 'done' }], HANDS_OFF);
    await h.worker();
    const turnId = await launch('main');
    await gate.deny((await pendingTicket()).ticket_id, { reason: 'not now' });
    expect(await end(turnId)).toMatchObject({ status: 'success' });
    expect((await results(turnId))[0]).toMatchObject({
      status: 'failed',
      data: { error: { code: 'permission_denied', message: 'Handoff to helper denied: not now' } },
    });
  });

  test('a canceled tree cancels its waiting handoffs', async () => {
    await h.profile('helper', [{ say: 'helped' }]);
    await h.profile('main', [{ calls: [handing('helper')] }, { say: 'done' }], HANDS_OFF);
    await h.worker();
    const turnId = await launch('main');
    const ticket = await pendingTicket();
    await waitFor(
      async () => (await h.rows("select from boxcar.turns where status = 'suspended'")).length === 1,
      { message: 'it waits' },
    );
    await h.runtime.submit('cancel', { turn_id: turnId, reason: 'no' });
    const tool = new HandoffTool({ runtime: h.runtime });
    const [handoff] = (await tool.listHandoffs()).handoffs;
    expect(await tool.waitForHandoff(String(handoff?.handoff_id), { timeoutMs: 20_000 })).toMatchObject({
      phase: 'canceled',
    });
    await gate.approve(ticket.ticket_id).catch(() => undefined);
    expect(await h.rows('select from boxcar.turns')).toHaveLength(1);
  });

  test('identical requests of one run share the ticket and the result of the oldest', async () => {
    await h.profile('helper', [{ say: 'once' }]);
    await h.worker();
    const tool = new HandoffTool({ runtime: h.runtime });
    const running = [1, 2, 3].map(() => tool.handoff(ask('helper', { run_id: 'run-7' })));
    const other = tool.handoff(ask('helper', { run_id: 'run-8' }));
    await waitFor(async () => (await h.rows('select from boxcar.handoffs')).length === 4, {
      message: 'four handoffs',
    });
    const tickets = (await gate.list({ status: 'pending' })).approvals;
    expect(tickets).toHaveLength(2);
    for (const { ticket_id } of tickets) await gate.approve(ticket_id);
    expect((await Promise.all(running)).map(({ result }) => result)).toEqual(['once', 'once', 'once']);
    await other;
    expect(await h.rows('select from boxcar.turns')).toHaveLength(2);
    const joined = (await tool.listHandoffs()).handoffs.filter(({ joined_to }) => joined_to !== null);
    expect(joined).toHaveLength(2);
  });

  test('a refusal takes as many statements for many requests with the same ticket as for two', async () => {
    await h.profile('helper', [{ say: 'once' }]);
    const tool = new HandoffTool({ runtime: h.runtime, concurrency: 0 });
    const refuse = async (run_id: string, count: number): Promise<number> => {
      const ids: string[] = [];
      for (let n = 0; n < count; n += 1)
        ids.push((await tool.handoff(ask('helper', { run_id, wait: false }))).handoff_id);
      const { ticket_id } = await pendingTicket();
      const { length } = await statementsOf(h.database, () => gate.deny(ticket_id));
      for (const handoff_id of ids)
        expect(await tool.getHandoff(handoff_id)).toMatchObject({
          phase: 'rejected',
          error: { details: { handoff_id } },
        });
      return length;
    };
    expect(await refuse('many', 30)).toBe(await refuse('two', 2));
  });

  test('requests with other boxes share no ticket: each has its own cards, and people see which boxes are passed on', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    const sent: string[] = [];
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
      executeHandoff: async ({ cards }) => {
        const [text] = cards.map(({ content }) => ('text' in content ? String(content.text) : ''));
        sent.push(String(text));
        const loss = { sent_cards: cards.map(({ id }) => id), lost: [] };
        return { result: String(text), usage: null, remote_id: null, loss };
      },
    });
    const boxOf = async (text: string): Promise<string> => {
      const cards = [{ type: 'note', content: { kind: 'text', text } }];
      return ((await h.runtime.submit('create_box', { cards })) as { box_id: string }).box_id;
    };
    const boxes = [await boxOf('first'), await boxOf('second')] as const;
    const running = [boxes[0], boxes[1], [boxes[0]]].map((context_box_id) =>
      tool.handoff(ask('reader', { platform: 'acme', run_id: 'run-9', context_box_id })),
    );
    await waitFor(async () => (await h.rows('select from boxcar.handoffs')).length === 3, {
      message: 'three handoffs',
    });
    const { approvals } = await gate.list({ status: 'pending' });
    expect(approvals.map(({ tool_args }) => tool_args.context_box_id)).toEqual(
      expect.arrayContaining([[boxes[0]], [boxes[1]]]),
    );
    expect(approvals).toHaveLength(2);
    for (const { ticket_id } of approvals) await gate.approve(ticket_id);
    expect((await Promise.all(running)).map(({ result }) => result)).toEqual(['first', 'second', 'first']);
    expect(sent.toSorted()).toEqual(['first', 'second']);
  });

  test('the key with which an approved handoff begins cannot be used by any other submission', async () => {
    await h.profile('helper', [{ say: 'ok' }]);
    await h.worker();
    const tool = new HandoffTool({ runtime: h.runtime });
    const { handoff_id, ticket_id } = await tool.handoff(ask('helper', { wait: false }));
    const card = { type: 'note', content: { kind: 'text', text: 'first' } };
    const taking = h.runtime.submit(
      'create_box',
      { cards: [card] },
      { idempotencyKey: `handoff-begin:${ticket_id}` },
    );
    expect(await failureOf(taking)).toMatchObject({ code: 'bad_request' });
    await gate.approve(String(ticket_id));
    expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({ result: 'ok' });
  });

  test('a decision whose process died before acting on it is carried out by the sweep', async () => {
    await h.profile('helper', [{ say: 'late' }]);
    const tool = new HandoffTool({ runtime: h.runtime });
    const { handoff_id } = await tool.handoff(ask('helper', { wait: false }));
    await h.rows(
      `update boxcar.approvals set status = 'approved', resolved_at = now() - interval '5 seconds', resolved_by = 'operator', principal = '{}'`,
    );
    await new Sweeper(h.runtime, {
      lostRingMs: 2_000,
      leaseMs: 10_000,
      claimFromRows: () => Promise.resolve(),
      wakeProvider: () => Promise.resolve(),
    }).sweep();
    await h.worker();
    expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({ result: 'late' });
  });
});

describe('a policy that changes before the approval is used', () => {
  afterEach(close);

  for (const [name, text, expected] of [
    ['and then forbids the handoff rejects it', `tools:\n  handoff:\n    permission: NEVER\n`, 'rejected'],
    ['and then allows the handoff lets it run', `tools:\n  handoff:\n    permission: ALWAYS\n`, 'completed'],
    [
      'and still requires an approval makes a new ticket',
      `tools:\n  handoff:\n    permission: REQUIRE_APPROVAL\nrules:\n  - condition: { tool_name: handoff, context: { platform: openai } }\n    permission: NEVER\n`,
      'pending',
    ],
  ] as const)
    test(name, async () => {
      await open({ permissionEvaluator: asks() });
      await h.profile('helper', [{ say: 'ok' }]);
      await h.worker();
      const tool = new HandoffTool({ runtime: h.runtime });
      const { handoff_id, ticket_id } = await tool.handoff(ask('helper', { wait: false }));
      Object.assign(h.runtime.gate, {
        evaluator: new PermissionEvaluator({ text, environment: 'production' }),
      });
      await gate.approve(String(ticket_id));
      if (expected === 'pending') {
        const handoff = await tool.getHandoff(handoff_id);
        expect(handoff).toMatchObject({ status: 'pending', phase: 'awaiting_approval' });
        expect(handoff?.ticket_id).not.toBe(ticket_id);
        await gate.approve(String(handoff?.ticket_id));
        expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
          status: 'completed',
        });
      } else
        expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
          status: expected,
        });
    });
});

describe('an idempotency key', () => {
  beforeEach(() => open());
  afterEach(close);

  test('returns the same handoff in every state, as an argument or in the context', async () => {
    await h.profile('helper', [{ say: 'once' }]);
    await h.worker();
    const tool = new HandoffTool({ runtime: h.runtime });
    const first = await tool.handoff(ask('helper', { idempotency_key: 'run-1:step-1' }));
    expect(await tool.handoff(ask('helper', { idempotency_key: 'run-1:step-1' }))).toEqual(first);
    const inContext = () =>
      tool.handoff(ask('helper', { context: { idempotency_key: 'run-1:step-2', task_data: {} } }));
    expect(await inContext()).toEqual(await inContext());
    expect(
      await failureOf(tool.handoff(ask('helper', { idempotency_key: 'run-1:step-1', task: 'other' }))),
    ).toMatchObject({
      code: 'idempotency_conflict',
    });
    const onPlatform = (platform: string) =>
      tool.handoff(ask('helper', { idempotency_key: 'run-1:step-4', platform }));
    expect(await onPlatform('Native')).toEqual(await onPlatform('agdd'));
    const failed = () => failureOf(tool.handoff(ask('nobody', { idempotency_key: 'run-1:step-3' })));
    expect((await failed()).details.handoff_id).toBe((await failed()).details.handoff_id);
    expect(await h.rows('select from boxcar.handoffs')).toHaveLength(4);
  });

  test('in the context that is too long is refused, and not cut', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    tool.registerAgent('echo', (input) => input);
    const under = (idempotency_key: string) => tool.handoff(ask('echo', { context: { idempotency_key } }));
    expect(await under(`${'k'.repeat(498)}😀`)).toMatchObject({ status: 'completed' });
    for (const key of ['k'.repeat(501), `${'k'.repeat(499)}😀`])
      expect(await failureOf(under(key))).toMatchObject({
        code: 'bad_request',
        details: { field: 'arguments.context.idempotency_key' },
      });
  });

  test('in twenty requests at once makes one handoff', async () => {
    await h.profile('helper', [{ say: 'once' }]);
    await h.worker();
    const tool = new HandoffTool({ runtime: h.runtime });
    const all = await Promise.all(
      Array.from({ length: 20 }, () => tool.handoff(ask('helper', { idempotency_key: 'k' }))),
    );
    expect(new Set(all.map(({ handoff_id }) => handoff_id)).size).toBe(1);
    expect(await h.rows('select from boxcar.turns')).toHaveLength(1);
  });
});

describe('a function that serves handoffs', () => {
  beforeEach(() => open());
  afterEach(close);

  test('gets the payload unchanged, else task and context, and hands off in its own name', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    const seen: unknown[] = [];
    tool.registerAgent('adviser-sag', (input, { task, context, handoff_id }) => {
      seen.push([input, task, context, handoff_id]);
      return { salary: 100 };
    });
    tool.registerAgent('orchestrator-mag', async (_input, { handoff }) => {
      const { result } = await handoff({ target_agent: 'adviser-sag', task: 'advise', payload: [1] });
      return { adviser: result };
    });
    const { handoff_id, result } = await tool.handoff(
      ask('orchestrator-mag', { run_id: 'r', context: { parent_run_id: 'mine' } }),
    );
    expect(result).toEqual({ adviser: { salary: 100 } });
    const inner = (await tool.listHandoffs({ source_agent: 'orchestrator-mag' })).handoffs[0];
    expect(inner).toMatchObject({ parent_handoff_id: handoff_id, depth: 1 });
    expect(seen).toEqual([
      [
        [1],
        'advise',
        {
          handoff_id: inner?.handoff_id,
          handoff_source_agent: 'orchestrator-mag',
          handoff_platform: 'agdd',
          parent_run_id: inner?.calling_run_id,
        },
        inner?.handoff_id,
      ],
    ]);
    tool.registerAgent('echo', (input) => input);
    expect((await tool.handoff(ask('echo', { context: { a: 1 } }))).result).toEqual({
      task: 'do it',
      context: { a: 1 },
    });
    for (const payload of [5, 'text', true, { payload: 5 }, ['x']])
      expect((await tool.handoff(ask('echo', { payload }))).result).toEqual(payload);
  });

  test('hands off in the tree of its turn: account, depth and cancel apply to its handoffs', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    let isCalled = false;
    let reason: unknown;
    const aborts = (signal: AbortSignal): Promise<never> =>
      new Promise((_resolve, reject) => {
        isCalled = true;
        signal.addEventListener('abort', () => {
          reason = signal.reason;
          reject(signal.reason);
        });
      });
    tool.registerAgent('inner', (_input, { signal }) => aborts(signal));
    tool.registerAgent('outer', async (_input, { handoff }) => {
      await handoff({ target_agent: 'inner', task: 'wait' });
      return null;
    });
    await h.profile('main', [{ calls: [handing('outer')] }, { say: 'done' }], HANDS_OFF);
    await h.worker({ targets: ['', ...h.runtime.handoffs.workerTargets] });
    const { turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'main',
      instruction: 'go',
      budget: { tokens: 100_000 },
    })) as unknown as { turn_id: TurnId };
    await waitFor(() => isCalled, { message: 'both functions run' });
    expect(
      await h.rows(
        `select t.depth, t.run_id = m.run_id as is_same_run, t.budget_id = m.budget_id as is_same_account from boxcar.turns t, boxcar.turns m where m.id = $1 order by t.depth`,
        [turn_id],
      ),
    ).toEqual([0, 1, 2].map((depth) => ({ depth, is_same_run: true, is_same_account: true })));
    await h.runtime.submit('cancel', { turn_id, reason: 'no' });
    await end(turn_id);
    await waitFor(() => reason !== undefined, { message: 'the inner function is stopped' });
    const { handoffs } = await tool.listHandoffs();
    for (const { handoff_id } of handoffs) await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 });
    expect((await tool.listHandoffs()).handoffs.map(({ phase }) => phase)).toEqual(['canceled', 'canceled']);
  });

  test('hands off under the policy of the tool that has registered it', async () => {
    const tool = new HandoffTool({
      runtime: h.runtime,
      permissionEvaluator: new PermissionEvaluator({
        text: `rules:\n  - condition: { tool_name: handoff, context: { target_agent: inner } }\n    permission: NEVER\n  - condition: { tool_name: handoff }\n    permission: ALWAYS\n`,
        environment: 'production',
      }),
    });
    // Another tool of the process has no influence.
    new HandoffTool({ runtime: h.runtime, permissionEvaluator: null });
    tool.registerAgent('inner', () => 'reached');
    tool.registerAgent('outer', async (_input, { handoff }) => {
      const { result } = await handoff({ target_agent: 'inner', task: 'go' });
      return result;
    });
    expect(await failureOf(tool.handoff(ask('outer')))).toMatchObject({
      code: 'permission_denied',
      message: 'Handoff to inner not allowed by policy',
    });
  });

  test('shares no ticket with another request of its run unless it names a run', async () => {
    const tool = new HandoffTool({
      runtime: h.runtime,
      permissionEvaluator: new PermissionEvaluator({
        text: `tools:\n  handoff: { permission: ALWAYS }\nrules:\n  - condition: { tool_name: handoff, context: { target_agent: inner } }\n    permission: REQUIRE_APPROVAL\n`,
        environment: 'production',
      }),
    });
    let runs = 0;
    tool.registerAgent('inner', () => {
      runs += 1;
      return runs;
    });
    tool.registerAgent('outer', async (input, { handoff }) => {
      const both = [1, 2].map(() =>
        handoff({ target_agent: 'inner', task: 'go', ...(input === 'named' ? { run_id: 'mine' } : {}) }),
      );
      return (await Promise.all(both)).map(({ result }) => result);
    });
    const approveAll = async (count: number): Promise<void> => {
      await waitFor(
        async () =>
          (await h.rows("select from boxcar.handoffs where phase = 'awaiting_approval'")).length === 2,
        { message: 'two requests' },
      );
      const { approvals } = await gate.list({ status: 'pending' });
      expect(approvals).toHaveLength(count);
      for (const { ticket_id } of approvals) await gate.approve(ticket_id);
    };
    const first = tool.handoff(ask('outer'));
    await approveAll(2);
    expect((await first).result).toEqual(expect.arrayContaining([1, 2]));
    const second = tool.handoff(ask('outer', { payload: 'named' }));
    await approveAll(1);
    expect((await second).result).toEqual([3, 3]);
  });

  test('is explained with its input, and with the fact that no prompt was sent', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    tool.registerAgent('echo', () => 'out');
    const { handoff_id } = await tool.handoff(ask('echo', { context: { amount: 5 } }));
    const { turn_id } = (await tool.getHandoff(handoff_id)) ?? {};
    const explained = await h.runtime.explainStep(turn_id as TurnId);
    expect(explained.findings).toMatchObject([{ code: 'served_elsewhere' }]);
    expect(JSON.stringify(explained.messages)).toContain('amount');
  });

  test('that throws fails the handoff with its message, and is tried again when the error says so', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    let calls = 0;
    tool.registerAgent('broken', () => {
      calls += 1;
      throw Object.assign(new Error('no paper'), calls === 2 ? { retryable: true } : {});
    });
    expect(await failureOf(tool.handoff(ask('broken')))).toMatchObject({
      code: 'platform_failed',
      message: 'no paper',
    });
    expect(
      await failureOf(tool.handoff(ask('broken', { retry: { max_attempts: 3, base_seconds: 0 } }))),
    ).toMatchObject({ message: 'no paper' });
    expect(calls).toBe(3);
  });

  test('that fails until its time is over ends at that time, and not after the pause', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    tool.registerAgent('busy', () => {
      throw Object.assign(new Error('busy'), { retryable: true });
    });
    const { handoff_id } = await tool.handoff(
      ask('busy', {
        timeout: 0.5,
        retry: { max_attempts: 9, base_seconds: 600, max_seconds: 600 },
        wait: false,
      }),
    );
    expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 5_000 })).toMatchObject({
      phase: 'timed_out',
      attempts: 1,
      error: { code: 'handoff_timeout' },
    });
    const events = await tool.getEvents(handoff_id);
    expect(events.map(({ event_type }) => event_type)).toEqual([
      'handoff.requested',
      'handoff.started',
      'handoff.retrying',
      'handoff.failed',
    ]);
    expect(events[2]?.delay_ms).toBeLessThanOrEqual(500);
  });

  test('is not run again when its result cannot be stored', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    let calls = 0;
    tool.registerAgent('pays', () => {
      calls += 1;
      return 'paid';
    });
    await h.rows(
      `create function public.refuse_success() returns trigger language plpgsql as $$ begin raise exception 'statement timeout' using errcode = '57014'; end $$;
       create trigger refuse before update on boxcar.turns for each row when (new.status = 'success') execute function public.refuse_success()`,
    );
    const retry = { max_attempts: 5, base_seconds: 0 };
    const { handoff_id } = await tool.handoff(ask('pays', { wait: false, retry }));
    expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
      phase: 'failed',
      error: { code: 'database_unavailable' },
      attempts: 1,
    });
    expect(calls).toBe(1);
  });

  test('is not run again when the close of its tool interrupts it', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    let calls = 0;
    const hang = (): Promise<never> => {
      calls += 1;
      return new Promise(() => undefined);
    };
    tool.registerAgent('once', hang);
    const { handoff_id } = await tool.handoff(ask('once', { wait: false }));
    await waitFor(() => calls === 1, { message: 'it runs' });
    await tool.close();
    expect(await tool.waitForHandoff(handoff_id, { timeoutMs: 20_000 })).toMatchObject({
      status: 'failed',
      error: { code: 'outcome_unknown' },
    });
    expect(calls).toBe(1);
  });

  test('can be replaced by a runner for names that are not registered: names that end with -sag go to invokeSag', async () => {
    const calls: string[] = [];
    const tool = new HandoffTool({
      runtime: h.runtime,
      agentRunner: {
        invokeMag: (slug, input) => {
          calls.push(`mag ${slug} ${JSON.stringify(input)}`);
          return { ok: slug };
        },
        invokeSag: (slug) => {
          calls.push(`sag ${slug}`);
          return 'sag';
        },
      },
    });
    expect((await tool.handoff(ask('unknown-mag', { payload: { a: 1 } }))).result).toEqual({
      ok: 'unknown-mag',
    });
    expect((await tool.handoff(ask('unknown-sag'))).result).toBe('sag');
    expect(calls).toEqual(['mag unknown-mag {"a":1}', 'sag unknown-sag']);
  });
});

describe('an agent with notices of its own', () => {
  beforeEach(() => open());
  afterEach(close);

  test('is a forked session that notifies its parent, and the handoff has its end', async () => {
    await h.profile('scout', [{ say: 'seen' }]);
    await h.worker();
    const { agent_id, turn_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'scout',
      instruction: 'go',
    })) as unknown as { agent_id: string; turn_id: TurnId };
    await end(turn_id);
    const session = await (await h.runtime.tape({ agent: agent_id })).forkSession('abroad', {
      profile: 'scout',
      triggerOnComplete: 'notify_parent',
    });
    const tool = new HandoffTool({ runtime: h.runtime });
    const { handoff_id } = await tool.handoff(ask(`agent:${session.name}`));
    expect((await tool.getEvents(handoff_id)).at(-1)?.event_type).toBe('handoff.completed');
    await waitFor(
      async () =>
        (await h.rows("select from boxcar.tape_entries where dedup_key like 'fork-result:%'")).length === 1 &&
        (await h.rows('select from boxcar.turns where notifies')).length === 0,
      { message: 'the parent is told' },
    );
  });
});

describe('a request that is not valid', () => {
  beforeEach(() => open());
  afterEach(close);

  test('is logged, and leaves no row', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    for (const wrong of [
      { task: '' },
      { task: '   ' },
      { target_agent: '' },
      { source_agent: ' ' },
      { timeout: 0 },
      { timeout: -1 },
      { context: 'text' },
      { retry: { max_attempts: 0 } },
      { unknown: 1 },
      { task: 'x'.repeat(300_000) },
    ])
      expect((await failureOf(tool.handoff(ask('helper', wrong) as never))).code).toMatch(
        /^(bad_request|payload_too_large)$/,
      );
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
    expect(h.log.filter(({ event }) => event === 'handoff.refused')).toHaveLength(10);
    expect(await tool.getHandoff('01a00000-0000-7000-8000-00000000abcd')).toBeNull();
    expect(await failureOf(tool.getHandoff('x').then())).toMatchObject({ code: 'bad_request' });
  });

  test('agents that serve handoffs get their tasks only by handoff', async () => {
    const tool = new HandoffTool({ runtime: h.runtime });
    tool.registerAgent('echo', (input) => input);
    const { handoff_id } = await tool.handoff(ask('echo'));
    const [row] = await h.rows<{ agent_id: string }>('select agent_id from boxcar.turns');
    expect(
      await failureOf(
        h.runtime.submit('delegate_async', {
          target_strategy: 'reuse',
          target_ref: row?.agent_id,
          instruction: 'x',
        }),
      ),
    ).toMatchObject({ code: 'bad_request' });
    expect(
      (await failureOf(h.runtime.submit('launch_principal', { profile_name: 'handoff', instruction: 'x' })))
        .code,
    ).toBe('not_found');
    expect(await failureOf(tool.handoff(ask(String(row?.agent_id), { wait: false })))).toMatchObject({
      code: 'bad_request',
    });
    expect(await h.runtime.listProfiles()).toEqual([]);
    expect(handoff_id).toBeTruthy();
  });
});
