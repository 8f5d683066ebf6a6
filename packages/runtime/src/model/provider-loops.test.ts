/** Agents with tools on every provider, over HTTP. The test servers refuse the same requests as the real servers. */
import type { TurnId } from '@boxcar/kernel';
import { anthropicWire, type Behave, inOrder, responsesWire, WIRES, type Wire } from '@boxcar/llm/testing';
import { describe, expect, test } from 'vitest';
import { TurnPrompts } from '../explain/turn-prompts.js';
import { checkPrompts } from '../testing/check-prompts.js';
import { checkInvariants } from '../testing/invariants.js';
import { LOOP, loop, providerStage, THINKING_MODELS, THOUGHTS } from '../testing/provider-stage.js';

const wires = WIRES.map((wire) => [wire.provider, wire] as const);
/** OpenAI's chat completions show no reasoning. */
const thinking = wires.filter(([provider]) => provider !== 'openai-chat');

const explain = async (pool: Parameters<typeof TurnPrompts.load>[0], turnId: TurnId, step: number) =>
  (await TurnPrompts.load(pool, turnId, { project: 'default', allSteps: true })).explain({ step });

describe.each(wires)('%s', (provider, wire) => {
  test.each([true, false])(
    'completes a loop over tools (streamed: %s), and gets its attached data back',
    async (stream) => {
      await using stage = await providerStage(wire);
      const { h, server } = stage;
      await stage.profile('looker', THINKING_MODELS[provider], { model_settings: { stream } });
      const turnId = await stage.play('looker');
      expect(await h.runtime.getTurn(turnId)).toMatchObject({ status: 'success', result: 'I have looked.' });
      expect(server.refusals).toEqual([]);
      expect(server.requests).toHaveLength(3);
      const ids = LOOP.flatMap(({ calls = [] }) => calls.map(({ id }) => id));
      for (const id of ids) expect(stage.sent(2)).toContain(id);
      const shown = provider === 'openai-chat' ? [] : THOUGHTS.slice(0, 2);
      for (const thought of shown) expect(stage.sent(2).split(thought)).toHaveLength(2);
      await checkInvariants(h.database.pool);
      await checkPrompts(h.database.pool);
    },
  );

  test('gets the same bytes when a worker that has only the rows tries the step again', async () => {
    let isDown = false;
    const behave: Behave = (request, index) => {
      isDown = !isDown && index > 0;
      return isDown ? { status: 503, error: { message: 'Overloaded' } } : loop(request, index);
    };
    await using stage = await providerStage(wire, { behave });
    const { h, server } = stage;
    await stage.profile('looker', THINKING_MODELS[provider], {
      limits: { model_retries: 5, retry_base_seconds: 0.01, retry_max_seconds: 0.02 },
    });
    const turnId = await stage.play('looker');
    expect(await h.runtime.getTurn(turnId)).toMatchObject({ status: 'success' });
    expect(server.refusals).toEqual([]);
    expect(server.requests).toHaveLength(5);
    expect(stage.sent(2)).toBe(stage.sent(1));
    expect(stage.sent(4)).toBe(stage.sent(3));
  });
});

test.each([
  ['streamed', true, [undefined, undefined]],
  ['in one piece', false, [undefined, undefined]],
  ['together with shown thinking', true, ['I see.', 'I still see.']],
] as const)('redacted thinking of Anthropic is sent back unchanged (%s)', async (_, stream, [one, two]) => {
  const hidden = ['nobody reads this', 'nor this'];
  const call = (id: string, at: string) => ({ id, name: 'look', arguments: JSON.stringify({ at }) });
  const shown = (reasoning: string | undefined) => (reasoning === undefined ? {} : { reasoning });
  await using stage = await providerStage(anthropicWire, {
    behave: inOrder(
      {
        answer: {
          redacted: hidden[0] ?? '',
          ...shown(one),
          calls: [call('toolu_1', 'src'), call('toolu_2', 'docs')],
        },
      },
      {
        answer: {
          redacted: hidden[1] ?? '',
          ...shown(two),
          text: 'One more.',
          calls: [call('toolu_3', 'bench')],
        },
      },
      { answer: { text: 'I have looked.' } },
    ),
  });
  await stage.profile('looker', THINKING_MODELS.anthropic, { model_settings: { stream } });
  const turnId = await stage.play('looker');
  expect(stage.server.refusals).toEqual([]);
  expect(await stage.h.runtime.getTurn(turnId)).toMatchObject({
    status: 'success',
    result: 'I have looked.',
  });
  const blocks = stage.sent(2).match(/"redacted_thinking","data":"sealed-[0-9a-f]+"/g);
  expect(new Set(blocks).size).toBe(2);
  await checkInvariants(stage.h.database.pool);
  await checkPrompts(stage.h.database.pool);
});

test.each(wires.filter(([provider]) => ['openai-compatible', 'deepseek'].includes(provider)))(
  '%s: a long id from a gateway that contains a signature is sent back whole, together with the reasoning',
  async (provider, wire) => {
    // https://docs.litellm.ai/blog/gemini_3
    const id = `call_1__thought__${'Zm9v'.repeat(200)}`;
    const behave: Behave = (_request, index) =>
      index === 0
        ? {
            answer: {
              reasoning: THOUGHTS[0] ?? '',
              calls: [{ id, name: 'look', arguments: '{"at":"src"}' }],
            },
          }
        : { answer: { text: 'I have looked.' } };
    await using stage = await providerStage(wire, { behave });
    await stage.profile('looker', THINKING_MODELS[provider]);
    await stage.play('looker');
    expect(stage.server.refusals).toEqual([]);
    expect(stage.sent(1)).toContain(THOUGHTS[0]);
    expect(stage.sent(1).split(id)).toHaveLength(3);
  },
);

/** The API's answer when the SDK does not recognize a reasoning model by its name: no request asks for the encrypted content. */
const unsealedWire: Wire = {
  ...responsesWire,
  events: (answer) =>
    responsesWire.events(answer).map((frame) => frame.replaceAll(/"encrypted_content":"[^"]*",/g, '')),
};

test('openai: when reasoning arrives without its encrypted content, the rest is sent without its ids', async () => {
  await using stage = await providerStage(unsealedWire);
  await stage.profile('looker', 'openai:ft:o4-mini-2025-04-16:org::x');
  const turnId = await stage.play('looker');
  expect(stage.server.refusals).toEqual([]);
  expect(await stage.h.runtime.getTurn(turnId)).toMatchObject({ status: 'success' });
  expect(stage.sent(2)).not.toContain('msg_');
  expect(stage.sent(2)).toContain('aaaaaaaa1');
});

test.each(thinking)(
  '%s: attached data is shown by no reader; explain says what kind of data it is',
  async (provider, wire) => {
    await using stage = await providerStage(wire);
    const { h } = stage;
    await stage.profile('looker', THINKING_MODELS[provider]);
    const turnId = await stage.play('looker');
    const explained = await explain(h.database.pool, turnId, 3);
    const attached = explained.messages.flatMap(({ provider_data: data }) => data ?? []);
    expect(attached).toHaveLength(2);
    for (const { model, kinds, size_bytes: bytes, hash } of attached) {
      expect(model).toBe(THINKING_MODELS[provider]);
      expect(kinds).toContain('call_id');
      expect(bytes).toBeGreaterThan(50);
      expect(hash).toMatch(/^[0-9a-f]{64}$/);
    }
    expect(attached[0]?.hash).not.toBe(attached[1]?.hash);
    // The tokens of the attachment count: the message has more tokens than a quarter of the attachment's bytes.
    const [first] = explained.messages.filter(({ provider_data: data }) => data !== undefined);
    expect(first?.tokens).toBeGreaterThan((attached[0]?.size_bytes ?? 0) / 4);
    const [agent] = await h.rows<{ id: string }>('select agent_id as id from boxcar.turns');
    const tape = await h.runtime.tape({ agent: agent?.id ?? '' });
    const lines: string[] = [];
    for await (const line of tape.export()) lines.push(line);
    const shown = JSON.stringify([
      explained,
      await tape.messages(),
      await tape.search('attached'),
      await tape.search('sealed'),
      lines,
    ]);
    expect(shown).toContain('I look twice.');
    for (const thought of THOUGHTS) expect(shown).not.toContain(thought);
    expect(shown).not.toContain('sealed-');
  },
);
