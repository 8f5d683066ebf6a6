import type { JsonObject, ModelReply, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { findProjectByRef, setPrice } from '@boxcar/store';
import { inspectTurn, loadTree } from '@boxcar/store/report';
import { expect, test } from 'vitest';
import { type Harness, harness } from '../../testing/harness.js';
import { checkInvariants } from '../../testing/invariants.js';

const reply: ModelReply = {
  text: 'done',
  toolCalls: [],
  usage: { inputTokens: 1_000, outputTokens: 10 },
  finishReason: 'stop',
};

async function place(): Promise<Harness> {
  const h = await harness({
    model: createModelRouter({ adapters: { mine: { generate: () => Promise.resolve(reply) } } }),
  });
  await h.runtime.applyProfile({ name: 'asker', instructions: 'You ask.', model: 'mine:any' });
  await h.worker();
  return h;
}
const launch = async (h: Harness, rest: JsonObject = {}, parentTurnId?: TurnId): Promise<TurnId> => {
  const receipt = await h.runtime.submit(
    parentTurnId === undefined ? 'launch_principal' : 'delegate_async',
    parentTurnId === undefined
      ? { profile_name: 'asker', instruction: 'go', ...rest }
      : { target_strategy: 'new', target_ref: 'asker', instruction: 'go', ...rest },
    parentTurnId === undefined ? {} : { parentTurnId },
  );
  return (receipt as { turn_id: TurnId }).turn_id;
};
const end = (h: Harness, turnId: TurnId) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
const LIMITED = { budget: { cost_usd: 5 } };
const price = async (h: Harness, of: Parameters<typeof setPrice>[2]['price']) =>
  setPrice(h.database.pool, (await findProjectByRef(h.database.pool, 'default')).id, {
    model: 'mine:any',
    price: of,
  });

test('a limit of cost is refused for a model without a price: for a run, for a child, and within a limit', async () => {
  await using h = await place();
  const refused = { code: 'price_unknown', details: { model: 'mine:any' } };
  await expect(launch(h, LIMITED)).rejects.toMatchObject(refused);
  expect(await h.rows('select from boxcar.turns')).toEqual([]);
  // A parent with another model, which no worker serves.
  await h.profile('boss', [{ say: 'never' }], { worker_target: 'nowhere' });
  const boss = async (rest: JsonObject) => {
    const receipt = await h.runtime.submit('launch_principal', {
      profile_name: 'boss',
      instruction: 'go',
      ...rest,
    });
    return (receipt as { turn_id: TurnId }).turn_id;
  };
  await expect(launch(h, LIMITED, await boss({}))).rejects.toMatchObject(refused);
  await expect(launch(h, {}, await boss(LIMITED))).rejects.toMatchObject(refused);
  // Without a cost limit there is nothing to count.
  expect(await end(h, await launch(h, { budget: { tokens: 1_000_000 } }))).toMatchObject({
    status: 'success',
  });
  await checkInvariants(h.database.pool, { isSettled: false });
});

test('a new price is used at once, also by workers that had no price', async () => {
  await using h = await place();
  expect(await end(h, await launch(h))).toMatchObject({ status: 'success' });
  await price(h, { input: 2_000_000, output: 10_000_000 });
  const turnId = await launch(h, LIMITED);
  expect(await end(h, turnId)).toMatchObject({ status: 'success' });
  const { spent } = await inspectTurn(h.database.pool, turnId, { project: 'default' });
  expect(spent).toMatchObject({ cost_micros: 2_100, unpriced_steps: 0, free_steps: 0 });
  expect(await h.rows('select spent_cost::int as cost from boxcar.turns where id = $1', [turnId])).toEqual([
    { cost: 2_100 },
  ]);
  await price(h, null);
  await expect(launch(h, LIMITED)).rejects.toMatchObject({ code: 'price_unknown' });
});

test('a model with a price of zero costs nothing, and its receipt says so', async () => {
  await using h = await place();
  await price(h, { input: 0, output: 0 });
  const turnId = await launch(h, LIMITED);
  expect(await end(h, turnId)).toMatchObject({ status: 'success' });
  const { spent } = await inspectTurn(h.database.pool, turnId, { project: 'default' });
  expect(spent).toMatchObject({ cost_micros: 0, free_steps: 1, unpriced_steps: 0, input_tokens: 1_000 });
  // The tree reports the same for each turn, for its subtree, and in total.
  const tree = await loadTree(h.database.pool, [turnId]);
  const free = { cost_micros: 0, free_steps: 1, unpriced_steps: 0 };
  expect(tree).toMatchObject({ totals: { steps: 1, ...free }, nodes: [{ ...free, subtree: free }] });
});

test('a scripted model needs no price', async () => {
  await using h = await place();
  await h.profile('actor', [{ say: 'done' }]);
  const receipt = await h.runtime.submit('launch_principal', {
    profile_name: 'actor',
    instruction: 'go',
    ...LIMITED,
  });
  expect(await end(h, (receipt as { turn_id: TurnId }).turn_id)).toMatchObject({ status: 'success' });
});

test('a worker without a price does not call the model when the cost is limited', async () => {
  await using h = await place();
  await price(h, { input: 1, output: 1 });
  await h.runtime.applyProfile({
    name: 'asker',
    instructions: 'You ask.',
    model: 'mine:any',
    worker_target: 'later',
  });
  const turnId = await launch(h, LIMITED);
  await price(h, null);
  await h.worker({ targets: ['later'] });
  expect(await end(h, turnId)).toMatchObject({ status: 'failed', error: { code: 'price_unknown' } });
  expect(await h.rows('select from boxcar.steps where usage is not null')).toEqual([]);
});
