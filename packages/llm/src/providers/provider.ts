import type { LanguageModelV3, SharedV3ProviderOptions } from '@ai-sdk/provider';
import type { PromptRules } from './prompt.js';

export interface Provider extends PromptRules {
  /** The prefix of its model names. */
  readonly name: string;
  /** Chat completions, whose refusals the SDK's provider does not pass on as text. */
  readonly hidesRefusals?: boolean;
  readonly keyVariable: string;
  readonly baseUrlVariable: string;
  /** None: it has to be set. */
  readonly defaultBaseUrl?: string;
  /** True where no call succeeds without a key. */
  readonly needsKey: boolean;
  readonly options?: SharedV3ProviderOptions;
  /** A higher one is refused there, and the SDK's provider would send it. */
  readonly maxTemperature?: number;
  open(connection: {
    readonly modelId: string;
    readonly apiKey: string;
    readonly baseUrl: string;
    readonly fetch: typeof globalThis.fetch;
  }): Promise<LanguageModelV3>;
}
