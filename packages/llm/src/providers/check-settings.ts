/**
 * Finds the settings of a profile that do not reach its provider as written. The SDK writes a request with them that is never sent, and
 * this file reads that request. So no second list of the settings that each model accepts is needed.
 */
import type { LanguageModelV3CallOptions, SharedV3Warning } from '@ai-sdk/provider';
import { isJsonObject, type ModelRequest, type SettingFinding } from '@boxcar/kernel';
import type { Provider } from './provider.js';

/** The settings of a call in the form of the AI SDK, and the settings that are not sent as given. */
export function toCallSettings(
  given: ModelRequest['settings'],
  { name, options, maxTemperature = Number.POSITIVE_INFINITY }: Provider,
): {
  readonly settings: Pick<LanguageModelV3CallOptions, 'temperature' | 'maxOutputTokens' | 'providerOptions'>;
  readonly warnings: readonly SharedV3Warning[];
} {
  const { temperature, max_output_tokens: maxOutputTokens } = given;
  const isTooHot = temperature !== undefined && temperature > maxTemperature;
  const details = `${temperature} exceeds ${name} maximum of ${maxTemperature}. clamped to ${maxTemperature}`;
  return {
    settings: {
      ...(temperature === undefined ? {} : { temperature: Math.min(temperature, maxTemperature) }),
      ...(maxOutputTokens === undefined ? {} : { maxOutputTokens }),
      ...(options === undefined ? {} : { providerOptions: options }),
    },
    warnings: isTooHot ? [{ type: 'unsupported', feature: 'temperature', details }] : [],
  };
}

const PROMPT: LanguageModelV3CallOptions['prompt'] = [
  { role: 'user', content: [{ type: 'text', text: 'Hello.' }] },
];

/** For a provider without a default address. */
const NOWHERE = 'http://127.0.0.1:9/v1';

/** The names of each setting in the APIs, and in the SDK. */
const NAMES = {
  temperature: { wire: ['temperature'], sdk: 'temperature' },
  max_output_tokens: {
    wire: ['max_output_tokens', 'max_completion_tokens', 'max_tokens', 'maxOutputTokens'],
    sdk: 'maxOutputTokens',
  },
} as const;

/** Gemini has the settings in a nested object. */
function findSent(body: unknown, names: readonly string[]): number | null {
  if (!isJsonObject(body)) return null;
  const { generationConfig } = body;
  const settings = isJsonObject(generationConfig) ? generationConfig : body;
  const value = names.map((name) => settings[name]).find((sent) => sent !== undefined);
  return typeof value === 'number' ? value : null;
}

/** The body of the request, and the warnings of the SDK. */
async function writeRequest(
  provider: Provider,
  { modelId, given, baseUrl }: CheckedSettings,
): Promise<{ readonly body: unknown; readonly warnings: readonly SharedV3Warning[] }> {
  let body: unknown;
  const model = await provider.open({
    modelId,
    apiKey: 'none',
    baseUrl: baseUrl ?? provider.defaultBaseUrl ?? NOWHERE,
    fetch: async (_url, init) => {
      body = JSON.parse(String(init?.body));
      return new Response('', { headers: { 'content-type': 'text/event-stream' } });
    },
  });
  const { settings, warnings: own } = toCallSettings(given, provider);
  const { stream } = await model.doStream({ prompt: PROMPT, ...settings });
  const warnings = [...own];
  for await (const part of stream) if (part.type === 'stream-start') warnings.push(...part.warnings);
  return { body, warnings };
}

interface CheckedSettings {
  readonly modelId: string;
  readonly given: ModelRequest['settings'];
  readonly baseUrl: string | undefined;
}

export async function checkSettings(
  provider: Provider,
  checked: CheckedSettings,
): Promise<readonly SettingFinding[]> {
  const { body, warnings } = await writeRequest(provider, checked);
  return (['temperature', 'max_output_tokens'] as const).flatMap((setting) => {
    const { wire, sdk } = NAMES[setting];
    const given = checked.given[setting];
    const sent = findSent(body, wire);
    if (given === undefined || given === sent) return [];
    // The last reason counts: a temperature may be clamped first and then left out.
    const why = warnings.flatMap((warning) =>
      'feature' in warning && warning.feature === sdk ? (warning.details ?? []) : [],
    );
    const words = `${setting} ${given} is ${sent === null ? 'not sent' : `sent as ${sent}`}`;
    return [{ setting, sent, message: [words, ...why.slice(-1)].join(': ') }];
  });
}
