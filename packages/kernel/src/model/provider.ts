/**
 * The limits of a model provider for the whole pool: concurrent calls, calls per minute, and no calls while the
 * provider fails.
 *
 * P1  At most `maxConcurrent` calls run at once, and at most `requestsPerMinute` calls begin in any minute.
 * P2  After `breakerAfter` failures in a row, no call is made for a pause. Then one call at a time tries, until a call
 *     succeeds.
 * P3  A kept place only reserves room; the call itself pays the rate. So an unused kept place costs nothing, and an
 *     earlier turn may take it.
 * Source: docs/reference/models.md, "Limits of a provider".
 */

export interface ProviderState {
  readonly maxConcurrent: number | null;
  readonly requestsPerMinute: number | null;
  /** Failures in a row that open the breaker; 0 = never. */
  readonly breakerAfter: number;
  /** The time at which the rate has paid for all calls begun so far, in milliseconds like every time here. */
  readonly pacedUntil: number | null;
  /** No call may begin before this time; when it is in the past, one call may try. Null = the provider works. */
  readonly openUntil: number | null;
  readonly failures: number;
  readonly openings: number;
  /** The time of the first of the failures in a row. */
  readonly failingSince: number | null;
  /** Calls in progress. */
  readonly inUse: number;
  /** Places kept for turns that were woken and have not called yet. */
  readonly kept: number;
  /** A trial call is in progress, for less than {@link PROBE_MS}. */
  readonly isProbing: boolean;
  readonly now: number;
}

export const DEFAULT_BREAKER_AFTER = 10;
/** How long a trial call to a failing provider blocks the next trial; the call itself may take longer. */
export const PROBE_MS = 60_000;
const FIRST_PAUSE_MS = 10_000;
const MAX_PAUSE_MS = 300_000;
/**
 * The delay after which a turn that waits for a place checks again by itself. A killed worker frees its place without a
 * notification.
 */
const LOOK_AGAIN_MS = 2_000;

/** Several APIs of one account share one name: limits, breaker and prices are those of the account. */
const ACCOUNTS: Readonly<Record<string, string>> = { 'openai-chat': 'openai' };

/**
 * The provider of a model: the part of its name before the first ':', or the account's name for one of several APIs.
 */
export function providerOf(model: string): string {
  const prefix = model.split(':', 1)[0] ?? model;
  return Object.hasOwn(ACCOUNTS, prefix) ? (ACCOUNTS[prefix] ?? prefix) : prefix;
}

/** The model's name under the name of its account. */
export const accountModelOf = (model: string): string => {
  const at = model.indexOf(':');
  return at < 0 ? model : `${providerOf(model)}${model.slice(at)}`;
};

/**
 * The rate as a bucket: `burst` calls at once, then one call every `everyMs`. The burst is a tenth of the limit; the
 * refill of one minute makes up the rest. So no minute, wherever it begins, has more calls than the limit.
 */
export function paceOf(requestsPerMinute: number): { readonly burst: number; readonly everyMs: number } {
  const burst = Math.ceil(requestsPerMinute / 10);
  return { burst, everyMs: 60_000 / (requestsPerMinute - burst + 1) };
}

export interface Room {
  /** Calls that may begin now. */
  readonly calls: number;
  /** Why no more calls may begin; null when nothing limits them. */
  readonly reason: 'failing' | 'rate' | 'concurrency' | null;
  /** When the turns without room check again. */
  readonly lookAt: number;
  /** True when the only call allowed is a trial of whether the provider works again. */
  readonly isProbe: boolean;
}

/** How many calls may begin in addition to the kept places, and which limit stops further calls. */
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
    // The millionth compensates for rounding when times become numbers.
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

/** A turn that asks to begin a call now. */
export interface Asking {
  /** A place is kept for this turn. */
  readonly hasPlace: boolean;
  /** Turns that came earlier are still waiting. */
  readonly isBehind: boolean;
  /** Places kept for turns that came before this turn and do not ask at this moment. */
  readonly keptBefore: number;
}

/**
 * Chooses the turns that may call: in their order, without the places kept for earlier turns. A place that is kept for
 * a later turn does not stop them.
 *
 * @param asking - In order of arrival, the earliest first.
 * @param calls - How many calls may begin at all, kept places not deducted.
 */
export function chooseCallers<T extends Asking>(asking: readonly T[], calls: number): readonly T[] {
  const chosen: T[] = [];
  for (const turn of asking)
    if ((turn.hasPlace || !turn.isBehind) && chosen.length + turn.keptBefore < calls) chosen.push(turn);
  return chosen;
}

/** The provider's row after `calls` more calls have begun. */
export function beginCalls(state: ProviderState, calls: number): Pick<ProviderState, 'pacedUntil' | 'inUse'> {
  const { now, requestsPerMinute, pacedUntil, inUse } = state;
  if (calls === 0 || requestsPerMinute === null) return { pacedUntil, inUse: inUse + calls };
  const paid = calls * paceOf(requestsPerMinute).everyMs;
  return { inUse: inUse + calls, pacedUntil: Math.max(pacedUntil ?? 0, now) + paid };
}

/** A failure that shows that the provider does not work, independent of the request. */
export function isProviderFailure(failure: {
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
}): boolean {
  const { status } = failure.details;
  // Statuses 408, 409 and 425 concern the request, whatever their code is.
  if (typeof status === 'number' && status >= 400)
    return status >= 500 && failure.code !== 'context_overflow';
  return failure.code === 'model_timeout' || failure.code === 'model_unavailable';
}

/**
 * A failed call that the provider has answered: the failure concerns the request. Without a key or an address, no
 * provider was called.
 */
export function isProviderAnswer(failure: {
  readonly code: string;
  readonly details: Readonly<Record<string, unknown>>;
}): boolean {
  if (isProviderFailure(failure) || failure.code === 'bad_config') return false;
  const isUnasked = failure.code === 'model_unauthorized' || failure.code === 'model_unknown';
  return !isUnasked || typeof failure.details.status === 'number';
}

/**
 * The provider's row after a failure.
 *
 * @param seen.hasSucceeded - Some worker has received an answer since the first of the failures in a row.
 * @param seen.isProbe - The failed call was the trial call.
 * @param seen.allTold - Every worker has reported its answers since then. Before that the breaker does not open,
 * because the failures may come from a single host with a broken network.
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
  // Calls that were in progress when the breaker opened add no information.
  if (breakerAfter === 0 || !opens) return { failures, failingSince, openings, openUntil };
  const pauseMs = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(openings, 10), MAX_PAUSE_MS);
  return { failures, failingSince, openings: openings + 1, openUntil: now + pauseMs };
}
