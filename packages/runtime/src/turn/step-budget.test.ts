import type { JsonValue, ModelReply } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { TurnResult } from '../queue/turn-result.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

let h: Harness;

const usage = (inputTokens: number, outputTokens = 0) => ({ inputTokens, outputTokens });
const say = (text: string, tokens = 10) => ({ say: text, usage: usage(tokens) });
const note = (n: number, tokens = 100) => ({
  calls: [{ tool: 'note', arguments: { n } }],
  usage: usage(tokens),
});
const ask = (target: string, rest: Record<string, JsonValue> = {}) => ({
  tool: 'delegate_async',
  arguments: {
    target_strategy: 'new',
    target_ref: target,
    instruction: 'go',
    wait: true,
    ...rest,
  } satisfies Record<string, JsonValue>,
});
const SMALL = { model_settings: { max_output_tokens: 100 } };
const BOSS = { ...SMALL, tools: ['delegate_async'], delegation_policy: { target_profiles: null } };

beforeAll(async () => {
  h = await harness();
  h.runtime.registerTool({
    name: 'note',
    description: 'Notes a number.',
    input: z.strictObject({ n: z.number() }),
    isReadOnly: true,
    run: ({ n }) => ({ n }),
  });
  await h.profile('writer', [say('written')], SMALL);
  await h.profile('worker', [note(1), note(2), note(3), say('done')], { ...SMALL, tools: ['note'] });
  await h.worker();
});
afterAll(() => h[Symbol.asyncDispose]());

interface Launched {
  readonly turnId: string;
  readonly runId: string;
}

async function launch(profile: string, budget?: object): Promise<Launched> {
  const receipt = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
    ...(budget === undefined ? {} : { budget }),
  })) as unknown as TurnResult;
  const [row] = await h.rows<{ run_id: string }>('select run_id from boxcar.turns where id = $1', [
    receipt.turn_id,
  ]);
  return { turnId: receipt.turn_id, runId: row?.run_id ?? '' };
}
const end = (turnId: string): Promise<TurnResult> => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const count = async (table: string): Promise<number> =>
  (await h.rows<{ n: number }>(`select count(*)::int as n from boxcar.${table}`))[0]?.n ?? -1;
const check = () => checkInvariants(h.database.pool, { isSettled: false });

describe('a run with a budget', () => {
  it('ends normally while the budget lasts, and reports its usage', async () => {
    const { turnId } = await launch('worker', { tokens: 5_000, steps: 10 });
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'done' });
    expect(
      await h.rows(
        'select spent_tokens::int, is_settled, budget_id = run_id as is_run from boxcar.turns where id = $1',
        [turnId],
      ),
    ).toEqual([{ spent_tokens: 310, is_settled: false, is_run: true }]);
    await check();
  });

  it('ends as partial with its partial result when its steps are used up', async () => {
    const { turnId } = await launch('worker', { steps: 2 });
    const result = await end(turnId);
    expect(result).toMatchObject({ status: 'partial', error: { code: 'budget_exceeded' } });
    expect(result.error?.details).toMatchObject({ limit: 'steps', limit_value: 2, left: 0 });
    expect(result.result).toMatchObject({ error: { code: 'budget_exceeded' }, steps: 2 });
    await check();
  });

  it('keeps the last text of a turn whose tokens are used up', async () => {
    await h.profile('talker', [{ ...note(1, 900), say: 'half way' }, say('never')], {
      ...SMALL,
      tools: ['note'],
    });
    const { turnId } = await launch('talker', { tokens: 1_000 });
    expect(await end(turnId)).toMatchObject({
      status: 'partial',
      result: { last_text: 'half way', steps: 1 },
      error: { code: 'budget_exceeded', details: { limit: 'tokens' } },
    });
    await check();
  });

  it('that cannot pay the first step is refused, and nothing is written', async () => {
    const before = await Promise.all(['turns', 'runs', 'budgets', 'boxes', 'agents'].map(count));
    await expect(launch('writer', { tokens: 50 })).rejects.toMatchObject({
      code: 'budget_exceeded',
      details: { field: 'arguments.budget.tokens', limit: 'tokens', limit_value: 50 },
    });
    expect(await Promise.all(['turns', 'runs', 'budgets', 'boxes', 'agents'].map(count))).toEqual(before);
  });

  it.each([
    [{}, 'budget'],
    [{ tokens: 0 }, 'budget.tokens'],
    [{ cost_usd: -1 }, 'budget.cost_usd'],
    [{ turns: 1.5 }, 'budget.turns'],
    [{ seconds: 0 }, 'budget.seconds'],
    [{ euros: 3 }, 'budget'],
  ])('refuses %j as a budget', async (budget, path) => {
    await expect(launch('writer', budget)).rejects.toMatchObject({
      code: 'bad_request',
      message: expect.stringContaining(`arguments.${path}`),
    });
  });

  it('uses the project’s budget when the caller gives none', async () => {
    await h.rows(`update boxcar.projects set limits = '{"run_budget": {"steps": 1}}' where name = 'default'`);
    try {
      expect(await end((await launch('worker')).turnId)).toMatchObject({ status: 'partial' });
      expect(await end((await launch('worker', { steps: 9 })).turnId)).toMatchObject({ status: 'success' });
    } finally {
      await h.rows(`update boxcar.projects set limits = '{}' where name = 'default'`);
    }
    await check();
  });

  it('counts costs by the price of the model, and nothing for a model without a price', async () => {
    await h.rows(
      `update boxcar.projects set limits = '{"prices": {"scripted": {"input": 1000000, "output": 5000000}}}' where name = 'default'`,
    );
    try {
      await h.profile('dear', [note(1, 600), note(2, 600), say('never')], { ...SMALL, tools: ['note'] });
      const { turnId } = await launch('dear', { cost_usd: 0.001_5 });
      expect(await end(turnId)).toMatchObject({
        status: 'partial',
        error: { code: 'budget_exceeded', details: { limit: 'cost_usd', limit_value: 0.0015 } },
      });
      expect(
        await h.rows(
          `select (usage->>'cost_micros')::int as cost from boxcar.steps where turn_id = $1 and step = 1`,
          [turnId],
        ),
      ).toEqual([{ cost: 600 }]);
    } finally {
      await h.rows(`update boxcar.projects set limits = '{}' where name = 'default'`);
    }
    await check();
  });

  it('is checked in memory while the allotment lasts: a step takes no additional statement', async () => {
    const free = await launchCounted(undefined);
    const capped = await launchCounted({ turns: 5 });
    expect(capped).toBe(free);
  });

  async function launchCounted(budget: object | undefined): Promise<number> {
    // Reads that happen once per worker have been done.
    await end((await launch('worker')).turnId);
    const { turnId } = await launch('worker', budget);
    const seen = await statementsOf(h.database, () => end(turnId));
    const ofBudgets = /budgets|boxcar\.runs\s+where|is_settled = true/;
    // The sweep checks pauses in its own single statement.
    return seen.filter((text) => ofBudgets.test(text) && !text.includes('as lost_rings')).length;
  }
});

it('the token limit of a profile ends its turn as partial, without any account', async () => {
  await h.profile('thrifty', [note(1, 700), say('never')], {
    ...SMALL,
    tools: ['note'],
    limits: { tokens: 800 },
  });
  const { turnId } = await launch('thrifty');
  expect(await end(turnId)).toMatchObject({
    status: 'partial',
    error: {
      code: 'budget_exceeded',
      message: expect.stringContaining('limits.tokens of the profile'),
      details: { limit: 'tokens', limit_value: 800, budget_id: turnId },
    },
  });
  expect(
    await h.rows('select budget_id, spent_tokens::int from boxcar.turns where id = $1', [turnId]),
  ).toEqual([{ budget_id: null, spent_tokens: 700 }]);
});

describe('within a budget', () => {
  it('a spawn that finds no turn left is refused as a result, and nothing of it stays', async () => {
    await h.profile('boss', [{ calls: [ask('writer')], usage: usage(10) }, say('went on')], BOSS);
    const { turnId, runId } = await launch('boss', { turns: 1 });
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'went on' });
    expect(await count(`turns where run_id = '${runId}'`)).toBe(1);
    const [call] = await h.rows<{ error: { code: string; details: object } }>(
      `select c.content->'error' as error from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1`,
      [turnId],
    );
    expect(call?.error).toMatchObject({
      code: 'budget_exceeded',
      details: { limit: 'turns', limit_value: 1, left: 0, budget_id: runId },
    });
    await check();
  });

  it.each([
    [{ depth: 1 }, 'depth'],
    [{ fan_out: 1 }, 'fan_out'],
  ])('%j limits the shape of the tree', async (budget, limit) => {
    const calls =
      limit === 'depth' ? [ask('writer')] : [ask('writer'), ask('writer', { instruction: 'too' })];
    await h.profile('shaper', [{ calls, usage: usage(10) }, say('went on')], BOSS);
    const { turnId, runId } = await launch('shaper', budget);
    expect(await end(turnId)).toMatchObject({ status: 'success' });
    expect(await count(`turns where run_id = '${runId}'`)).toBe(limit === 'depth' ? 1 : 2);
    expect(
      await h.rows(
        `select c.content->'error'->'details'->>'limit' as limit from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id
         where k.turn_id = $1 and k.status = 'failed'`,
        [turnId],
      ),
    ).toEqual([{ limit }]);
    await check();
  });

  it('a child’s own budget counts together with the run’s, and the smaller budget limits the child', async () => {
    const child = ask('worker', { budget: { steps: 2 } });
    await h.profile('giver', [{ calls: [child], usage: usage(10) }, say('done')], BOSS);
    const { turnId, runId } = await launch('giver', { steps: 20, tokens: 50_000 });
    expect(await end(turnId)).toMatchObject({ status: 'success' });
    const accounts = await h.rows<{ id: string; parent_id: string | null }>(
      'select id, parent_id from boxcar.budgets where run_id = $1 order by top_depth',
      [runId],
    );
    const [row] = await h.rows<{ id: string; status: string; error: { details: object } }>(
      'select id, status, error from boxcar.turns where run_id = $1 and depth = 1',
      [runId],
    );
    expect(accounts).toEqual([
      { id: runId, parent_id: null },
      { id: row?.id, parent_id: runId },
    ]);
    expect(row).toMatchObject({
      status: 'partial',
      error: { details: { budget_id: row?.id, limit: 'steps' } },
    });
    await check();
  });

  it('the amount that an ended child leaves can be used again', async () => {
    // Each child is given 3,000 and uses 310: three times 3,000 exceeds the account.
    const capped = { ...SMALL, tools: ['note'], limits: { tokens: 3_000 } };
    await h.profile('capped', [note(1), note(2), note(3), say('done')], capped);
    const step = (n: number) => ({ calls: [ask('capped', { instruction: `part ${n}` })], usage: usage(10) });
    await h.profile('serial', [step(1), step(2), step(3), say('all done')], BOSS);
    const { turnId, runId } = await launch('serial', { tokens: 7_000 });
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'all done' });
    expect(await h.rows('select status from boxcar.turns where run_id = $1 and depth = 1', [runId])).toEqual(
      Array(3).fill({ status: 'success' }),
    );
    await check();
  });
});

describe('a turn whose profile says pause', () => {
  it('waits without a worker when the budget is used up, and continues when the budget is raised', async () => {
    await h.profile('patient', [note(1), note(2), note(3), say('done')], {
      ...SMALL,
      tools: ['note'],
      limits: { on_budget: 'pause' },
    });
    const { turnId, runId } = await launch('patient', { steps: 2 });
    await waitFor(async () => (await count(`waits where turn_id = '${turnId}'`)) === 1, {
      message: 'the turn waits',
    });
    expect(
      await h.rows('select status, holder_id, step_count, attempt from boxcar.turns where id = $1', [turnId]),
    ).toEqual([{ status: 'suspended', holder_id: null, step_count: 2, attempt: 0 }]);
    await check();

    const raise = (budget: object) => h.runtime.submit('raise_budget', { target: runId, budget });
    await expect(raise({ steps: 2 })).rejects.toMatchObject({ code: 'bad_request' });
    await expect(raise({ tokens: 9 })).rejects.toMatchObject({ code: 'bad_request' });
    await expect(raise({ seconds: 9 })).rejects.toMatchObject({ code: 'bad_request' });
    expect(await raise({ steps: 9 })).toMatchObject({ budget_id: runId, woken_turn_ids: [turnId] });
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'done' });
    expect(await count(`waits where turn_id = '${turnId}'`)).toBe(0);
    // The pause is not an attempt whose answer was lost.
    expect(await h.rows('select spent_tokens::int from boxcar.turns where id = $1', [turnId])).toEqual([
      { spent_tokens: 310 },
    ]);
    await check();
  });

  it('continues without a raise when other turns of its run have left enough', async () => {
    const gate: (() => void)[] = [];
    h.runtime.registerTool({
      name: 'hold',
      description: 'Waits.',
      input: z.looseObject({}),
      isReadOnly: true,
      run: () => new Promise((resolve) => void gate.push(() => resolve('held'))),
    });
    const LARGE = { model_settings: { max_output_tokens: 1_000 } };
    const hold = { calls: [{ tool: 'hold', arguments: {} }], usage: usage(10) };
    await h.profile('holder', [hold, say('held')], { ...LARGE, tools: ['hold'] });
    await h.profile('waiter', [note(1, 1_000), say('done')], {
      ...LARGE,
      tools: ['note'],
      limits: { on_budget: 'pause' },
    });
    const task = (target_ref: string) => ({ target_strategy: 'new', target_ref, instruction: 'go' });
    const answer = h.runtime.submit('fork_join', {
      tasks: [task('waiter'), task('holder'), task('holder')],
      budget: { tokens: 3_600 },
    });
    await waitFor(async () => (await count("waits where kind = 'budget'")) === 1 && gate.length === 2, {
      message: 'the first waits for the others',
    });
    const [waiter] = await h.rows<{ run_id: string }>(
      "select t.run_id from boxcar.waits w join boxcar.turns t on t.id = w.turn_id where w.kind = 'budget'",
    );
    for (const open of gate) open();
    const ended = `turns where run_id = '${waiter?.run_id}' and status = 'success'`;
    await waitFor(async () => (await count(ended)) >= 2, { message: 'the others have ended' });
    // The sweep does not touch a pause for five seconds.
    await h.rows(
      "update boxcar.budgets set paused_at = paused_at - interval '6 seconds' where paused_at is not null",
    );
    expect(await answer).toMatchObject({
      status: 'success',
      results: [{ summary: 'done' }, { summary: 'held' }, { summary: 'held' }],
    });
    await check();
  });

  it('is still ended by its deadline, together with its wait', async () => {
    const receipt = (await h.runtime.submit('launch_principal', {
      profile_name: 'patient',
      instruction: 'go',
      deadline_seconds: 3_600,
      budget: { steps: 1 },
    })) as unknown as TurnResult;
    const id = receipt.turn_id;
    await waitFor(async () => (await count(`waits where turn_id = '${id}'`)) === 1, { message: 'it waits' });
    await h.rows(`update boxcar.turns set deadline_at = now() where id = $1`, [id]);
    expect(await end(id)).toMatchObject({ status: 'timeout', error: { code: 'deadline_exceeded' } });
    expect(await count(`waits where turn_id = '${id}'`)).toBe(0);
    await check();
  });

  it('cannot get a raise from agents that work under it', async () => {
    const call = { tool: 'raise_budget', arguments: { target: 'my own', budget: { steps: 99 } } };
    await h.profile('greedy', [{ calls: [call], usage: usage(1) }, say('well')], {
      ...SMALL,
      tools: ['raise_budget'],
    });
    const { turnId } = await launch('greedy', { steps: 5 });
    await end(turnId);
    expect(
      await h.rows(
        `select c.content->'error'->>'code' as code from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1`,
        [turnId],
      ),
    ).toEqual([{ code: 'delegation_denied' }]);
  });
});

describe('the time limit of a budget', () => {
  it('ends all turns under way as partial, in every status', async () => {
    await h.profile('slow', [{ ...say('late'), delayMs: 60_000 }], SMALL);
    await h.profile('nobodys', [say('never')], { ...SMALL, worker_target: 'nowhere' });
    await h.profile(
      'waits',
      [{ calls: [ask('nobodys', { deadline_seconds: 3_000 })], usage: usage(1) }],
      BOSS,
    );
    const turns = await Promise.all(['slow', 'nobodys', 'waits'].map((name) => launch(name, { seconds: 1 })));
    for (const { turnId, runId } of turns) {
      expect(await end(turnId)).toMatchObject({
        status: 'partial',
        error: { code: 'budget_exceeded', details: { limit: 'seconds' } },
      });
      // No turn has a later deadline than its account.
      expect(
        await h.rows(
          'select count(*)::int as n from boxcar.turns t join boxcar.budgets b on b.id = t.budget_id where t.run_id = $1 and t.deadline_at > b.deadline_at',
          [runId],
        ),
      ).toEqual([{ n: 0 }]);
    }
    await check();
  });
});

it('an attempt whose answer was lost is charged once with its reservation', async () => {
  const scripted = createModelRouter({});
  let lost = 0;
  await using other = await harness({
    model: {
      generate: async (request, options): Promise<ModelReply> => {
        if (request.turn.attempt > 1) return scripted.generate(request, options);
        lost += 1;
        return new Promise<never>((_resolve, reject) => {
          options.signal.addEventListener('abort', () => reject(options.signal.reason), { once: true });
        });
      },
    },
  });
  await other.profile('writer', [say('written')], SMALL);
  const first = await other.worker();
  const receipt = (await other.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'go',
    budget: { tokens: 5_000 },
  })) as unknown as TurnResult;
  await waitFor(async () => lost === 1, { message: 'the model was asked' });
  await first.close({ graceMs: 0 });
  await other.worker();
  expect(await other.runtime.waitForTurn(receipt.turn_id, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
  });
  expect(lost).toBe(1);
  const attempts = await other.rows<{ tokens: number; lost: boolean | null }>(
    `select (usage->>'input_tokens')::int + (usage->>'output_tokens')::int as tokens, (usage->'lost')::boolean as lost from boxcar.steps where turn_id = $1 order by attempt`,
    [receipt.turn_id],
  );
  expect(attempts).toEqual([
    { tokens: expect.any(Number), lost: true },
    { tokens: 10, lost: null },
  ]);
  expect(attempts[0]?.tokens).toBeGreaterThan(100);
  expect(await other.rows('select spent_tokens::int as n from boxcar.turns')).toEqual([
    { n: (attempts[0]?.tokens ?? 0) + 10 },
  ]);
});
