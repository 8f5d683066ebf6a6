/** Reads the usage that a provider reports for a call, from any of its bodies and events. */
import { isJsonObject, type ModelUsage } from '@boxcar/kernel';
import { z } from 'zod';

/** The fields that providers use for usage, at any place in a body. */
const figures = z.object({
  input_tokens: z.number().nonnegative().optional(),
  prompt_tokens: z.number().nonnegative().optional(),
  output_tokens: z.number().nonnegative().optional(),
  completion_tokens: z.number().nonnegative().optional(),
  promptTokenCount: z.number().nonnegative().optional(),
  candidatesTokenCount: z.number().nonnegative().optional(),
  thoughtsTokenCount: z.number().nonnegative().optional(),
  cache_read_input_tokens: z.number().nonnegative().nullish(),
  cache_creation_input_tokens: z.number().nonnegative().nullish(),
});
type Figures = z.infer<typeof figures>;

/** Anthropic counts tokens read from the cache and written to it separately, and only Anthropic has these names. */
function inputOf(told: Figures): Omit<ModelUsage, 'outputTokens'> | undefined {
  const plain = told.input_tokens ?? told.prompt_tokens ?? told.promptTokenCount;
  if (plain === undefined) return undefined;
  const { cache_read_input_tokens: read, cache_creation_input_tokens: written } = told;
  return {
    inputTokens: plain + (read ?? 0) + (written ?? 0),
    ...(read == null ? {} : { cachedInputTokens: read }),
    ...(written == null ? {} : { cacheWriteTokens: written }),
  };
}

/** Gemini counts thoughts separately from the answer; the others include them. */
const outputOf = (told: Figures): number =>
  told.output_tokens ??
  told.completion_tokens ??
  (told.candidatesTokenCount ?? 0) + (told.thoughtsTokenCount ?? 0);

/** The usage in a parsed body or event, also next to an error. */
export function findReportedUsage(value: unknown): ModelUsage | undefined {
  if (!isJsonObject(value)) return undefined;
  const places = [
    value.usage,
    value.usageMetadata,
    isJsonObject(value.response) ? value.response.usage : undefined,
    isJsonObject(value.message) ? value.message.usage : undefined,
  ];
  for (const place of places) {
    if (!isJsonObject(place)) continue;
    const { success, data } = figures.safeParse(place);
    const input = success ? inputOf(data) : undefined;
    if (success && input !== undefined) return { ...input, outputTokens: outputOf(data) };
  }
  return undefined;
}
