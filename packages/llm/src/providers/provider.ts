import type { LanguageModelV3, SharedV3ProviderOptions } from '@ai-sdk/provider';
import type { PromptRules } from './prompt.js';

export interface Provider extends PromptRules {
  /** The prefix of its model names. */
  readonly name: string;
  /** Chat completions whose refusals the SDK's provider does not pass on as text. */
  readonly hidesRefusals?: boolean;
  readonly keyVariable: string;
  readonly baseUrlVariable: string;
  /** Undefined: the address must be configured. */
  readonly defaultBaseUrl?: string;
  /** True when no call succeeds without a key. */
  readonly needsKey: boolean;
  readonly options?: SharedV3ProviderOptions;
  /** The provider refuses a higher temperature, and the SDK's provider would send it. */
  readonly maxTemperature?: number;
  open(connection: {
    readonly modelId: string;
    readonly apiKey: string;
    readonly baseUrl: string;
    readonly fetch: typeof globalThis.fetch;
  }): Promise<LanguageModelV3>;
}
