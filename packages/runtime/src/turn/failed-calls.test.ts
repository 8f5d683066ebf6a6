/** The cost of failed calls, and the output limit with which calls are sent. */
import { type JsonObject, providerOf } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import {
  anthropicWire,
  type Behaviour,
  chatWire,
  inOrder,
  openProviderServer,
  type ProviderServer,
  SERVER_KEY,
} from '@boxcar/llm/testing';
import { expect, test } from 'vitest';
import type { TurnResult } from '../queue/turn-result.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';

interface Place extends AsyncDisposable {
  readonly h: Harness;
  readonly server: ProviderServer;
  /** Ends a turn of `asker`. */
  run(budget?: JsonObject): Promise<TurnResult>;
}

async function place(
  behaviours: readonly Behaviour[],
  profile: {
    readonly model?: string;
    readonly limits?: JsonObject;
    readonly model_settings?: JsonObject;
  } = {},
): Promise<Place> {
  const { model = 'openai-compatible:model-1', limits = {}, model_settings = {} } = profile;
  const wire = providerOf(model) === 'anthropic' ? anthropicWire : chatWire;
  const server = await openProviderServer(wire, inOrder(...behaviours));
  const settings = { apiKey: SERVER_KEY, baseUrl: server.baseUrl };
  const h = await harness({
    model: createModelRouter({ providers: { anthropic: settings, openaiCompatible: settings } }),
    prices: { [model]: { input: 1_000_000, output: 10_000_000 } },
  });
  await h.runtime.applyProfile({
    name: 'asker',
    instructions: 'You ask.',
    model,
    model_settings,
    limits: { retry_base_seconds: 0.01, retry_max_seconds: 0.05, ...limits },
  });
  await h.worker();
  return {
    h,
    server,
    run: async (budget) => {
      const receipt = await h.runtime.submit('launch_principal', {
        profile_name: 'asker',
        instruction: 'go',
        ...(budget === undefined ? {} : { budget }),
      });
      const { turn_id: turnId } = receipt as unknown as TurnResult;
      return h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
    },
    [Symbol.asyncDispose]: async () => {
      await checkInvariants(h.database.pool);
      await h[Symbol.asyncDispose]();
      await server[Symbol.asyncDispose]();
    },
  };
}

interface StepRow extends Record<string, unknown> {
  readonly attempt: number;
  readonly usage: JsonObject | null;
}
const stepsOf = (h: Harness) => h.rows<StepRow>('select attempt, usage from boxcar.steps order by attempt');
const spent = async (h: Harness) =>
  (
    await h.rows<{ tokens: number; cost: number }>(
      'select spent_tokens::int as tokens, spent_cost::int as cost from boxcar.turns',
    )
  )[0];

const BUDGET = { tokens: 10_000_000, cost_usd: 500 };

test('a refusal is charged with the usage that the provider reported', async () => {
  await using p = await place([
    { answer: { text: '', finish: 'content_filter', usage: { input: 90_000, output: 5 } } },
  ]);
  expect(await p.run(BUDGET)).toMatchObject({ status: 'failed', error: { code: 'model_refused' } });
  expect(await stepsOf(p.h)).toMatchObject([
    { usage: { input_tokens: 90_000, output_tokens: 5, cost_micros: 90_050 } },
  ]);
  expect(await spent(p.h)).toEqual({ tokens: 90_005, cost: 90_050 });
});

test('each stream that is cut is charged with the usage up to the cut', async () => {
  const text = 'All of it. '.repeat(10_000);
  const cut: Behaviour = { answer: { text, usage: null }, frames: 2, after: 'destroy' };
  await using p = await place([
    cut,
    cut,
    cut,
    { answer: { text: 'done', usage: { input: 100, output: 10 } } },
  ]);
  expect(await p.run(BUDGET)).toMatchObject({ status: 'success' });
  const steps = await stepsOf(p.h);
  expect(steps).toHaveLength(4);
  const ofCuts = steps.slice(0, 3).map(({ usage }) => Number(usage?.output_tokens));
  for (const tokens of ofCuts) expect(tokens).toBeGreaterThanOrEqual(text.length / 12);
  const sum = steps.reduce(
    (all, { usage }) => all + Number(usage?.input_tokens) + Number(usage?.output_tokens),
    0,
  );
  expect((await spent(p.h))?.tokens).toBe(sum);
});

test('a failed call is also in the receipt of a turn without a budget', async () => {
  await using p = await place([
    { answer: { text: '', finish: 'content_filter', usage: { input: 90_000, output: 5 } } },
  ]);
  expect(await p.run()).toMatchObject({ status: 'failed' });
  expect(await stepsOf(p.h)).toMatchObject([{ usage: { input_tokens: 90_000, cost_micros: 90_050 } }]);
});

test('a call that took too long is charged once with everything that it may have used', async () => {
  await using p = await place([{ hang: true }], {
    limits: { model_timeout_seconds: 0.2, model_retries: 1 },
    model_settings: { max_output_tokens: 700 },
  });
  expect(await p.run(BUDGET)).toMatchObject({ status: 'timeout', error: { code: 'model_timeout' } });
  const steps = await stepsOf(p.h);
  expect(steps).toHaveLength(2);
  for (const { usage } of steps)
    expect(usage).toMatchObject({ output_tokens: 700, estimated: true, lost: true });
  const sum = steps.reduce(
    (all, { usage }) => all + Number(usage?.input_tokens) + Number(usage?.output_tokens),
    0,
  );
  expect((await spent(p.h))?.tokens).toBe(sum);
});

test('a call that the provider refused costs nothing', async () => {
  await using p = await place([{ status: 400, error: { message: 'no' } }]);
  expect(await p.run(BUDGET)).toMatchObject({ status: 'failed' });
  expect(await stepsOf(p.h)).toEqual([{ attempt: 1, usage: null }]);
  expect(await spent(p.h)).toEqual({ tokens: 0, cost: 0 });
});

test('a prompt that was too long is charged with the reported usage, before it is shortened', async () => {
  const error = { message: 'maximum context length is 100 tokens', code: 'context_length_exceeded' };
  const body = JSON.stringify({ error, usage: { prompt_tokens: 50_000, completion_tokens: 0 } });
  await using p = await place([{ status: 400, body, headers: { 'content-type': 'application/json' } }]);
  expect(await p.run(BUDGET)).toMatchObject({ status: 'failed', error: { code: 'context_overflow' } });
  expect(await spent(p.h)).toEqual({ tokens: 50_000, cost: 50_000 });
});

interface Sent {
  readonly max_tokens?: number;
}

test.each([
  ['16,384 tokens when nothing else limits them', 'openai-compatible:model-1', {}, {}, 16_384],
  ['the limit of the profile', 'openai-compatible:model-1', {}, { max_output_tokens: 64_000 }, 64_000],
  ['an eighth of a small window', 'openai-compatible:model-1', { context_tokens: 32_000 }, {}, 4_000],
  ['the model’s own limit', 'anthropic:claude-3-haiku-20240307', {}, {}, 4_096],
  ['16,384 tokens for an unknown model', 'anthropic:claude-next', {}, {}, 16_384],
])(
  'a call is sent the output limit that is reserved for it: %s',
  async (_, model, limits, model_settings, tokens) => {
    await using p = await place([{ answer: { text: 'done' } }], { model, limits, model_settings });
    expect(await p.run(BUDGET)).toMatchObject({ status: 'success' });
    expect(p.server.refusals).toEqual([]);
    expect(p.server.requests.map(({ body }) => (body as Sent).max_tokens)).toEqual([tokens]);
    const [turn] = await p.h.rows<{ tokens: number }>(
      'select allotted_tokens::int as tokens from boxcar.turns',
    );
    expect((turn?.tokens ?? 0) - tokens).toBeGreaterThan(0);
    expect((turn?.tokens ?? 0) - tokens).toBeLessThan(1_000);
  },
);
