/**
 * What a provider of models allows the whole pool: calls at once, calls per minute, and none while it fails.
 *
 * P1  Never more calls at once than `maxConcurrent`; never more begun in any minute than `requestsPerMinute`.
 * P2  After `breakerAfter` failures in a row no call is made for a while; then one at a time tries, until one succeeds.
 * P3  A place that is kept holds room back, and no more: the rate is paid by the call. So a kept place that is not used costs
 *     nothing, and a turn that came earlier may take it.
 * Source: docs/reference/models.md, "Limits of a provider".
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
  /** When the first of the failures in a row came. */
  readonly failingSince: number | null;
  /** Calls under way. */
  readonly inUse: number;
  /** Places kept for turns that were woken and have not called yet. */
  readonly kept: number;
  /** A call that tries is under way, for less than {@link PROBE_MS}. */
  readonly isProbing: boolean;
  readonly now: number;
}

export const DEFAULT_BREAKER_AFTER = 10;
/** How long a call that tries a failing provider holds up the next one; it may take longer itself. */
export const PROBE_MS = 60_000;
const FIRST_PAUSE_MS = 10_000;
const MAX_PAUSE_MS = 300_000;
/** When a turn that waits for a place looks by itself: the place of a killed worker comes free with no one to tell. */
const LOOK_AGAIN_MS = 2_000;

/** APIs of one account, under one name: its limits, its breaker and its prices are those of the account. */
const ACCOUNTS: Readonly<Record<string, string>> = { 'openai-chat': 'openai' };

/** The provider of a model: the part of its name before the first ':', the account's for one of several APIs. */
export function providerOf(model: string): string {
  const prefix = model.split(':', 1)[0] ?? model;
  return Object.hasOwn(ACCOUNTS, prefix) ? (ACCOUNTS[prefix] ?? prefix) : prefix;
}

/** The model under the name of its account. */
export const accountModelOf = (model: string): string => {
  const at = model.indexOf(':');
  return at < 0 ? model : `${providerOf(model)}${model.slice(at)}`;
};

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

/** How many calls may begin beside those for which places are kept, and what keeps others from it. */
export function findRoom(state: ProviderState): Room {
  const { now, maxConcurrent, requestsPerMinute, openUntil, kept } = state;
  if (openUntil !== null && openUntil > now)
    return { calls: 0, reason: 'failing', lookAt: openUntil, isProbe: false };
  const places = maxConcurrent === null ? Infinity : Math.max(maxConcurrent - state.inUse - kept, 0);
  const again = now + LOOK_AGAIN_MS;
  let paced = Infinity;
  let pacedAt = now;
  if (requestsPerMinute !== null) {
    const { burst, everyMs } = paceOf(requestsPerMinute);
    const debtMs = Math.max((state.pacedUntil ?? 0) - now, 0);
    // A millionth for what is lost when times become numbers.
    paced = Math.max(Math.floor(burst - kept - debtMs / everyMs + 1e-6), 0);
    pacedAt = kept >= burst ? again : now + Math.max(debtMs - (burst - kept - 1) * everyMs, 0);
  }
  const isProbe = openUntil !== null;
  const tries = Math.max(1 - kept - (state.isProbing ? 1 : 0), 0);
  const calls = Math.min(places, paced, isProbe ? tries : Infinity);
  if (calls === Infinity) return { calls, reason: null, lookAt: now, isProbe };
  if (isProbe && calls === tries) return { calls, reason: 'failing', lookAt: again, isProbe };
  return paced <= places
    ? { calls, reason: 'rate', lookAt: Math.max(pacedAt, now), isProbe }
    : { calls, reason: 'concurrency', lookAt: again, isProbe };
}

/** A turn that asks to call now. */
export interface Asking {
  /** A place is kept for it. */
  readonly hasPlace: boolean;
  /** Others wait who came before it. */
  readonly isBehind: boolean;
  /** Places kept for turns that came before it and do not ask at this moment. */
  readonly keptBefore: number;
}

/**
 * Which of the turns that ask may call: in their order, without what is kept for turns before them. A place that is kept for a turn
 * after them does not stop them.
 *
 * @param asking - Whoever came first is first.
 * @param calls - How many may begin at all, kept places not deducted.
 */
export function chooseCallers<T extends Asking>(asking: readonly T[], calls: number): readonly T[] {
  const chosen: T[] = [];
  for (const turn of asking)
    if ((turn.hasPlace || !turn.isBehind) && chosen.length + turn.keptBefore < calls) chosen.push(turn);
  return chosen;
}

/** What the provider's row says once `calls` more have begun. */
export function beginCalls(state: ProviderState, calls: number): Pick<ProviderState, 'pacedUntil' | 'inUse'> {
  const { now, requestsPerMinute, pacedUntil, inUse } = state;
  if (calls === 0 || requestsPerMinute === null) return { pacedUntil, inUse: inUse + calls };
  const paid = calls * paceOf(requestsPerMinute).everyMs;
  return { inUse: inUse + calls, pacedUntil: Math.max(pacedUntil ?? 0, now) + paid };
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

/** A failed call that the provider has answered: its failure is of the request. Without a key or an address nothing was asked. */
export function isProviderAnswer(failure: {
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
}): boolean {
  if (isProviderFailure(failure) || failure.code === 'bad_config') return false;
  const isUnasked = failure.code === 'model_unauthorized' || failure.code === 'model_unknown';
  return !isUnasked || typeof failure.details.status === 'number';
}

/**
 * What the provider's row says after a failure.
 *
 * @param seen.hasSucceeded - Some worker has had an answer since the first of the failures in a row.
 * @param seen.isProbe - It was the one call that tried.
 * @param seen.allTold - Every worker has told of its answers since then. Before that nothing is closed off: the failures may be those
 * of one host whose network is broken.
 */
export function noteFailure(
  state: Pick<ProviderState, 'failures' | 'failingSince' | 'openings' | 'openUntil' | 'breakerAfter' | 'now'>,
  seen: { readonly hasSucceeded: boolean; readonly isProbe: boolean; readonly allTold: boolean },
): Pick<ProviderState, 'failures' | 'failingSince' | 'openings' | 'openUntil'> {
  const { openings, openUntil, breakerAfter, now } = state;
  const isNew = state.failingSince === null || (seen.hasSucceeded && openUntil === null);
  const failures = seen.hasSucceeded && openUntil === null ? 1 : state.failures + 1;
  const failingSince = isNew ? now : state.failingSince;
  const opens = seen.isProbe || (openUntil === null && failures >= breakerAfter && seen.allTold);
  // Calls that were under way when it was closed off say nothing new.
  if (breakerAfter === 0 || !opens) return { failures, failingSince, openings, openUntil };
  const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(openings, 10), MAX_PAUSE_MS);
  return { failures, failingSince, openings: openings + 1, openUntil: now + pauseMs };
}
