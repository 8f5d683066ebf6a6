import { type Model, ModelError } from '@boxcar/kernel';
import { createProviderModels } from './providers/providers.js';
import type { ModelSettings } from './providers/settings.js';
import { createScriptedModel, type ScriptedModelOptions, toProfileInvalid } from './scripted.js';
import { countAllTokens } from './tokenizer.js';

export interface ModelRouterOptions {
  readonly scripted?: ScriptedModelOptions | undefined;
  /** Keys and addresses of `openai`, `anthropic` and `openai-compatible`; a call reports a missing one. */
  readonly providers?: ModelSettings | undefined;
  /** More adapters by the prefix of their model names. They can replace the built-in adapters. */
  readonly adapters?: Readonly<Record<string, Model>> | undefined;
}

/**
 * One `Model` over several: the part of the profile's model name before the first `:` picks the adapter, which gets the request
 * unchanged. `scripted` and the providers are always there.
 *
 * @returns A `Model` that throws ModelError `model_unknown` for an unknown prefix. Its `checkProfile`
 * throws KernelError `profile_invalid` for an unknown prefix, and otherwise the error of the adapter's own check.
 */
export function createModelRouter({ scripted, providers, adapters = {} }: ModelRouterOptions = {}): Model {
  const models = new Map<string, Model>([
    ['scripted', createScriptedModel(scripted)],
    ...Object.entries(createProviderModels(providers)),
    ...Object.entries(adapters),
  ]);
  const findModel = (name: string): Model | undefined => models.get(name.split(':', 1)[0] ?? '');
  const explain = (name: string): string =>
    `no adapter serves '${name}'; known prefixes are ${[...models.keys()].join(', ')}`;

  return {
    async generate(request, options) {
      const model = findModel(request.model);
      if (model !== undefined) return model.generate(request, options);
      const { turnId, step } = request.turn;
      throw new ModelError('model_unknown', `Turn ${turnId}, step ${step}: ${explain(request.model)}.`, {
        details: { turnId, step, model: request.model, known: [...models.keys()] },
      });
    },

    countTokens: (texts, model) =>
      findModel(model)?.countTokens?.(texts, model) ?? countAllTokens(texts, model),

    checkTools: (model, tools) => findModel(model)?.checkTools?.(model, tools) ?? [],

    describeWire(name, prompt) {
      const model = findModel(name);
      if (model === undefined) return null;
      return model.describeWire === undefined ? [] : model.describeWire(name, prompt);
    },

    checkSettings: async (model, settings) =>
      (await findModel(model)?.checkSettings?.(model, settings)) ?? [],

    checkProfile(profile) {
      const model = findModel(profile.model);
      if (model !== undefined) return model.checkProfile?.(profile);
      throw toProfileInvalid('model', explain(profile.model));
    },
  };
}
