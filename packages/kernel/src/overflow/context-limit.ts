/**
 * The length limits of a prompt: the model's window, and the part of it that the prompt may use. Source:
 * docs/reference/models.md, "Long prompts".
 */

import type { SettingFinding } from '../model/index.js';
import { DEFAULT_CONTEXT_TOKENS, DEFAULT_REMINDER_SHARE, providerOf } from '../model/index.js';
import type { Profile } from '../profile/index.js';
import { toolNames } from '../profile/index.js';
import { TAPE_HANDOFF } from '../tape/index.js';

/** The known limits of a model. They are initial values, not a guarantee. */
interface KnownModel {
  /** The limit for prompt and answer together, or for the prompt alone. */
  readonly window?: number;
  /** True when the window counts only the prompt. */
  readonly isOfPrompt?: boolean;
  /** The longest answer, in tokens. */
  readonly answer?: number;
}

/** By model name without its provider; the first matching pattern applies. */
const MODELS: Readonly<Record<string, readonly (readonly [RegExp, KnownModel])[]>> = {
  openai: [
    [/^gpt-4\.1/, { window: 1_047_576, answer: 32_768 }],
    [/^gpt-4-32k/, { window: 32_768 }],
    [/^gpt-4(-\d{4})?$/, { window: 8_192 }],
    [/^gpt-3\.5/, { window: 16_385, answer: 4_096 }],
    [/^gpt-4(-turbo|-\d{4}-(vision-)?preview|o-2024-05-13)/, { window: 128_000, answer: 4_096 }],
    [/^(gpt-4o|chatgpt-4o|gpt-5(\.\d)?-chat)/, { window: 128_000, answer: 16_384 }],
    [/^(gpt-4|gpt-oss|o1-mini|o1-preview)/, { window: 128_000 }],
    // The share of the 400,000 tokens that a prompt may have.
    [/^gpt-5/, { window: 272_000, isOfPrompt: true, answer: 128_000 }],
  ],
  anthropic: [
    [/^claude-(opus|sonnet|haiku|fable)-(4-[6-9]|5)/, { answer: 128_000 }],
    [/^claude-3-(haiku|sonnet|opus)/, { answer: 4_096 }],
    [/^claude-3-5-/, { answer: 8_192 }],
    [/^claude-opus-4(-[01])?(-\d{8})?$/, { answer: 32_000 }],
    [/^claude-(3-7-sonnet|sonnet-4(-0|-\d{8})?$)|^claude-(sonnet|haiku|opus)-4-5/, { answer: 64_000 }],
  ],
  google: [[/^gemini-(1|2\.0)/, { answer: 8_192 }]],
  // A call that asks for a longer answer is refused: https://github.com/deepseek-ai/DeepSeek-V3/issues/69
  deepseek: [
    [/^deepseek-chat/, { window: 128_000, answer: 8_192 }],
    [/^deepseek-reasoner/, { window: 128_000, answer: 65_536 }],
  ],
};

type SizedProfile = {
  readonly model: string;
  readonly limits: Pick<Profile['limits'], 'context_tokens'>;
  readonly model_settings: Pick<Profile['model_settings'], 'max_output_tokens'>;
};

function knownOf(model: string): KnownModel {
  const provider = providerOf(model);
  const [, ...rest] = model.split(':');
  const name = rest.join(':').toLowerCase();
  const base = name.startsWith('ft:') ? name.slice(3) : name;
  const models = Object.hasOwn(MODELS, provider) ? MODELS[provider] : undefined;
  return models?.find(([pattern]) => pattern.test(base))?.[1] ?? {};
}

/** The window of a profile's model: prompt and answer together, for some models the prompt alone. */
const contextTokensOf = ({ model, limits }: Pick<SizedProfile, 'model' | 'limits'>): number =>
  limits.context_tokens ?? knownOf(model).window ?? DEFAULT_CONTEXT_TOKENS;

/** Whether the answer must fit into the window with the prompt. A window from the profile always counts both. */
const sharesWindow = ({ model, limits }: Pick<SizedProfile, 'model' | 'limits'>): boolean =>
  limits.context_tokens !== undefined || knownOf(model).isOfPrompt !== true;

const ANSWER_TOKENS = 16_384;
/** The largest share of the window for the answer when the profile does not ask for a length. */
const ANSWER_SHARE = 1 / 8;
/** The largest share for the answer, whatever length the profile asks for. */
const MAX_ANSWER_SHARE = 1 / 2;

/**
 * The longest answer of a call, in tokens. The budget and the context check reserve it, and it is sent with the call.
 * Source: docs/reference/models.md, "Long prompts".
 */
export function answerTokensOf(profile: SizedProfile): number {
  const window = contextTokensOf(profile);
  const own = knownOf(profile.model).answer ?? Number.POSITIVE_INFINITY;
  const asked = profile.model_settings.max_output_tokens;
  if (asked === undefined)
    return Math.max(Math.min(own, ANSWER_TOKENS, Math.floor(window * ANSWER_SHARE)), 1);
  const most = sharesWindow(profile) ? Math.floor(window * MAX_ANSWER_SHARE) : Number.POSITIVE_INFINITY;
  return Math.max(Math.min(asked, own, most), 1);
}

/** The finding for a `max_output_tokens` that is not sent as written; undefined when it is sent as written. */
export function findAnswerFinding(profile: SizedProfile): SettingFinding | undefined {
  const asked = profile.model_settings.max_output_tokens;
  const sent = answerTokensOf(profile);
  if (asked === undefined || asked === sent) return undefined;
  const why =
    sent === knownOf(profile.model).answer
      ? 'the model writes no more'
      : `that is half of its window of ${contextTokensOf(profile)} tokens`;
  return {
    setting: 'max_output_tokens',
    sent,
    message: `max_output_tokens ${asked} is sent as ${sent}: ${why}`,
  };
}

export interface ContextLimits {
  readonly limitTokens: number;
  /** The most tokens of a prompt; the rest of the limit is for the answer. */
  readonly promptTokens: number;
  readonly answerTokens: number;
  /** Above this estimate the agent is reminded to hand off; undefined when it cannot hand off. */
  readonly reminderTokens: number | undefined;
}

/** Whether agents of this profile can hand off by themselves. */
const canHandOff = (profile: Pick<Profile, 'tools'>): boolean =>
  toolNames(profile).includes(TAPE_HANDOFF.name);

export function contextLimitsOf(profile: Profile): ContextLimits {
  const limitTokens = contextTokensOf(profile);
  const answerTokens = answerTokensOf(profile);
  const share = profile.limits.context_reminder ?? DEFAULT_REMINDER_SHARE;
  return {
    limitTokens,
    promptTokens: sharesWindow(profile) ? limitTokens - answerTokens : limitTokens,
    answerTokens,
    reminderTokens: canHandOff(profile) ? Math.floor(limitTokens * share) : undefined,
  };
}

/** The limit stated to the agent (`ViewRows.contextLimit`); undefined when the agent cannot hand off. */
export const toldLimitOf = (profile: Profile): number | undefined =>
  canHandOff(profile) ? contextTokensOf(profile) : undefined;
