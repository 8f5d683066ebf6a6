/**
 * What a provider of models allows the whole pool: calls at once, calls per minute, and none while it fails.
 *
 * P1  Never more calls at once than `maxConcurrent`; never more begun in any minute than `requestsPerMinute`.
 * P2  After `breakerAfter` failures in a row no call is made for a while; then one at a time tries, until one succeeds.
 * Source: docs/models.md, "Limits of a provider".
 */

export interface ProviderState {
  readonly maxConcurrent: number | null;
  readonly requestsPerMinute: number | null;
  /** Failures in a row; 0 = never. */
  readonly breakerAfter: number;
  /** When all calls begun so far are paid for by the rate, in milliseconds like every time here. */
  readonly pacedUntil: number | null;
  /** No call before; in the past: one may try. Null = it works. */
  readonly openUntil: number | null;
  readonly failures: number;
  readonly openings: number;
  /** Calls under way, and places kept for turns that were woken. */
  readonly inUse: number;
  readonly now: number;
}

export const DEFAULT_BREAKER_AFTER = 10;
/** How long a call that tries a failing provider holds up the next one; it may take longer itself. */
export const PROBE_MS = 60_000;
const FIRST_PAUSE_MS = 10_000;
const MAX_PAUSE_MS = 300_000;
/** When a turn that waits for a place looks by itself: the place of a killed worker comes free with no one to tell. */
const LOOK_AGAIN_MS = 2_000;

/** The provider of a model: the part of its name before the first ':'. */
export const providerOf = (model: string): string => model.split(':', 1)[0] ?? model;

/**
 * The rate as a bucket: `burst` calls at once, then one every `everyMs`. A tenth may come at once, and what is refilled in a
 * minute beside that makes up the rest, so that no minute, wherever it begins, holds more than the limit.
 */
export function paceOf(requestsPerMinute: number): { readonly burst: number; readonly everyMs: number } {
  const burst = Math.ceil(requestsPerMinute / 10);
  return { burst, everyMs: 60_000 / (requestsPerMinute - burst + 1) };
}

export interface Room {
  /** Calls that may begin now. */
  readonly calls: number;
  /** Why there are no more; null = nothing limits them. */
  readonly reason: 'failing' | 'rate' | 'concurrency' | null;
  /** When those that find no room look again. */
  readonly lookAt: number;
  /** True when the one call is there to see whether the provider works again. */
  readonly isProbe: boolean;
}

/** How many calls may begin, and what keeps others from it. */
export function findRoom(state: ProviderState): Room {
  const { now, maxConcurrent, requestsPerMinute, openUntil } = state;
  if (openUntil !== null && openUntil > now)
    return { calls: 0, reason: 'failing', lookAt: openUntil, isProbe: false };
  const places = maxConcurrent === null ? Infinity : Math.max(maxConcurrent - state.inUse, 0);
  let paced = Infinity;
  let pacedAt = now;
  if (requestsPerMinute !== null) {
    const { burst, everyMs } = paceOf(requestsPerMinute);
    const debtMs = Math.max((state.pacedUntil ?? 0) - now, 0);
    // A millionth for what is lost when times become numbers.
    paced = Math.max(Math.floor(burst - debtMs / everyMs + 1e-6), 0);
    pacedAt = now + Math.max(debtMs - (burst - 1) * everyMs, 0);
  }
  const isProbe = openUntil !== null;
  const calls = Math.min(places, paced, isProbe ? 1 : Infinity);
  if (calls === Infinity) return { calls, reason: null, lookAt: now, isProbe };
  if (isProbe && calls === 1) return { calls, reason: 'failing', lookAt: now + PROBE_MS, isProbe };
  return paced <= places
    ? { calls, reason: 'rate', lookAt: Math.max(pacedAt, now), isProbe }
    : { calls, reason: 'concurrency', lookAt: now + LOOK_AGAIN_MS, isProbe };
}

/** What the provider's row says once `calls` more have begun. */
export function beginCalls(
  state: ProviderState,
  calls: number,
): Pick<ProviderState, 'pacedUntil' | 'openUntil' | 'inUse'> {
  const { now, requestsPerMinute, pacedUntil, openUntil } = state;
  if (calls === 0) return { pacedUntil, openUntil, inUse: state.inUse };
  return {
    inUse: state.inUse + calls,
    pacedUntil:
      requestsPerMinute === null
        ? pacedUntil
        : Math.max(pacedUntil ?? 0, now) + calls * paceOf(requestsPerMinute).everyMs,
    openUntil: openUntil === null ? null : now + PROBE_MS,
  };
}

/** A failure that says that the provider does not work, and nothing about the request. */
export function isProviderFailure(failure: {
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
}): boolean {
  const { status } = failure.details;
  // 408, 409 and 425 are of the request, whatever they are called.
  if (typeof status === 'number' && status >= 400)
    return status >= 500 && failure.code !== 'context_overflow';
  return failure.code === 'model_timeout' || failure.code === 'model_unavailable';
}

/**
 * What the provider's row says after a failure.
 *
 * @param seen.hasSucceeded - The worker that tells has had an answer since the failure it told before.
 * @param seen.isProbe - It was the one call that tried.
 */
export function noteFailure(
  state: Pick<ProviderState, 'failures' | 'openings' | 'openUntil' | 'breakerAfter' | 'now'>,
  seen: { readonly hasSucceeded: boolean; readonly isProbe: boolean },
): Pick<ProviderState, 'failures' | 'openings' | 'openUntil'> {
  const { openings, openUntil, breakerAfter, now } = state;
  const failures = seen.hasSucceeded && openUntil === null ? 1 : state.failures + 1;
  const opens = seen.isProbe || (openUntil === null && failures >= breakerAfter);
  // Calls that were under way when it was closed off say nothing new.
  if (breakerAfter === 0 || !opens) return { failures, openings, openUntil };
  const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(openings, 10), MAX_PAUSE_MS);
  return { failures, openings: openings + 1, openUntil: now + pauseMs };
}
