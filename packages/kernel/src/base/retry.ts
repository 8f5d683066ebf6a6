/** Which failed model call is made again, and when. Source: docs/reference/models.md, "Tried again". */

/** How often a profile has its model calls repeated; what it leaves open has these defaults. */
export interface RetryLimits {
  readonly model_retries?: number | undefined;
  readonly retry_base_seconds?: number | undefined;
  readonly retry_max_seconds?: number | undefined;
}

export const DEFAULT_RETRIES = { model_retries: 5, retry_base_seconds: 1, retry_max_seconds: 60 } as const;

/** A provider that asks for a longer pause than this gets this. */
export const MAX_RETRY_AFTER_MS = 3_600_000;

export type RetryDecision =
  | { readonly kind: 'retry'; readonly delayMs: number }
  /** It could succeed later, but was tried often enough. */
  | { readonly kind: 'spent' }
  /** The same request would fail again. */
  | { readonly kind: 'final' };

/**
 * Exponential back-off with full jitter: anything from 0 to the doubled step, so that turns that failed together do not
 * come back together. A pause that the provider asks for comes first, and the jitter after it.
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
