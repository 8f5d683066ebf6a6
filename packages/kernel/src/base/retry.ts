/** Which failed model calls are tried again, and when. Source: docs/reference/models.md, "Tried again". */

/** A profile's limits for repeated model calls; these defaults apply to limits that it does not set. */
export interface RetryLimits {
  readonly model_retries?: number | undefined;
  readonly retry_base_seconds?: number | undefined;
  readonly retry_max_seconds?: number | undefined;
}

export const DEFAULT_RETRIES = { model_retries: 5, retry_base_seconds: 1, retry_max_seconds: 60 } as const;

/** The longest pause that a provider can ask for; a longer request is cut to this. */
export const MAX_RETRY_AFTER_MS = 3_600_000;

export type RetryDecision =
  | { readonly kind: 'retry'; readonly delayMs: number }
  /** The call could succeed later, but all its retries are used. */
  | { readonly kind: 'spent' }
  /** The same request would fail again. */
  | { readonly kind: 'final' };

/**
 * Exponential back-off with full jitter: a delay between 0 and the doubled step, so that turns that failed together do
 * not retry together. When the provider asks for a pause, the jitter is added to that pause.
 *
 * @param options.retries - How often this step was tried again already.
 * @param options.random - From 0 to 1, 1 excluded.
 */
export function decideRetry(
  failure: { readonly canRetry: boolean; readonly retryAfterMs?: number | undefined },
  options: { readonly retries: number; readonly limits: RetryLimits; readonly random: number },
): RetryDecision {
  if (!failure.canRetry) return { kind: 'final' };
  const { retries, limits, random } = options;
  if (retries >= (limits.model_retries ?? DEFAULT_RETRIES.model_retries)) return { kind: 'spent' };
  const baseMs = (limits.retry_base_seconds ?? DEFAULT_RETRIES.retry_base_seconds) * 1000;
  const maxMs = (limits.retry_max_seconds ?? DEFAULT_RETRIES.retry_max_seconds) * 1000;
  const askedMs = Math.min(Math.max(failure.retryAfterMs ?? 0, 0), MAX_RETRY_AFTER_MS);
  return { kind: 'retry', delayMs: Math.round(askedMs + random * Math.min(maxMs, baseMs * 2 ** retries)) };
}
