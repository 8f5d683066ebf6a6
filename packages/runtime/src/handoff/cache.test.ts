/** Results of identical handoffs. */
import { type JsonValue, KernelError } from '@boxcar/kernel';
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
let runs: JsonValue[];

beforeEach(async () => {
  h = await harness({ connections: 8 });
  tool = new HandoffTool({ runtime: h.runtime });
  runs = [];
  tool.registerAgent('clerk', (input) => {
    runs.push(input);
    return { n: runs.length };
  });
});
afterEach(async () => {
  await checkInvariants(h.database.pool, { isSettled: false });
  await checkWire(h.runtime);
  await h[Symbol.asyncDispose]();
});

const cache = { ttl_seconds: 60 };
const ask = (rest: object = {}) =>
  tool.handoff({ source_agent: 'main', target_agent: 'clerk', task: 'x', payload: 1, cache, ...rest });

describe('an identical handoff', () => {
  test('has the result of the first handoff, and a row of its own', async () => {
    const first = await ask();
    const second = await ask({ source_agent: 'other', run_id: 'r' });
    expect(second).toEqual({ handoff_id: expect.any(String), status: 'completed', result: { n: 1 } });
    expect(second.handoff_id).not.toBe(first.handoff_id);
    expect(await tool.getHandoff(second.handoff_id)).toMatchObject({
      phase: 'completed',
      source_agent: 'other',
      cached: true,
      cached_from: first.handoff_id,
      result: { n: 1 },
      attempts: 0,
    });
    expect(await tool.getHandoff(first.handoff_id)).toMatchObject({ cached: false, cached_from: null });
    expect((await tool.getEvents(second.handoff_id)).map(({ event_type }) => event_type)).toEqual([
      'handoff.requested',
      'handoff.cached',
      'handoff.completed',
    ]);
    expect(runs).toHaveLength(1);
    expect(await h.rows('select from boxcar.turns')).toHaveLength(1);
  });

  test.each<[string, object]>([
    ['another task', { task: 'y' }],
    ['another payload', { payload: 2 }],
    ['another context', { context: { a: 1 } }],
    ['another target', { target_agent: 'second' }],
    ['no cache', { cache: undefined }],
  ])('does not include a request with %s', async (_name, rest) => {
    tool.registerAgent('second', () => {
      runs.push('second');
      return null;
    });
    await ask();
    await ask(rest);
    expect(runs).toHaveLength(2);
  });

  test('is carried out when the result is too old, was erased, failed, or was itself from the cache', async () => {
    const first = await ask();
    await ask();
    // The handoff that was answered from the cache is young, and does not count.
    await h.rows(
      `update boxcar.turns set created_at = created_at - interval '2 minutes', ended_at = ended_at - interval '2 minutes'`,
    );
    await h.rows(
      `update boxcar.handoffs set created_at = created_at - interval '2 minutes', ended_at = ended_at - interval '2 minutes' where id = $1`,
      [first.handoff_id],
    );
    await ask();
    expect(runs).toHaveLength(2);
    const cards = await h.rows<{ id: string }>('select deliverable_card_id as id from boxcar.turns');
    await h.rows("select boxcar.erase_cards($1::uuid[], 'asked for')", [cards.map(({ id }) => id)]);
    await ask();
    expect(runs).toHaveLength(3);
    tool.registerAgent('broken', () => {
      runs.push('broken');
      throw new KernelError('platform_failed');
    });
    await failureOf(ask({ target_agent: 'broken' }));
    await failureOf(ask({ target_agent: 'broken' }));
    expect(runs).toHaveLength(5);
  });

  test('is carried out once when it is requested twenty times at once', async () => {
    let go = (): void => undefined;
    const gone = new Promise<void>((settle) => {
      go = settle;
    });
    tool.registerAgent('slow', async () => {
      runs.push('slow');
      await gone;
      return 'done';
    });
    const all = Array.from({ length: 20 }, () => ask({ target_agent: 'slow' }));
    await waitFor(
      async () => (await h.rows("select from boxcar.turns where status = 'running'")).length >= 10,
      {
        message: 'several wait for the one that leads',
      },
    );
    go();
    const results = await Promise.all(all);
    expect(new Set(results.map(({ result }) => result))).toEqual(new Set(['done']));
    expect(runs).toEqual(['slow']);
    const { handoffs } = await tool.listHandoffs();
    expect(handoffs.filter(({ cached }) => cached)).toHaveLength(19);
  });

  test('is carried out by another request when the leading request fails or is canceled', async () => {
    tool.registerAgent('slow', async (_input, { signal }) => {
      runs.push('slow');
      if (runs.length > 1) return 'second';
      await new Promise((_settle, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
      return 'first';
    });
    const first = await ask({ target_agent: 'slow', wait: false });
    await waitFor(() => Promise.resolve(runs.length === 1), { message: 'the first one runs' });
    const second = ask({ target_agent: 'slow' });
    await waitFor(
      async () => (await h.rows("select from boxcar.turns where status = 'running'")).length === 2,
      {
        message: 'the second one waits',
      },
    );
    const { turn_id } = (await tool.getHandoff(first.handoff_id)) ?? {};
    await h.runtime.submit('cancel', { turn_id, reason: 'enough' });
    expect(await second).toMatchObject({ result: 'second' });
    expect(await tool.waitForHandoff(first.handoff_id)).toMatchObject({ phase: 'canceled' });
  });

  test('is carried out once when it is requested by several parts', async () => {
    tool.registerAgent('slow', async () => {
      runs.push('slow');
      await h.rows('select pg_sleep(0.3)');
      return 'done';
    });
    tool.registerAgent('boss', async (_input, { handoff }) => {
      const parts = Array.from({ length: 5 }, () => handoff({ target_agent: 'slow', task: 'x', cache }));
      return (await Promise.all(parts)).map(({ result }) => result);
    });
    const { result } = await ask({ target_agent: 'boss', cache: undefined });
    expect(result).toEqual(Array(5).fill('done'));
    expect(runs).toEqual(['slow']);
  });

  test('in parts of two leading handoffs never makes the parts wait for each other', async () => {
    let ready = 0;
    const both = new Promise<void>((settle) => {
      const look = setInterval(() => {
        if (ready < 2) return;
        clearInterval(look);
        settle();
      }, 5);
    });
    for (const [name, other] of [
      ['left', 'right'],
      ['right', 'left'],
    ] as const)
      tool.registerAgent(name, async (input, { handoff }) => {
        if (input === 'part') return name;
        ready += 1;
        await both;
        const { result } = await handoff({ target_agent: other, task: 'x', payload: 'part', cache });
        return `${name} ${result}`;
      });
    // The parts of each handoff are identical to the parts that the other one requests at the same time.
    const results = await Promise.all([
      ask({ target_agent: 'left', payload: 'whole' }),
      ask({ target_agent: 'right', payload: 'whole' }),
    ]);
    expect(results.map(({ result }) => result)).toEqual(['left right', 'right left']);
  });
});

test('a model’s call gets the cached result at once, and an agent of this installation is cached, too', async () => {
  await h.profile('writer', [{ say: 'A text.' }]);
  await h.worker();
  const first = await ask({ target_agent: 'writer' });
  const second = await ask({ target_agent: 'writer' });
  expect([first.result, second.result]).toEqual(['A text.', 'A text.']);
  expect(await tool.getHandoff(second.handoff_id)).toMatchObject({ cached_from: first.handoff_id });
  // Another version of the profile is another target.
  await h.profile('writer', [{ say: 'Another text.' }]);
  expect(await ask({ target_agent: 'writer' })).toMatchObject({ result: 'Another text.' });
});

test('the policy is still evaluated, and a request that needs an approval waits for it', async () => {
  const of = (permission: string) =>
    new HandoffTool({
      runtime: h.runtime,
      permissionEvaluator: new PermissionEvaluator({
        text: `tools:\n  handoff: { permission: ${permission} }\n`,
        environment: 'production',
      }),
    });
  await ask();
  tool = of('NEVER');
  expect(await failureOf(ask())).toMatchObject({ code: 'permission_denied' });
  tool = of('REQUIRE_APPROVAL');
  const { handoff_id, ticket_id } = await ask({ wait: false });
  expect(ticket_id).toEqual(expect.any(String));
  await new ApprovalGate({ runtime: h.runtime }).approve(String(ticket_id));
  expect(await tool.waitForHandoff(handoff_id)).toMatchObject({ cached: true, result: { n: 1 } });
  expect(runs).toHaveLength(1);
});

test.each([0, -1, 1.5, '60', null])('a cache time of %j is refused', async (ttl_seconds) => {
  expect(await failureOf(ask({ cache: { ttl_seconds } }))).toMatchObject({ code: 'bad_request' });
});
