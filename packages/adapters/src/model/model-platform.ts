/** The platforms whose targets are models, based on the providers of the AI SDK. */
import type { LanguageModelV3, SharedV3ProviderOptions } from '@ai-sdk/provider';

export interface ModelPlatform {
  readonly name: 'openai' | 'anthropic';
  readonly keyVariable: string;
  readonly baseUrlVariable: string;
  readonly defaultBaseUrl: string;
  readonly options: SharedV3ProviderOptions;
  open(connection: {
    readonly model: string;
    readonly key: string;
    readonly baseUrl: string;
    readonly fetch: typeof globalThis.fetch;
  }): Promise<LanguageModelV3>;
}

/** The Responses API. Nothing is stored there: the rows of the handoff are the record. */
const openai: ModelPlatform = {
  name: 'openai',
  keyVariable: 'OPENAI_API_KEY',
  baseUrlVariable: 'OPENAI_BASE_URL',
  defaultBaseUrl: 'https://api.openai.com/v1',
  options: { openai: { store: false } },
  open: async ({ model, key, baseUrl, fetch }) => {
    const { createOpenAI } = await import('@ai-sdk/openai');
    return createOpenAI({ apiKey: key, baseURL: baseUrl, fetch }).responses(model);
  },
};

/** The Messages API. */
const anthropic: ModelPlatform = {
  name: 'anthropic',
  keyVariable: 'ANTHROPIC_API_KEY',
  baseUrlVariable: 'ANTHROPIC_BASE_URL',
  defaultBaseUrl: 'https://api.anthropic.com/v1',
  options: {},
  open: async ({ model, key, baseUrl, fetch }) => {
    const { createAnthropic } = await import('@ai-sdk/anthropic');
    // ANTHROPIC_BASE_URL is usually set without the version, as Anthropic's own programs expect it. This client needs the version.
    const baseURL = new URL(baseUrl).pathname === '/' ? `${new URL(baseUrl).origin}/v1` : baseUrl;
    return createAnthropic({ apiKey: key, baseURL, fetch }).messages(model);
  },
};

export const MODEL_PLATFORMS: Readonly<Record<ModelPlatform['name'], ModelPlatform>> = { openai, anthropic };
