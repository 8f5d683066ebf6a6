/**
 * Every history that the properties of the view generate is sent to every provider, with data that other models and this one attached to
 * its answers. There are hundreds of checks a second, and vitest's `expect` would cost more than the calls.
 */
import assert from 'node:assert/strict';
import { buildView, type ToolSchema } from '@boxcar/kernel';
import { historyPlan, play, READER_MODEL } from '@boxcar/kernel/testing';
import fc from 'fast-check';
import { describe, it } from 'vitest';
import { ask } from '../fixtures/requests.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { inOrder, openProviderServer } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';

const numRuns = process.env.CI ? 80 : 40;

const tools: readonly ToolSchema[] = ['list', 'read', 'tape.handoff', 'submit_result'].map((name) => ({
  name,
  description: name,
  parameters: { type: 'object' },
}));

/** For each provider, a model that is strict about attached data. */
const MODELS = { google: 'gemini-3-pro', openai: 'gpt-5', 'openai-chat': 'gpt-5' } as const;

describe.each(WIRES.map((wire) => [wire.provider, wire] as const))('%s', (provider, wire) => {
  it('accepts every prompt of every history', { timeout: 120_000 }, async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: { text: 'Well.' } }));
    const router = routerTo(wire, server.baseUrl);
    const model = provider in MODELS ? MODELS[provider as keyof typeof MODELS] : 'model-1';
    const { model: name, ...base } = askFor(wire, { model, tools });
    await fc.assert(
      fc.asyncProperty(historyPlan, async (plan) => {
        const { prompts } = play(plan);
        for (const rows of [prompts[0], prompts.at(-1)]) {
          if (rows === undefined) continue;
          assert.equal(rows.profile.model, READER_MODEL);
          await ask(router, { ...base, model: name, messages: buildView(rows).messages });
        }
        assert.deepEqual(server.refusals, []);
      }),
      { numRuns },
    );
    assert.ok(server.requests.some(({ body }) => JSON.stringify(body).includes('§')));
  });
});
