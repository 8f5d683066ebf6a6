/** The providers, each loaded when its first call comes: a program that asks none of them pays for none. */
import type { Model } from '@boxcar/kernel';
import { createProviderModel, type Provider } from './provider-model.js';
import type { ModelSettings } from './settings.js';

/** The Responses API: the one that reasoning models are made for. Nothing is stored there: the tape is the history. */
const openai: Provider = {
  name: 'openai',
  keyVariable: 'OPENAI_API_KEY',
  baseUrlVariable: 'OPENAI_BASE_URL',
  defaultBaseUrl: 'https://api.openai.com/v1',
  needsKey: true,
  // Left out, it means strict there, which refuses optional members.
  strictTools: false,
  options: { openai: { store: false } },
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createOpenAI } = await import('@ai-sdk/openai');
    return createOpenAI({ apiKey, baseURL: baseUrl, fetch }).responses(modelId);
  },
};

const anthropic: Provider = {
  name: 'anthropic',
  keyVariable: 'ANTHROPIC_API_KEY',
  baseUrlVariable: 'ANTHROPIC_BASE_URL',
  defaultBaseUrl: 'https://api.anthropic.com/v1',
  needsKey: true,
  cacheMark: { anthropic: { cacheControl: { type: 'ephemeral' } } },
  // Arguments that are streamed while they are written are not checked there, and gateways do not know the switch.
  options: { anthropic: { toolStreaming: false } },
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createAnthropic } = await import('@ai-sdk/anthropic');
    // Anthropic's own programs take the variable without the version.
    const baseURL = new URL(baseUrl).pathname === '/' ? `${baseUrl}/v1` : baseUrl;
    return createAnthropic({ apiKey, baseURL, fetch }).messages(modelId);
  },
};

/** Chat completions, as gateways and local servers speak them. */
const openaiCompatible: Provider = {
  name: 'openai-compatible',
  keyVariable: 'OPENAI_COMPATIBLE_API_KEY',
  baseUrlVariable: 'OPENAI_COMPATIBLE_BASE_URL',
  needsKey: false,
  joinsNeighbours: true,
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');
    return createOpenAICompatible({
      name: 'openaiCompatible',
      baseURL: baseUrl,
      fetch,
      includeUsage: true,
      ...(apiKey === '' ? {} : { apiKey }),
    }).chatModel(modelId);
  },
};

/** The adapters by the prefix of their model names. */
export const createProviderModels = (settings: ModelSettings = {}): Readonly<Record<string, Model>> => {
  const { idleTimeoutMs } = settings;
  return {
    openai: createProviderModel(openai, { ...settings.openai, idleTimeoutMs }),
    anthropic: createProviderModel(anthropic, { ...settings.anthropic, idleTimeoutMs }),
    'openai-compatible': createProviderModel(openaiCompatible, {
      ...settings.openaiCompatible,
      idleTimeoutMs,
    }),
  };
};
