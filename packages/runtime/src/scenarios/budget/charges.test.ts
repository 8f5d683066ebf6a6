/** The accounts after calls that used more, or less, than was reserved for them. */
import type { JsonObject, ModelReply, ModelRequest, PriceTable, RunId, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { findProjectByRef, loadBudgets, setPrice, settleEnded, transaction } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

const reply = (usage: ModelReply['usage']): ModelReply => ({
  text: 'done',
  toolCalls: [],
  usage,
  finishReason: 'stop',
});

/** Profiles `paid` and `free`, whose models give the configured answers, and `boss`, which no worker serves. */
async function place(
  answer: (request: ModelRequest) => Promise<ModelReply>,
  prices: PriceTable = { 'mine:paid': { input: 1_000_000, output: 1_000_000 } },
): Promise<Harness> {
  const model = createModelRouter({ adapters: { mine: { generate: answer } } });
  const h = await harness({ model, prices: { 'mine:free': { input: 0, output: 0 }, ...prices } });
  await h.profile('boss', [{ say: 'never' }], { worker_target: 'nowhere' });
  for (const name of ['paid', 'free'])
    await h.runtime.applyProfile({
      name,
      instructions: 'You ask.',
      model: `mine:${name}`,
      model_settings: { max_output_tokens: 500 },
    });
  await h.worker();
  return h;
}

async function launch(
  h: Harness,
  name: string,
  rest: JsonObject = {},
  parentTurnId?: TurnId,
): Promise<TurnId> {
  const receipt = await (parentTurnId === undefined
    ? h.runtime.submit('launch_principal', { profile_name: name, instruction: 'go', ...rest })
    : h.runtime.submit(
        'delegate_async',
        { target_strategy: 'new', target_ref: name, instruction: 'go', ...rest },
        { parentTurnId },
      ));
  return (receipt as { turn_id: TurnId }).turn_id;
}
const end = (h: Harness, turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });

test('a turn that has used more than the limit leaves nothing to the next turn', async () => {
  await using h = await place(() => Promise.resolve(reply({ inputTokens: 9_000_000, outputTokens: 10 })));
  const boss = await launch(h, 'boss', { budget: { cost_usd: 5 } });
  expect(await end(h, await launch(h, 'paid', {}, boss))).toMatchObject({ status: 'success' });
  await expect(launch(h, 'paid', {}, boss)).rejects.toMatchObject({
    code: 'budget_exceeded',
    details: { limit: 'cost_usd', left: 0 },
  });
  await checkInvariants(h.database.pool, { isSettled: false });
});

test('a call whose model is free continues within an exceeded limit of cost', async () => {
  await using h = await place(({ model }) =>
    Promise.resolve(reply({ inputTokens: model === 'mine:paid' ? 9_000_000 : 7, outputTokens: 10 })),
  );
  const boss = await launch(h, 'boss', { budget: { cost_usd: 5, tokens: 20_000_000 } });
  expect(await end(h, await launch(h, 'paid', {}, boss))).toMatchObject({ status: 'success' });
  expect(await end(h, await launch(h, 'free', {}, boss))).toMatchObject({ status: 'success' });
  await checkInvariants(h.database.pool, { isSettled: false });
});

const DEAR: PriceTable = {
  'mine:paid': { input: 1_000_000, output: 1_000_000, cache_write: 100_000_000, reasoning: 3_000_000 },
};
const costs = (h: Harness) =>
  h.rows<{ allotted: number; spent: number }>(
    'select allotted_cost::int as allotted, spent_cost::int as spent from boxcar.turns',
  );

test('a call reserves the cost of a prompt that is written to the cache and an answer that is reasoning', async () => {
  await using h = await place(
    () =>
      Promise.resolve(
        reply({ inputTokens: 20, cacheWriteTokens: 20, outputTokens: 500, reasoningTokens: 500 }),
      ),
    DEAR,
  );
  expect(await end(h, await launch(h, 'paid', { budget: { cost_usd: 5 } }))).toMatchObject({
    status: 'success',
  });
  const [turn] = await costs(h);
  expect(turn?.spent).toBe(3_500);
  expect(turn?.allotted).toBeGreaterThanOrEqual(3_500);
});

test('a call that took too long is charged at the rates of its reservation', async () => {
  await using h = await place(() => new Promise(() => undefined), DEAR);
  await h.runtime.applyProfile({
    name: 'paid',
    instructions: 'You ask.',
    model: 'mine:paid',
    model_settings: { max_output_tokens: 500 },
    limits: { model_timeout_seconds: 0.05, model_retries: 0 },
  });
  expect(await end(h, await launch(h, 'paid', { budget: { cost_usd: 5 } }))).toMatchObject({
    status: 'timeout',
  });
  const [turn] = await costs(h);
  const [step] = await h.rows<{ input: number; cost: number }>(
    "select (usage->>'input_tokens')::int as input, (usage->>'cost_micros')::int as cost from boxcar.steps",
  );
  expect(step?.cost).toBe(100 * (step?.input ?? 0) + 3 * 500);
  expect(turn?.spent).toBe(step?.cost);
  expect(turn?.allotted).toBeGreaterThanOrEqual(turn?.spent ?? Number.NaN);
  await checkInvariants(h.database.pool);
});

/** The account of a turn's run, as it is shown now and as it is after the turn is settled. */
async function accountsOf(h: Harness, turnId: TurnId) {
  const { pool } = h.database;
  const [turn] = await h.rows<{ run_id: RunId }>('select run_id from boxcar.turns where id = $1', [turnId]);
  if (turn === undefined) throw new Error('no turn');
  const load = async () => (await loadBudgets(pool, turn.run_id))[0];
  const shown = await load();
  await transaction(pool, (tx) => settleEnded(tx, turn.run_id));
  return { shown, settled: await load() };
}

test('a turn that ends before its model is called costs nothing: without a price', async () => {
  await using h = await place(() => Promise.reject(new Error('it was asked')), {});
  const { id } = await findProjectByRef(h.database.pool, 'default');
  const model = 'mine:later';
  await setPrice(h.database.pool, id, { model, price: { input: 1_000_000, output: 1_000_000 } });
  const profile = { name: 'later', instructions: 'You ask.', model, worker_target: 'later' };
  await h.runtime.applyProfile(profile);
  const turnId = await launch(h, 'later', { budget: { cost_usd: 5, tokens: 1_000_000 } });
  await setPrice(h.database.pool, id, { model, price: null });
  await h.worker({ targets: ['later'] });
  expect(await end(h, turnId)).toMatchObject({ status: 'failed', error: { code: 'price_unknown' } });
  const { settled } = await accountsOf(h, turnId);
  expect(settled).toMatchObject({ tokens: 0, cost_micros: 0 });
  await checkInvariants(h.database.pool);
});

test('a turn that ends before its model is called costs nothing: with a prompt that is too long', async () => {
  await using h = await place(() => Promise.reject(new Error('it was asked')));
  await h.runtime.applyProfile({
    name: 'paid',
    instructions: 'You ask. '.repeat(4_000),
    model: 'mine:paid',
    limits: { context_tokens: 4_000 },
  });
  const turnId = await launch(h, 'paid', { budget: { tokens: 1_000_000 } });
  expect(await end(h, turnId)).toMatchObject({ status: 'failed', error: { code: 'context_overflow' } });
  const { settled } = await accountsOf(h, turnId);
  expect(settled).toMatchObject({ tokens: 0 });
  await checkInvariants(h.database.pool);
});

test('the account of a turn that was canceled during its call shows the kept amount, also before it is settled', async () => {
  let calls = 0;
  await using h = await place(() => {
    calls++;
    return new Promise(() => undefined);
  });
  const turnId = await launch(h, 'paid', { budget: { tokens: 1_000_000, cost_usd: 5 } });
  await waitFor(() => calls === 1, { message: 'the model is asked' });
  await h.runtime.submit('cancel', { turn_id: turnId });
  expect(await end(h, turnId)).toMatchObject({ status: 'canceled' });
  const { shown, settled } = await accountsOf(h, turnId);
  expect(settled?.tokens).toBeGreaterThan(500);
  expect(settled?.cost_micros).toBeGreaterThan(500);
  expect(shown).toEqual(settled);
  await checkInvariants(h.database.pool);
});
