/**
 * A `Model` over one provider of the AI SDK. It uses the SDK's providers and nothing above them: what runs tools, parses
 * their arguments and retries is the kernel's.
 *
 * A1  One request, one HTTP call: no retry, no redirect, no repair.
 * A2  The caller's abort ends the call at once with its reason; an answer after it takes no effect.
 * A3  Every other failure is a ModelError, and no text of it holds the key.
 */
import type { LanguageModelV3, SharedV3ProviderOptions } from '@ai-sdk/provider';
import { checkDuration, type Model, ModelError, type ModelReply, type ModelRequest } from '@boxcar/kernel';
import { raceAbort } from '../abort.js';
import { toProfileInvalid } from '../scripted.js';
import { collectContent, collectStream, toReply } from './collect.js';
import { openExchange } from './exchange.js';
import { type Caller, explainFailure } from './explain-failure.js';
import { type PromptRules, toWirePrompt } from './prompt.js';
import type { ProviderSettings } from './settings.js';
import { UsageMeter } from './usage.js';

export interface Provider extends PromptRules {
  /** The prefix of its model names. */
  readonly name: string;
  readonly keyVariable: string;
  readonly baseUrlVariable: string;
  /** None: it has to be set. */
  readonly defaultBaseUrl?: string;
  /** True where no call succeeds without a key. */
  readonly needsKey: boolean;
  readonly options?: SharedV3ProviderOptions;
  open(connection: {
    readonly modelId: string;
    readonly apiKey: string;
    readonly baseUrl: string;
    readonly fetch: typeof globalThis.fetch;
  }): Promise<LanguageModelV3>;
}

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

  /** What stands in the way of any call, as an error that names the variable or the profile's field. */
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

  async function ask(request: ModelRequest, signal: AbortSignal): Promise<ModelReply> {
    const { modelId, caller } = connect(request);
    const isStreaming = request.settings.stream !== false;
    const { names, options } = toWirePrompt(request, provider);
    const meter = new UsageMeter();
    using exchange = openExchange({ signal, idleMs: idleTimeoutMs, isStreaming });
    try {
      const model = await provider.open({
        modelId,
        apiKey: settings.apiKey ?? '',
        baseUrl: caller.baseUrl,
        fetch: exchange.fetch,
      });
      const { temperature, max_output_tokens: maxOutputTokens } = request.settings;
      const call = {
        ...options,
        ...(temperature === undefined ? {} : { temperature }),
        ...(maxOutputTokens === undefined ? {} : { maxOutputTokens }),
        ...(provider.options === undefined ? {} : { providerOptions: provider.options }),
        abortSignal: exchange.signal,
      };
      const answer = isStreaming
        ? await collectStream(meter.watch((await model.doStream(call)).stream))
        : collectContent(await model.doGenerate(call));
      return toReply(answer, names, exchange.sentBytes);
    } catch (error) {
      signal.throwIfAborted();
      throw explainFailure(error, caller, { exchange, meter });
    }
  }

  function refuseFiltered(reply: ModelReply, request: ModelRequest): ModelReply {
    const isEmpty = reply.text.trim() === '' && reply.toolCalls.length === 0;
    if (reply.finishReason !== 'content_filter' || !isEmpty) return reply;
    const { where, details } = placeOf(request);
    throw new ModelError('model_refused', `${where}: ${provider.name} stopped the answer by its filter.`, {
      details,
      usage: reply.usage,
    });
  }

  return {
    async generate(request, { signal }) {
      signal.throwIfAborted();
      return refuseFiltered(await raceAbort(ask(request, signal), signal), request);
    },

    checkProfile({ model }) {
      if (modelIdOf(model) !== '') return;
      throw toProfileInvalid('model', `'${model}' names no model; write ${provider.name}:<model>`);
    },
  };
}
