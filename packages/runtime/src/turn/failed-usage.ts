import { answerTokensOf, estimatePrompt, ModelError, type ModelUsage } from '@boxcar/kernel';
import { parseUsage } from '../model/index.js';
import type { PricedProfile } from '../view/index.js';
import type { HeldPrompt } from './context-keeper.js';

/** The usage of a failed call. */
export interface FailedUsage {
  readonly usage: ModelUsage;
  /** True when the usage is not known: then it is the reserved amount. */
  readonly isLost: boolean;
}

/**
 * The usage of a failed call, as reported by its adapter. A call that timed out may still have been answered by the
 * provider, so it is charged with its possible maximum. A refused call costs nothing.
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
