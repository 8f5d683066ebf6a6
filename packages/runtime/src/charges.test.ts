/** What accounts hold after calls that used more, or less, than was reserved for them. */
import type { JsonObject, ModelReply, ModelRequest, PriceTable, TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { expect, test } from 'vitest';
import { type Harness, harness } from './testing/harness.js';
import { checkInvariants } from './testing/invariants.js';

const reply = (usage: ModelReply['usage']): ModelReply => ({
  text: 'done',
  toolCalls: [],
  usage,
  finishReason: 'stop',
});

/** Profiles `paid` and `free`, whose models answer as they are told, and `boss`, which nobody works on. */
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

test('a turn that has used more than the limit leaves nothing to the next one', async () => {
  await using h = await place(() => Promise.resolve(reply({ inputTokens: 9_000_000, outputTokens: 10 })));
  const boss = await launch(h, 'boss', { budget: { cost_usd: 5 } });
  expect(await end(h, await launch(h, 'paid', {}, boss))).toMatchObject({ status: 'success' });
  await expect(launch(h, 'paid', {}, boss)).rejects.toMatchObject({
    code: 'budget_exceeded',
    details: { limit: 'cost_usd', left: 0 },
  });
  await checkInvariants(h.database.pool, { isSettled: false });
});
