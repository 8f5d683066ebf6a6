/** How long a prompt may be: the model's window, and what of it the prompt may take. Source: docs/models.md, "Long prompts". */
import { DEFAULT_CONTEXT_TOKENS, DEFAULT_REMINDER_SHARE } from './context-contract.js';
import type { Profile } from './profile.js';
import { toolNames } from './queue-tool.js';
import { TAPE_HANDOFF } from './tape-tools.js';

/** Windows by model name without its provider; the first that fits. A start, not a promise. */
const WINDOWS: readonly (readonly [RegExp, number])[] = [
  [/^gpt-4\.1/, 1_047_576],
  [/^gpt-4-32k/, 32_768],
  [/^gpt-4(-\d{4})?$/, 8_192],
  [/^gpt-3\.5/, 16_385],
  [/^(gpt-4|chatgpt-4o|gpt-oss|o1-mini|o1-preview|gpt-5(\.\d)?-chat)/, 128_000],
  // What a prompt may have of 400,000.
  [/^gpt-5/, 272_000],
];

/** What the model of a profile takes, prompt and answer together. */
function contextTokensOf({ model, limits }: Pick<Profile, 'model' | 'limits'>): number {
  if (limits.context_tokens !== undefined) return limits.context_tokens;
  const [provider, ...rest] = model.split(':');
  if (provider !== 'openai' && provider !== 'openai-chat') return DEFAULT_CONTEXT_TOKENS;
  const name = rest.join(':').toLowerCase();
  const base = name.startsWith('ft:') ? name.slice(3) : name;
  return WINDOWS.find(([pattern]) => pattern.test(base))?.[1] ?? DEFAULT_CONTEXT_TOKENS;
}

const ANSWER_TOKENS = 16_384;
/** A small window is not left to the answer. */
const ANSWER_SHARE = 1 / 8;

export interface ContextLimits {
  readonly limitTokens: number;
  /** What a prompt may come to; the rest is the answer's. */
  readonly promptTokens: number;
  /** Above it the agent is reminded; undefined: it cannot hand off, so there is nothing to remind it of. */
  readonly reminderTokens: number | undefined;
}

/** Whether agents of this profile can hand off by themselves. */
const canHandOff = (profile: Pick<Profile, 'tools'>): boolean =>
  toolNames(profile).includes(TAPE_HANDOFF.name);

export function contextLimitsOf(profile: Profile): ContextLimits {
  const limitTokens = contextTokensOf(profile);
  const answer = Math.min(
    profile.model_settings.max_output_tokens ?? ANSWER_TOKENS,
    Math.floor(limitTokens * ANSWER_SHARE),
  );
  const share = profile.limits.context_reminder ?? DEFAULT_REMINDER_SHARE;
  return {
    limitTokens,
    promptTokens: limitTokens - answer,
    reminderTokens: canHandOff(profile) ? Math.floor(limitTokens * share) : undefined,
  };
}

/** The limit that the agent is told of (`ViewRows.contextLimit`); undefined: none, as it cannot hand off. */
export const toldLimitOf = (profile: Profile): number | undefined =>
  canHandOff(profile) ? contextTokensOf(profile) : undefined;
