/**
 * A `Model` over one provider of the AI SDK. It uses only the SDK's providers: the kernel itself runs tools, parses their arguments and
 * retries.
 *
 * A1  One request, one HTTP call: no retry, no redirect, no repair.
 * A2  The caller's abort ends the call at once with its reason; a later answer has no effect.
 * A3  Every other failure is a ModelError, and none of its texts contains the key.
 */

import {
  checkDuration,
  type GenerateOptions,
  type Model,
  ModelError,
  type ModelReply,
  type ModelRequest,
} from '@boxcar/kernel';
import { raceAbort } from '../abort.js';
import { toProfileInvalid } from '../scripted.js';
import { checkSettings, toCallSettings } from './check-settings.js';
import { type Answer, collectContent, collectStream, refusalOf, toReply, usageOf } from './collect.js';
import { openExchange } from './exchange.js';
import { type Caller, explainFailure, shorten } from './explain-failure.js';
import { findUntold, toWirePrompt } from './prompt.js';
import type { Provider } from './provider.js';
import type { ProviderSettings } from './settings.js';
import { UsageMeter } from './usage.js';
import { untoldNotes } from './wire-notes.js';

const DEFAULT_IDLE_MS = 120_000;

const placeOf = ({ turn, model }: ModelRequest) => ({
  where: `Turn ${turn.turnId}, step ${turn.step}`,
  details: { turnId: turn.turnId, step: turn.step, model },
});

export function createProviderModel(
  provider: Provider,
  settings: ProviderSettings & { readonly idleTimeoutMs?: number | undefined } = {},
): Model {
  const { idleTimeoutMs = DEFAULT_IDLE_MS } = settings;
  checkDuration(idleTimeoutMs, 'idleTimeoutMs', { code: 'bad_config' });
  const modelIdOf = (model: string): string =>
    model.startsWith(`${provider.name}:`) ? model.slice(provider.name.length + 1).trim() : '';

  /** The configuration fault that prevents any call, as an error that names the variable or the profile's field. */
  function connect(request: ModelRequest): { readonly modelId: string; readonly caller: Caller } {
    const { where, details } = placeOf(request);
    const modelId = modelIdOf(request.model);
    if (modelId === '') {
      const message = `${where}: '${request.model}' names no model; write ${provider.name}:<model>.`;
      throw new ModelError('model_unknown', message, { details });
    }
    const baseUrl = settings.baseUrl ?? provider.defaultBaseUrl;
    if (baseUrl === undefined) {
      const variable = provider.baseUrlVariable;
      throw new ModelError(
        'bad_config',
        `${where}: ${provider.name} has no address: ${variable} is not set where this worker runs.`,
        { details: { ...details, variable } },
      );
    }
    if (provider.needsKey && (settings.apiKey ?? '') === '') {
      const variable = provider.keyVariable;
      throw new ModelError(
        'model_unauthorized',
        `${where}: ${provider.name} needs a key: ${variable} is not set where this worker runs.`,
        { details: { ...details, variable } },
      );
    }
    const { name, keyVariable, baseUrlVariable } = provider;
    const { apiKey } = settings;
    return {
      modelId,
      caller: { provider: name, keyVariable, baseUrlVariable, baseUrl, apiKey, details, where },
    };
  }

  async function ask(request: ModelRequest, { signal, onText }: GenerateOptions): Promise<ModelReply> {
    const { modelId, caller } = connect(request);
    const isStreaming = request.settings.stream !== false;
    const { options, ...words } = toWirePrompt(request, provider, modelId);
    const toSend = toCallSettings(request.settings, provider);
    const meter = new UsageMeter(provider.hidesRefusals === true);
    using exchange = openExchange({ signal, idleMs: idleTimeoutMs, isStreaming });
    let answer: Answer;
    try {
      const model = await provider.open({
        modelId,
        apiKey: settings.apiKey ?? '',
        baseUrl: caller.baseUrl,
        fetch: exchange.fetch,
      });
      const call = {
        ...options,
        ...toSend.settings,
        // The SDK's providers report usage only at the end, and some leave out refusals.
        includeRawChunks: true,
        abortSignal: exchange.signal,
      };
      answer = isStreaming
        ? await collectStream(meter.watch((await model.doStream(call)).stream), onText)
        : collectContent(await model.doGenerate(call));
    } catch (error) {
      signal.throwIfAborted();
      throw explainFailure(error, caller, { exchange, meter });
    }
    refuseRefusal(answer, request, exchange.sentBytes);
    const warnings = [...toSend.warnings, ...answer.warnings];
    return toReply({ ...answer, warnings }, words, exchange.sentBytes);
  }

  /** @throws ModelError `model_refused` for a refusal, or for an answer that a filter emptied. */
  function refuseRefusal(answer: Answer, request: ModelRequest, sentBytes: number): void {
    const words = refusalOf(answer);
    if (words === undefined) return;
    const { where, details } = placeOf(request);
    const text = words === '' ? 'stopped the answer by its filter' : `refused to answer: ${shorten(words)}`;
    throw new ModelError(
      'model_refused',
      `${where}: ${provider.name} ${text.replace(/(?<![.\s])[.\s]+$/, '')}.`,
      {
        details: { ...details, ...(words === '' ? {} : { refusal: shorten(words) }) },
        usage: usageOf(answer, sentBytes),
      },
    );
  }

  return {
    async generate(request, options) {
      const { signal } = options;
      signal.throwIfAborted();
      return raceAbort(ask(request, options), signal);
    },

    checkTools: (_model, tools) =>
      tools.flatMap((tool) => findUntold(tool, provider).map((message) => ({ tool: tool.name, message }))),

    describeWire: (model, { sharedMessages, ...prompt }) => [
      ...toWirePrompt({ ...prompt, turn: { sharedMessages } }, provider, modelIdOf(model)).notes,
      ...prompt.tools.flatMap((tool) => untoldNotes(tool.name, findUntold(tool, provider))),
    ],

    checkSettings: async (model, given) => {
      const modelId = modelIdOf(model);
      return modelId === '' ? [] : checkSettings(provider, { modelId, given, baseUrl: settings.baseUrl });
    },

    checkProfile({ model }) {
      if (modelIdOf(model) !== '') return;
      throw toProfileInvalid('model', `'${model}' names no model; write ${provider.name}:<model>`);
    },
  };
}
