/** Chains: sequences of handoffs, and the compensations when a handoff fails. */
import { type Handoff, type JsonValue, KernelError } from '@boxcar/kernel';
import { PermissionEvaluator } from '@boxcar/policy';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ApprovalGate } from '../approval/index.js';
import { checkWire } from '../testing/check-wire.js';
import { failureOf } from '../testing/failure-of.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { HandoffTool } from './handoff-tool.js';

let h: Harness;
let tool: HandoffTool;
/** The calls of functions with their arguments, in order. */
let calls: [string, JsonValue, JsonValue][];
const desk = { source_agent: 'desk' };

beforeEach(async () => {
  h = await harness({ connections: 8 });
  tool = new HandoffTool({ runtime: h.runtime });
  calls = [];
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
});

/** Registers a function that records its calls. */
function record(name: string, answer: (input: JsonValue) => JsonValue = (input) => input): void {
  tool.registerAgent(name, (input, { context }) => {
    calls.push([
      name,
      input,
      Object.fromEntries(
        Object.entries(context).filter(([key]) => !/^(handoff_|parent_)/.test(key)),
      ) as JsonValue,
    ]);
    return answer(input);
  });
}
const fail = (): never => {
  throw new KernelError('platform_failed', { message: 'no seats' });
};
const below = async (root: string): Promise<readonly Handoff[]> =>
  (await tool.listHandoffs()).handoffs
    .filter(({ parent_handoff_id }) => parent_handoff_id === root)
    .reverse();

describe('a chain', () => {
  test('gives each hop the result of the previous hop, and has the result of the last hop', async () => {
    record('flight', () => ({ seat: '12A' }));
    record('hotel', () => 'room 4');
    record('mail', (input) => ({ sent: input }));
    const { handoff_id, status, result } = await tool.chain(
      [
        { target_agent: 'flight', task: 'Book.', payload: { to: 'LIS' } },
        { target_agent: 'hotel', task: 'Book.' },
        { target_agent: 'mail', task: 'Tell.', payload: 'Done', context: { to: 'me' } },
      ],
      { ...desk, run_id: 'trip-1' },
    );
    expect([status, result]).toEqual(['completed', { sent: 'Done' }]);
    expect(calls).toEqual([
      ['flight', { to: 'LIS' }, {}],
      ['hotel', { seat: '12A' }, {}],
      ['mail', 'Done', { to: 'me', previous_result: 'room 4' }],
    ]);
    expect(await tool.getHandoff(handoff_id)).toMatchObject({
      mode: 'chain',
      phase: 'completed',
      target_agent: 'chain: flight → hotel → mail',
      depth: 0,
    });
    const hops = await below(handoff_id);
    expect(hops).toMatchObject(
      [1, 2, 3].map((hop) => ({
        mode: 'handoff',
        hop,
        source_agent: 'desk',
        root_handoff_id: handoff_id,
        depth: 1,
        run_id: 'trip-1',
      })),
    );
  });

  test('can use an existing agent of this installation as a hop, and all hops are one run', async () => {
    await h.profile('writer', [{ say: 'A text.' }]);
    await h.runtime.submit('provision_agent', { action: 'create', agent_id: 'bob', profile_name: 'writer' });
    await h.worker();
    record('printer');
    const { handoff_id, result } = await tool.chain(
      [
        { target_agent: 'bob', task: 'Write.' },
        { target_agent: 'printer', task: 'Print.' },
      ],
      desk,
    );
    expect(result).toBe('A text.');
    const runs = await h.rows<{ n: number }>('select count(distinct run_id)::int as n from boxcar.turns');
    expect(runs).toEqual([{ n: 1 }]);
    expect((await below(handoff_id)).map(({ target_agent }) => target_agent)).toEqual(['bob', 'printer']);
  });

  test('that fails is compensated in reverse, each hop once, and names the failed hop', async () => {
    record('flight', () => ({ seat: '12A' }));
    record('car', () => 'red');
    record('hotel', fail);
    record('unflight');
    record('uncar');
    record('after');
    const error = await failureOf(
      tool.chain(
        [
          {
            target_agent: 'flight',
            task: 'Book.',
            compensate: { target_agent: 'unflight', task: 'Give back.', context: { why: 'x' } },
          },
          { target_agent: 'car', task: 'Book.', compensate: { target_agent: 'uncar', task: 'Give back.' } },
          { target_agent: 'hotel', task: 'Book.', compensate: { target_agent: 'after', task: 'Never.' } },
          { target_agent: 'after', task: 'Never.' },
        ],
        desk,
      ),
    );
    const id = String(error.details.handoff_id);
    const steps = await below(id);
    expect(calls.map(([name, input]) => [name, input])).toEqual([
      ['flight', { task: 'Book.', context: {} }],
      ['car', { seat: '12A' }],
      ['hotel', 'red'],
      ['uncar', 'red'],
      ['unflight', { seat: '12A' }],
    ]);
    expect(calls.at(-1)?.[2]).toEqual({ why: 'x', compensates: steps[0]?.handoff_id });
    expect(error).toMatchObject({
      code: 'chain_failed',
      message: expect.stringMatching(/^Hop 3 of 4 \(hotel\) failed: no seats/) as string,
      details: {
        phase: 'rolled_back',
        hop: 3,
        code: 'platform_failed',
        failed_handoff_id: steps[2]?.handoff_id,
      },
    });
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'rolled_back', status: 'failed' });
    expect(steps.map(({ mode, hop, status, compensates }) => [mode, hop, status, compensates])).toEqual([
      ['handoff', 1, 'completed', null],
      ['handoff', 2, 'completed', null],
      ['handoff', 3, 'failed', null],
      ['compensate', 2, 'completed', steps[1]?.handoff_id],
      ['compensate', 1, 'completed', steps[0]?.handoff_id],
    ]);
  });

  test('whose compensation fails reports so, and a person can retry it', async () => {
    let isBroken = true;
    record('flight', () => ({ seat: '12A' }));
    record('car', () => 'red');
    record('hotel', fail);
    record('unflight');
    record('uncar', () => (isBroken ? fail() : 'given back'));
    const error = await failureOf(
      tool.chain(
        [
          {
            target_agent: 'flight',
            task: 'Book.',
            compensate: { target_agent: 'unflight', task: 'Give back.' },
          },
          { target_agent: 'car', task: 'Book.', compensate: { target_agent: 'uncar', task: 'Give back.' } },
          { target_agent: 'hotel', task: 'Book.' },
        ],
        desk,
      ),
    );
    expect(error.details.phase).toBe('compensation_failed');
    const id = String(error.details.handoff_id);
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'compensation_failed', status: 'failed' });
    expect(await failureOf(tool.retryCompensation(id))).toMatchObject({ code: 'platform_failed' });
    expect(await tool.getHandoff(id)).toMatchObject({ phase: 'compensation_failed' });
    isBroken = false;
    expect(await tool.retryCompensation(id)).toMatchObject({ phase: 'rolled_back', status: 'failed' });
    expect(calls.map(([name]) => name)).toEqual([
      'flight',
      'car',
      'hotel',
      'uncar',
      'unflight',
      'uncar',
      'uncar',
    ]);
    expect((await tool.getEvents(id)).at(-1)).toMatchObject({ event_type: 'handoff.rolled_back' });
    expect(await failureOf(tool.retryCompensation(id))).toMatchObject({ code: 'conflict' });
    expect(calls).toHaveLength(7);
  });

  test('that is canceled ends with its hop, and nothing is compensated', async () => {
    record('flight');
    record('unflight');
    tool.registerAgent(
      'slow',
      (_input, { signal }) =>
        new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
    );
    const { handoff_id } = await tool.chain(
      [
        { target_agent: 'flight', task: 'x', compensate: { target_agent: 'unflight', task: 'y' } },
        { target_agent: 'slow', task: 'x' },
      ],
      { ...desk, wait: false },
    );
    await waitFor(
      async () => (await below(handoff_id)).some(({ phase, hop }) => hop === 2 && phase === 'in_progress'),
      {
        message: 'the second hop runs',
      },
    );
    const root = await tool.getHandoff(handoff_id);
    await h.runtime.submit('cancel', { turn_id: root?.turn_id ?? '', reason: 'enough' });
    expect(await tool.waitForHandoff(handoff_id)).toMatchObject({ phase: 'canceled', status: 'failed' });
    expect((await below(handoff_id)).map(({ phase }) => phase)).toEqual(['completed', 'canceled']);
    expect(calls.map(([name]) => name)).toEqual(['flight']);
    expect(await tool.retryCompensation(handoff_id)).toMatchObject({ phase: 'canceled' });
    expect(calls.map(([name]) => name)).toEqual(['flight', 'unflight']);
    await tool.retryCompensation(handoff_id);
    expect(calls).toHaveLength(2);
  });

  test('shows all its handoffs in one overview, including handoffs that a hop requests', async () => {
    record('leaf');
    tool.registerAgent('middle', async (_input, { handoff }) => {
      await handoff({ target_agent: 'leaf', task: 'z' });
      return 'done';
    });
    const { handoff_id } = await tool.chain([{ target_agent: 'middle', task: 'x' }], desk);
    const chain = await tool.getChain(handoff_id);
    expect(
      chain.map(({ target_agent, depth, root_handoff_id }) => [target_agent, depth, root_handoff_id]),
    ).toEqual([
      ['chain: middle', 0, handoff_id],
      ['middle', 1, handoff_id],
      ['leaf', 2, handoff_id],
    ]);
    expect(await tool.getChain(String(chain[2]?.handoff_id))).toEqual(chain);
    expect(await failureOf(tool.retryCompensation(handoff_id))).toMatchObject({ code: 'conflict' });
  });

  test('whose hop cannot be requested fails like the hop', async () => {
    record('one');
    const error = await failureOf(
      tool.chain(
        [
          { target_agent: 'one', task: 'x' },
          { target_agent: 'nobody', task: 'x' },
        ],
        desk,
      ),
    );
    expect(error.details).toMatchObject({ hop: 2, code: 'not_found', phase: 'failed' });
    expect(await tool.getHandoff(String(error.details.handoff_id))).toMatchObject({ phase: 'failed' });
  });

  test('is judged by the policy at each hop, and a person approves a hop that needs an approval', async () => {
    tool = new HandoffTool({
      runtime: h.runtime,
      permissionEvaluator: new PermissionEvaluator({
        text: "tools:\n  handoff: { permission: ALWAYS }\nrules:\n  - { condition: { context: { target_agent: guarded } }, permission: REQUIRE_APPROVAL }\n  - { condition: { context: { target_agent: 'external-*' } }, permission: NEVER }\n",
      }),
    });
    record('first');
    record('guarded');
    record('external-x');
    record('undo');
    const running = failureOf(
      tool.chain(
        [
          { target_agent: 'first', task: 'a', payload: 1, compensate: { target_agent: 'undo', task: 'u' } },
          { target_agent: 'guarded', task: 'b' },
          { target_agent: 'external-x', task: 'c' },
        ],
        desk,
      ),
    );
    const gate = new ApprovalGate({ runtime: h.runtime });
    const ticket = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
      message: 'a ticket',
    });
    expect(calls.map(([name]) => name)).toEqual(['first']);
    await gate.approve(ticket.ticket_id);
    expect(await running).toMatchObject({
      code: 'chain_failed',
      message: 'Hop 3 of 3 (external-x) failed: Handoff to external-x not allowed by policy',
      details: { phase: 'rolled_back', code: 'permission_denied' },
    });
    expect(calls.map(([name]) => name)).toEqual(['first', 'guarded', 'undo']);
  });

  test('with the same key is the same chain', async () => {
    record('one');
    const hops = [{ target_agent: 'one', task: 'x' }];
    const first = await tool.chain(hops, { ...desk, idempotency_key: 'k' });
    expect(await tool.chain(hops, { ...desk, idempotency_key: 'k' })).toEqual(first);
    expect(calls).toHaveLength(1);
  });

  test.each<[string, unknown, string]>([
    ['no hops', [], 'hops'],
    ['a hop without a target', [{ task: 'x' }], 'hops.0.target_agent'],
    ['an unknown member', [{ target_agent: 'a', task: 'x', undo: {} }], 'undo'],
    [
      'a hop that would undo a hop of another chain',
      [
        {
          target_agent: 'a',
          task: 'x',
          cache: { ttl_seconds: 60 },
          compensate: { target_agent: 'b', task: 'y' },
        },
      ],
      'hops.0.cache',
    ],
    [
      'a compensation without a task',
      [{ target_agent: 'a', task: 'x', compensate: { target_agent: 'b' } }],
      'compensate.task',
    ],
  ])('is refused for %s', async (_name, hops, words) => {
    const error = await failureOf(tool.chain(hops as never, desk));
    expect(error.code).toBe('bad_request');
    expect(error.message).toContain(words);
    expect(await h.rows('select from boxcar.handoffs')).toEqual([]);
  });

  test('passes on results of any length', async () => {
    // Each result is larger than the prompt of a model may be.
    record('big', () => 'x'.repeat(900_000));
    const hops = [1, 2, 3].map((n) => ({ target_agent: 'big', task: `Part ${n}.` }));
    expect(await tool.chain(hops, desk)).toMatchObject({ status: 'completed' });
    expect(calls).toHaveLength(3);
  });

  test('leaves the budget to its hops', async () => {
    // The prompt of a model is paid for before it is sent. The model of a chain is free.
    await h.rows(
      `update boxcar.projects set limits = '{"run_budget": {"tokens": 20000}}' where name = 'default'`,
    );
    record('big', () => 'x'.repeat(100_000));
    const hops = [1, 2, 3].map((n) => ({ target_agent: 'big', task: `Part ${n}.` }));
    expect(await tool.chain(hops, desk)).toMatchObject({ status: 'completed' });
  });

  test('undoes a hop once when a person retries a compensation that another person is already retrying', async () => {
    let isBroken = true;
    let go = (): void => undefined;
    const gone = new Promise<void>((settle) => {
      go = settle;
    });
    record('flight');
    record('hotel', fail);
    tool.registerAgent('unflight', async () => {
      if (isBroken) fail();
      calls.push(['unflight', null, null]);
      await gone;
      return 'given back';
    });
    const error = await failureOf(
      tool.chain(
        [
          {
            target_agent: 'flight',
            task: 'Book.',
            compensate: { target_agent: 'unflight', task: 'Give back.' },
          },
          { target_agent: 'hotel', task: 'Book.' },
        ],
        desk,
      ),
    );
    const id = String(error.details.handoff_id);
    isBroken = false;
    const first = tool.retryCompensation(id);
    await waitFor(() => Promise.resolve(calls.length === 3), { message: 'the compensation runs' });
    const stop = new AbortController();
    const second = tool.retryCompensation(id);
    const left = failureOf(tool.retryCompensation(id, { signal: stop.signal }));
    await h.rows('select pg_sleep(0.5)');
    stop.abort(new KernelError('bad_request', { message: 'enough' }));
    await left;
    go();
    expect(await Promise.all([first, second])).toMatchObject([
      { phase: 'rolled_back' },
      { phase: 'rolled_back' },
    ]);
    expect(calls.map(([name]) => name)).toEqual(['flight', 'hotel', 'unflight']);
    expect((await below(id)).filter(({ mode }) => mode === 'compensate')).toHaveLength(2);
  });

  test('passes a key in the context of a hop to its target, and has hops of its own', async () => {
    let go = (): void => undefined;
    const gone = new Promise<void>((settle) => {
      go = settle;
    });
    tool.registerAgent('one', async (_input, { context }) => {
      calls.push(['one', context.idempotency_key ?? null, null]);
      await gone;
      return 'done';
    });
    record('two');
    const hops = [
      { target_agent: 'one', task: 'x', context: { idempotency_key: 'k' } },
      { target_agent: 'two', task: 'y' },
    ];
    const both = [tool.chain(hops, desk), tool.chain(hops, desk)];
    await waitFor(() => Promise.resolve(calls.length >= 2), { message: 'the first hop of both runs' });
    go();
    expect(await Promise.all(both)).toMatchObject([{ result: 'done' }, { result: 'done' }]);
    expect(calls.map(([name, input]) => [name, input])).toEqual([
      ['one', 'k'],
      ['one', 'k'],
      ['two', 'done'],
      ['two', 'done'],
    ]);
  });

  test('passes on nothing in place of an erased result', async () => {
    record('flight', () => ({ booking: 7 }));
    record('unflight');
    record('after');
    tool.registerAgent('hotel', async () => {
      const [card] = await h.rows<{ id: string }>(
        'select t.deliverable_card_id as id from boxcar.handoffs h join boxcar.turns t on t.id = h.turn_id where h.hop = 1',
      );
      await h.rows("select boxcar.erase_cards(array[$1::uuid], 'asked for')", [card?.id]);
      return fail();
    });
    const error = await failureOf(
      tool.chain(
        [
          {
            target_agent: 'flight',
            task: 'Book.',
            compensate: { target_agent: 'unflight', task: 'Give back.' },
          },
          { target_agent: 'hotel', task: 'Book.' },
        ],
        desk,
      ),
    );
    // Without the result of the booking, the compensation has no input.
    expect(error.details.phase).toBe('compensation_failed');
    expect(calls.map(([name]) => name)).toEqual(['flight']);
    expect(await failureOf(tool.retryCompensation(String(error.details.handoff_id)))).toMatchObject({
      code: 'card_damaged',
      message: expect.stringContaining('The result of hop 1 was erased.'),
    });
  });

  test('has a tool that only chains can use', async () => {
    record('one');
    const { handoff_id } = await tool.chain([{ target_agent: 'one', task: 'x' }], desk);
    const { turn_id: parentTurnId } = (await tool.getHandoff(handoff_id)) ?? {};
    for (const options of [{}, { parentTurnId: String(parentTurnId) }]) {
      const { code, message } = await failureOf(h.runtime.submit('handoff_hop', { hop: 1 }, options));
      expect(code).toBe('unknown_primitive');
      expect(message).toMatch(/^No primitive 'handoff_hop'.* Known are .*handoff, handoff_chain, /);
      expect(message.match(/handoff_hop/g)).toHaveLength(1);
    }
    await h.profile('sly', [{ calls: [{ tool: 'handoff_hop', arguments: { hop: 1 } }] }, { say: 'tried' }], {
      tools: ['handoff_hop'],
    });
    await h.worker();
    await h.runtime.submit('launch_principal', { profile_name: 'sly', instruction: 'Go.', wait: true });
    expect(await h.rows('select from boxcar.handoffs')).toHaveLength(2);
  });
});
