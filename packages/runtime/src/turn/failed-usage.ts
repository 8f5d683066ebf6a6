import { answerTokensOf, estimatePrompt, ModelError, type ModelUsage } from '@boxcar/kernel';
import { parseUsage } from '../model/index.js';
import type { PricedProfile } from '../view/index.js';
import type { HeldPrompt } from './context-keeper.js';

/** What a failed call has used. */
export interface FailedUsage {
  readonly usage: ModelUsage;
  /** Nobody knows: it is what was reserved. */
  readonly isLost: boolean;
}

/**
 * What a failed call has used, as its adapter says. A call that took too long may have been answered where nobody heard it: it is
 * charged with all that it may have used. One that was refused cost nothing.
 */
export function usageOfFailure(
  profile: PricedProfile['profile'],
  { view, tools }: Pick<HeldPrompt, 'view' | 'tools'>,
  error: unknown,
): FailedUsage | undefined {
  if (!(error instanceof ModelError)) return undefined;
  const usage = parseUsage(error.usage);
  if (usage !== undefined) return { usage, isLost: false };
  if (error.code !== 'model_timeout') return undefined;
  const inputTokens = estimatePrompt(view.estimateTokens, tools);
  const outputTokens = answerTokensOf(profile);
  return { usage: { inputTokens, outputTokens, isEstimated: true }, isLost: true };
}
