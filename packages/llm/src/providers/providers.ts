/** The providers. Each is loaded on its first call, so a program that never calls a provider does not load it. */
import type { LanguageModelV3Message, SharedV3ProviderOptions } from '@ai-sdk/provider';
import { isJsonObject, type Model, type ProviderPart } from '@boxcar/kernel';
import { toNineCharacters } from './call-ids.js';
import { toGeminiSchema } from './gemini-schema.js';
import type { Provider } from './provider.js';
import { createProviderModel } from './provider-model.js';
import type { ModelSettings } from './settings.js';

/** The Responses API, which reasoning models are made for. Nothing is stored there: the tape is the history. */
const openai: Provider = {
  name: 'openai',
  keyVariable: 'OPENAI_API_KEY',
  baseUrlVariable: 'OPENAI_BASE_URL',
  defaultBaseUrl: 'https://api.openai.com/v1',
  needsKey: true,
  // The default there is strict, which refuses optional members.
  strictTools: false,
  options: { openai: { store: false } },
  callId: /^.{1,64}$/,
  // Nothing is stored there, so reasoning is accepted only with its encrypted content.
  takesBack: (part) => part.kind !== 'reasoning' || hasOption(part, 'openai', 'reasoningEncryptedContent'),
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createOpenAI } = await import('@ai-sdk/openai');
    return createOpenAI({ apiKey, baseURL: baseUrl, fetch }).responses(modelId);
  },
};

/** OpenAI's chat completions, in its own strict form. It neither shows reasoning nor accepts it in a prompt. */
const openaiChat: Provider = {
  ...openai,
  name: 'openai-chat',
  callId: /^.{1,40}$/,
  // https://github.com/getsentry/sentry-mcp/issues/106
  maxDescription: 1_024,
  takesBack: (part) => part.kind !== 'reasoning',
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createOpenAI } = await import('@ai-sdk/openai');
    return createOpenAI({ apiKey, baseURL: baseUrl, fetch }).chat(modelId);
  },
};

const anthropic: Provider = {
  name: 'anthropic',
  keyVariable: 'ANTHROPIC_API_KEY',
  baseUrlVariable: 'ANTHROPIC_BASE_URL',
  defaultBaseUrl: 'https://api.anthropic.com/v1',
  needsKey: true,
  callId: /^[a-zA-Z0-9_-]+$/,
  // Thinking is sent back with its signature; without a signature it is refused.
  takesBack: (part) =>
    part.kind !== 'reasoning' ||
    hasOption(part, 'anthropic', 'signature') ||
    hasOption(part, 'anthropic', 'redactedData'),
  cacheMark: { anthropic: { cacheControl: { type: 'ephemeral' } } },
  // With tool streaming, arguments are not validated there, and gateways do not know the option.
  options: { anthropic: { toolStreaming: false } },
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createAnthropic } = await import('@ai-sdk/anthropic');
    // Anthropic's own programs expect the variable without the version.
    const baseURL = new URL(baseUrl).pathname === '/' ? `${baseUrl}/v1` : baseUrl;
    return createAnthropic({ apiKey, baseURL, fetch }).messages(modelId);
  },
};

const google: Provider = {
  name: 'google',
  keyVariable: 'GEMINI_API_KEY',
  baseUrlVariable: 'GEMINI_BASE_URL',
  defaultBaseUrl: 'https://generativelanguage.googleapis.com/v1beta',
  needsKey: true,
  toSchema: toGeminiSchema,
  // The SDK's provider adds the filler: Gemini 3 refuses the first call of an answer without a signature.
  callFiller: {
    text: 'skip_thought_signature_validator',
    why: 'is the signature of calls that the provider has not signed',
    isNeeded: (message, modelId) => {
      const [first] = callPartsOf(message);
      return first !== undefined && SIGNED.test(modelId) && first.google?.thoughtSignature === undefined;
    },
  },
  // A call must follow a turn of the user or results, so text before the call is joined into the same turn.
  joinsNeighbours: true,
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createGoogleGenerativeAI } = await import('@ai-sdk/google');
    return createGoogleGenerativeAI({ apiKey, baseURL: baseUrl, fetch }).chat(modelId);
  },
};

const mistral: Provider = {
  name: 'mistral',
  keyVariable: 'MISTRAL_API_KEY',
  baseUrlVariable: 'MISTRAL_BASE_URL',
  defaultBaseUrl: 'https://api.mistral.ai/v1',
  needsKey: true,
  joinsNeighbours: true,
  maxTemperature: 1.5,
  // https://github.com/avante-corp/avante.nvim/pull/2695
  closesResults: true,
  callId: /^[a-zA-Z0-9]{9}$/,
  toCallId: toNineCharacters,
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createMistral } = await import('@ai-sdk/mistral');
    return createMistral({ apiKey, baseURL: baseUrl, fetch }).chat(modelId);
  },
};

/** Models that sign their calls: all since Gemini 3. */
const SIGNED = /(?:^|\/)gemini-(?![12](?:[.-]|$)|pro(?:-vision)?$|robotics-er-1\.5(?:[.-]|$))/i;

/** The data attached to each call in a message. */
const callPartsOf = (message: LanguageModelV3Message): readonly SharedV3ProviderOptions[] =>
  message.role !== 'assistant'
    ? []
    : message.content.flatMap((part) => (part.type === 'tool-call' ? [part.providerOptions ?? {}] : []));

/** Chat completions, as gateways and local servers implement them. */
const openaiCompatible: Provider = {
  name: 'openai-compatible',
  keyVariable: 'OPENAI_COMPATIBLE_API_KEY',
  baseUrlVariable: 'OPENAI_COMPATIBLE_BASE_URL',
  needsKey: false,
  joinsNeighbours: true,
  hidesRefusals: true,
  // The SDK's provider reads Gemini's signature under its own name and sends it under Google's.
  toOptions: ({ openaiCompatible: own, ...others }) => ({ ...others, ...(own && { google: own }) }),
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

/**
 * DeepSeek's chat completions: a call in the history needs the reasoning that led to it. For a call that another model made, the
 * reasoning is empty. https://api-docs.deepseek.com/guides/thinking_mode, https://github.com/deepseek-ai/deepseek-harness/discussions/739
 */
const deepseek: Provider = {
  name: 'deepseek',
  keyVariable: 'DEEPSEEK_API_KEY',
  baseUrlVariable: 'DEEPSEEK_BASE_URL',
  defaultBaseUrl: 'https://api.deepseek.com/v1',
  needsKey: true,
  joinsNeighbours: true,
  hidesRefusals: true,
  callFiller: {
    text: '',
    why: 'is the reasoning of calls that arrived without reasoning',
    isNeeded: (message) =>
      callPartsOf(message).length > 0 &&
      message.role === 'assistant' &&
      !message.content.some((part) => part.type === 'reasoning'),
  },
  open: async ({ modelId, apiKey, baseUrl, fetch }) => {
    const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');
    return createOpenAICompatible({
      name: 'deepseek',
      baseURL: baseUrl,
      apiKey,
      fetch,
      includeUsage: true,
      transformRequestBody: ({ messages, ...body }) => ({
        ...body,
        messages: messages.map(withReasoning),
      }),
    }).chatModel(modelId);
  },
};

const withReasoning = (message: Readonly<Record<string, unknown>>) =>
  message.tool_calls === undefined ? message : { reasoning_content: '', ...message };

const hasOption = ({ options }: ProviderPart, provider: string, name: string): boolean => {
  const values = options?.[provider];
  return isJsonObject(values) && typeof values[name] === 'string';
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
    'openai-chat': createProviderModel(openaiChat, { ...settings.openai, idleTimeoutMs }),
    google: createProviderModel(google, { ...settings.google, idleTimeoutMs }),
    mistral: createProviderModel(mistral, { ...settings.mistral, idleTimeoutMs }),
    deepseek: createProviderModel(deepseek, { ...settings.deepseek, idleTimeoutMs }),
  };
};
