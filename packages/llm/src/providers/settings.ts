/** The adapters' settings for their providers. The program that opens the stack reads them from the environment; this file does not. */
import { z } from 'zod';

export interface ProviderSettings {
  readonly apiKey?: string | undefined;
  /** Without a trailing slash. */
  readonly baseUrl?: string | undefined;
}

export interface ModelSettings {
  readonly openai?: ProviderSettings | undefined;
  readonly anthropic?: ProviderSettings | undefined;
  readonly google?: ProviderSettings | undefined;
  readonly mistral?: ProviderSettings | undefined;
  readonly deepseek?: ProviderSettings | undefined;
  readonly openaiCompatible?: ProviderSettings | undefined;
  /** How long a stream that has begun may be silent. Default: 120 s. */
  readonly idleTimeoutMs?: number | undefined;
}

// Neither message repeats the value: the value may be a secret or contain one.
const apiKey = z
  .string()
  .trim()
  .regex(/^[\x21-\x7e]+$/, 'must be printable ASCII without spaces')
  .optional();

function findUrlFault(text: string): string | undefined {
  if (!URL.canParse(text)) return 'must be an http:// or https:// URL';
  const url = new URL(text);
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return 'must be an http:// or https:// URL';
  if (url.username !== '' || url.password !== '') return 'must hold no user and no password';
  return url.search === '' && url.hash === '' ? undefined : 'must have no ? and no #';
}

const baseUrl = z
  .string()
  .trim()
  .superRefine((text, context) => {
    const message = findUrlFault(text);
    if (message !== undefined) context.addIssue({ code: 'custom', message });
  })
  .transform((text) => text.replace(/(?<!\/)\/+$/, ''))
  .optional();

/** The adapters' variables, for the schema in a program's `config.ts`. Unset variables must be absent, not empty. */
export const modelEnvironment = {
  OPENAI_API_KEY: apiKey,
  OPENAI_BASE_URL: baseUrl,
  ANTHROPIC_API_KEY: apiKey,
  ANTHROPIC_BASE_URL: baseUrl,
  GEMINI_API_KEY: apiKey,
  GEMINI_BASE_URL: baseUrl,
  MISTRAL_API_KEY: apiKey,
  MISTRAL_BASE_URL: baseUrl,
  DEEPSEEK_API_KEY: apiKey,
  DEEPSEEK_BASE_URL: baseUrl,
  OPENAI_COMPATIBLE_API_KEY: apiKey,
  OPENAI_COMPATIBLE_BASE_URL: baseUrl,
  BOXCAR_MODEL_IDLE_SECONDS: z
    .string()
    .regex(/^[1-9]\d{0,4}$/, 'must be a whole number of seconds from 1 to 99999')
    .transform(Number)
    .optional(),
} as const;

const environmentSchema = z.object(modelEnvironment);
/** The parsed environment variables of the providers. */
export type ModelEnvironment = z.output<typeof environmentSchema>;

/** The settings of a parsed environment, for `createModelRouter({ providers })`. */
export const toModelSettings = (env: ModelEnvironment): ModelSettings => ({
  openai: { apiKey: env.OPENAI_API_KEY, baseUrl: env.OPENAI_BASE_URL },
  anthropic: { apiKey: env.ANTHROPIC_API_KEY, baseUrl: env.ANTHROPIC_BASE_URL },
  google: { apiKey: env.GEMINI_API_KEY, baseUrl: env.GEMINI_BASE_URL },
  mistral: { apiKey: env.MISTRAL_API_KEY, baseUrl: env.MISTRAL_BASE_URL },
  deepseek: { apiKey: env.DEEPSEEK_API_KEY, baseUrl: env.DEEPSEEK_BASE_URL },
  openaiCompatible: { apiKey: env.OPENAI_COMPATIBLE_API_KEY, baseUrl: env.OPENAI_COMPATIBLE_BASE_URL },
  idleTimeoutMs:
    env.BOXCAR_MODEL_IDLE_SECONDS === undefined ? undefined : env.BOXCAR_MODEL_IDLE_SECONDS * 1000,
});
