import type { JsonValue } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;
let runs: string[] = [];
const answers: unknown[] = [];

const tool = (name: string, run: (input: { q: number }) => unknown, rest: object = {}): void =>
  h.runtime.registerTool({
    name,
    description: name,
    input: z.strictObject({ q: z.number() }),
    isReadOnly: true,
    run: (input: { q: number }) => {
      runs.push(`${name} ${input.q}`);
      return run(input);
    },
    ...rest,
  });
const call = (name: string, q = 1) => ({ calls: [{ tool: name, arguments: { q } }] });

beforeAll(async () => {
  h = await harness();
  tool('look', ({ q }) => ({ q, found: 'the same' }));
  tool('poll', () => 'pending', { repeatable: true });
  tool('write', ({ q }) => ({ written: q }));
  tool('flaky', () => {
    throw new Error('try again');
  });
  tool('luck', () => {
    const next = answers.shift();
    if (next instanceof Error) throw next;
    return next;
  });
  await h.worker();
});
afterAll(() => h[Symbol.asyncDispose]());

const TOOLS = ['look', 'poll', 'write', 'flaky', 'luck', 'delegate_async', 'fork_join'];

/** Runs a script to its end and returns the outcome of each call in order. */
async function outcomesOf(name: string, script: readonly JsonValue[], rest: object = {}): Promise<string[]> {
  runs = [];
  await h.profile(name, [...script, { say: 'done' }], {
    tools: TOOLS,
    delegation_policy: { target_profiles: null },
    ...rest,
  });
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: name,
    instruction: 'go',
  })) as unknown as TurnResult;
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  return callsOf(turn_id);
}

async function callsOf(turnId: string): Promise<string[]> {
  const rows = await h.rows<{ what: string }>(
    `select coalesce(c.content->'error'->>'code', k.status) as what from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
     where k.turn_id = $1 order by k.step, k.ordinal`,
    [turnId],
  );
  return rows.map((row) => row.what);
}

it('the same call without any new information is stopped before it runs, and the error names the earlier call', async () => {
  expect(await outcomesOf('again', [call('look'), call('look'), call('look')])).toEqual([
    'success',
    'loop_detected',
    'loop_detected',
  ]);
  expect(runs).toEqual(['look 1']);
  const [row] = await h.rows<{ error: object; first: string }>(
    `select c.content->'error' as error, (select f.id from boxcar.tool_calls f where f.turn_id = k.turn_id and f.step = 1) as first
     from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.step = 2 and k.name = 'look'`,
  );
  expect(row?.error).toMatchObject({
    code: 'loop_detected',
    details: { tool: 'look', step: 1, tool_call_id: row?.first },
  });
  await checkInvariants(h.database.pool);
});

it('with other arguments, or after new information from another call, it is another call', async () => {
  expect(
    await outcomesOf('works', [
      call('look'),
      call('look', 2),
      call('write'),
      call('look'),
      call('write', 2),
      call('look'),
    ]),
  ).toEqual(Array(6).fill('success'));
});

it('two calls that answer each other alternately are a loop of two', async () => {
  expect(
    await outcomesOf('pair', [call('look'), call('write'), call('look'), call('write'), call('look')]),
  ).toEqual(['success', 'success', 'success', 'loop_detected', 'loop_detected']);
});

it('a tool that is declared repeatable is polled as often as requested, and so is a tool that the profile names', async () => {
  expect(await outcomesOf('poller', [call('poll'), call('poll'), call('poll')])).toEqual(
    Array(3).fill('success'),
  );
  expect(
    await outcomesOf('watcher', [call('look'), call('look'), call('look')], { repeatable: ['look'] }),
  ).toEqual(Array(3).fill('success'));
});

it('a failed call can be tried again; the same failure a second time is not new information', async () => {
  expect(await outcomesOf('stubborn', [call('flaky'), call('flaky'), call('flaky')])).toEqual([
    'tool_failed',
    'tool_failed',
    'loop_detected',
  ]);
  answers.splice(0, answers.length, new Error('busy'), new Error('still busy'), 'there');
  expect(await outcomesOf('lucky', [call('luck'), call('luck'), call('luck')])).toEqual([
    'tool_failed',
    'tool_failed',
    'success',
  ]);
});

it('a failed delegation and a failed fork_join can also be tried again', async () => {
  await h.profile('broken', [{ fail: { status: 400, message: 'no' } }]);
  const task = { target_strategy: 'new', target_ref: 'broken', instruction: 'solve it' };
  const ask = { calls: [{ tool: 'delegate_async', arguments: { ...task, wait: true } }] };
  expect(await outcomesOf('asker', [ask, ask, ask])).toEqual(['success', 'success', 'loop_detected']);
  const fork = { calls: [{ tool: 'fork_join', arguments: { tasks: [task, task] } }] };
  expect(await outcomesOf('forker', [fork, fork, fork])).toEqual(['success', 'success', 'loop_detected']);
});

it('calls of one message are made together, and none is a repetition of another', async () => {
  const twice = { calls: [...call('look').calls, ...call('look').calls] };
  expect(await outcomesOf('twin', [twice])).toEqual(['success', 'success']);
});

it('a delegation that goes round in a circle is stopped where it would begin again', async () => {
  const ask = (target: string) => ({
    calls: [
      {
        tool: 'delegate_async',
        arguments: { target_strategy: 'new', target_ref: target, instruction: 'solve it', wait: true },
      },
    ],
  });
  const rest = { tools: TOOLS, delegation_policy: { target_profiles: null } };
  await h.profile('ping', [ask('pong'), { say: 'ping is done' }], rest);
  await h.profile('pong', [ask('ping'), { say: 'pong is done' }], rest);
  const { turn_id } = (await h.runtime.submit('launch_principal', {
    profile_name: 'ping',
    instruction: 'solve it',
  })) as unknown as TurnResult;
  expect(await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  const turns = await h.rows<{ id: string; depth: number }>(
    'select t.id, t.depth from boxcar.turns t join boxcar.turns r on r.run_id = t.run_id where r.id = $1 order by t.depth',
    [turn_id],
  );
  expect(turns.map(({ depth }) => depth)).toEqual([0, 1, 2]);
  expect(await callsOf(turns[2]?.id ?? '')).toEqual(['loop_detected']);
  const [row] = await h.rows<{ details: object }>(
    `select c.content->'error'->'details' as details from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1`,
    [turns[2]?.id],
  );
  expect(row?.details).toMatchObject({ tool: 'delegate_async', turn_id, step: 1 });
  await checkInvariants(h.database.pool);
});

it('a loop is also recognized by a worker that takes the turn over', async () => {
  const rest = { tools: TOOLS, delegation_policy: { target_profiles: null } };
  await h.profile('helper', [{ say: 'helped' }], rest);
  const wait = {
    calls: [
      {
        tool: 'delegate_async',
        arguments: { target_strategy: 'new', target_ref: 'helper', instruction: 'help', wait: true },
      },
    ],
  };
  // The wait hands the turn back, and the worker that resumes it has only the rows.
  expect(await outcomesOf('resumed', [wait, call('look'), wait, call('look')])).toEqual([
    'success',
    'success',
    'success',
    'loop_detected',
  ]);
});

it('the loop guard costs a turn from outside no statement', async () => {
  const seen = await statementsOf(h.database, () => outcomesOf('free', [call('look'), call('look', 2)]));
  expect(seen.filter((text) => text.includes('guard_hash = any'))).toEqual([]);
});
