import { KernelError, type Model, ModelError } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { ask, requestOf } from './fixtures/requests.js';
import { createModelRouter } from './router.js';
import { createScriptedModel } from './scripted.js';

const named = (text: string): Model => createScriptedModel({ functions: { name: () => ({ text }) } });

/** An adapter whose prefix is served by a function of another model. */
const served = (text: string): Model => ({
  generate: (request, options) => named(text).generate({ ...request, model: 'scripted:name' }, options),
});

describe('the router', () => {
  const router = createModelRouter({
    scripted: { functions: { name: () => ({ text: 'scripted' }) } },
    adapters: { openai: served('openai'), 'openai-compatible': served('compatible') },
  });

  it.each([
    ['scripted:name', 'scripted'],
    ['openai:gpt', 'openai'],
    ['openai:gpt:2', 'openai'],
    ['openai-compatible:local', 'compatible'],
  ])('%s is served by %s', async (model, text) => {
    await expect(ask(router, requestOf({ model }))).resolves.toMatchObject({ text });
  });

  it('serves scripts without any option', async () => {
    await expect(ask(createModelRouter(), requestOf({ script: [{ say: 'hello' }] }))).resolves.toMatchObject({
      text: 'hello',
    });
  });

  it('an unknown prefix is model_unknown with the list of known ones', async () => {
    for (const model of ['gemini:x', 'open', '', ':x', 'constructor:x']) {
      const failure: unknown = await ask(router, requestOf({ model })).catch((error: unknown) => error);
      expect(failure).toBeInstanceOf(ModelError);
      expect(failure).toMatchObject({
        code: 'model_unknown',
        canRetry: false,
        message: expect.stringContaining(
          `'${model}'; known prefixes are scripted, openai, anthropic, openai-compatible, openai-chat, google, mistral, deepseek`,
        ),
      });
    }
  });

  it('additions on the wire are unknown for an unknown prefix, and empty for an adapter that adds nothing', () => {
    const prompt = { messages: [], tools: [] };
    expect(router.describeWire?.('gemini:x', prompt)).toBeNull();
    expect(router.describeWire?.('scripted', prompt)).toEqual([]);
  });

  it('needs no key to apply a profile of a provider', () => {
    const bare = createModelRouter();
    for (const model of ['openai:gpt-x', 'anthropic:claude-x', 'openai-compatible:local:7b'])
      expect(() => bare.checkProfile?.({ model })).not.toThrow();
  });

  it('lets the adapter check a profile, and accepts it when the adapter checks nothing', () => {
    expect(() => router.checkProfile?.({ model: 'openai:gpt' })).not.toThrow();
    expect(() => router.checkProfile?.({ model: 'scripted', script: [{ say: 'x' }] })).not.toThrow();
    const failures: [{ model: string; script?: readonly [{ say: string }] }, string][] = [
      [{ model: 'scripted', script: [{ say: '{{x}}' }] }, 'script.0.say: '],
      [{ model: 'scripted:nope' }, "model: no scripted model 'scripted:nope'"],
      [{ model: 'anthropic:' }, "model: 'anthropic:' names no model; write anthropic:<model>"],
      [{ model: 'anthropic' }, "model: 'anthropic' names no model; write anthropic:<model>"],
      [{ model: 'gemini:x' }, "model: no adapter serves 'gemini:x'; known prefixes are scripted, openai"],
    ];
    for (const [profile, message] of failures) {
      expect(() => router.checkProfile?.(profile)).toThrow(KernelError);
      expect(() => router.checkProfile?.(profile)).toThrow(message);
      expect(() => router.checkProfile?.(profile)).toThrow(
        expect.objectContaining({ code: 'profile_invalid' }),
      );
    }
  });
});
