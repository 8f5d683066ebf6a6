/** A failed attempt, and which failures may be tried again. Rule: README.md, "Failures". */
import { type ErrorCode, KernelError, ModelError } from '@boxcar/kernel';
import type { AdapterUsage } from './adapter.js';

/** A failed attempt. No text of it holds an address, a model or a key of the target. */
export class AdapterError extends KernelError {
  /** True when the same attempt can succeed later. */
  readonly retryable: boolean;
  /** How long the platform asks to wait first, counted from its answer. */
  readonly retryAfterMs: number | undefined;
  /** What the attempt has used although it failed; null: nothing was reported. */
  readonly usage: AdapterUsage | null;

  constructor(
    code: ErrorCode,
    options: {
      readonly message: string;
      readonly retryable: boolean;
      readonly retryAfterMs?: number | undefined;
      readonly usage?: AdapterUsage | null | undefined;
      readonly details?: Readonly<Record<string, unknown>>;
    },
  ) {
    const { message, retryable, retryAfterMs, usage = null, details = {} } = options;
    const pause = retryAfterMs === undefined ? {} : { retry_after_ms: retryAfterMs };
    super(code, { message, details: { ...details, retryable, ...pause } });
    this.retryable = retryable;
    this.retryAfterMs = retryAfterMs;
    this.usage = usage;
  }

  /** The same failure, with what the attempt has used. */
  withUsage(usage: AdapterUsage | null): AdapterError {
    if (usage === null || this.usage !== null) return this;
    const { code, problem: message, retryable, retryAfterMs, details } = this;
    return new AdapterError(code, { message, retryable, retryAfterMs, usage, details });
  }
}

const NETWORK_CODES = new Set([
  'EAI_AGAIN',
  'ECONNABORTED',
  'ECONNREFUSED',
  'ECONNRESET',
  'EHOSTDOWN',
  'EHOSTUNREACH',
  'ENETDOWN',
  'ENETRESET',
  'ENETUNREACH',
  'ENOTFOUND',
  'EPIPE',
  'EPROTO',
  'ETIMEDOUT',
  'HPE_INVALID_EOF_STATE',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_SOCKET',
]);

/** 408, 425, 429 and 5xx. */
export const isTransientStatus = (status: number): boolean =>
  status === 408 || status === 425 || status === 429 || (status >= 500 && status <= 599);

/** `error` and what caused it, from the outside in. */
function* causesOf(error: unknown): Generator<object> {
  const seen = new Set<unknown>();
  let current = error;
  while (typeof current === 'object' && current !== null && !seen.has(current)) {
    seen.add(current);
    yield current;
    current = Reflect.get(current, 'cause');
  }
}

/** The code of a failure of the network, wherever it is in the causes. */
export function networkCodeOf(error: unknown): string | undefined {
  for (const cause of causesOf(error)) {
    const code: unknown = Reflect.get(cause, 'code');
    if (typeof code === 'string' && NETWORK_CODES.has(code)) return code;
  }
  return undefined;
}

export interface RetryAdvice {
  readonly retryable: boolean;
  readonly retryAfterMs?: number | undefined;
}

/**
 * Whether a failed attempt may be followed by another one: network errors, HTTP 408, 425, 429 and 5xx, errors that say
 * `retryable: true`, and codes of the catalogue that are marked so. Nothing else.
 *
 * @param error - Whatever an adapter threw, adapters of other programs included.
 */
export function adviseRetry(error: unknown): RetryAdvice {
  if (error instanceof ModelError) return { retryable: error.canRetry, retryAfterMs: error.retryAfterMs };
  if (typeof error !== 'object' || error === null) return { retryable: false };
  const own: unknown = Reflect.get(error, 'retryable');
  const pause: unknown = Reflect.get(error, 'retryAfterMs');
  const retryAfterMs = typeof pause === 'number' && pause >= 0 ? { retryAfterMs: pause } : {};
  if (typeof own === 'boolean') return { retryable: own, ...retryAfterMs };
  if (error instanceof KernelError) return { retryable: error.entry.canRetry, ...retryAfterMs };
  const status: unknown = Reflect.get(error, 'status') ?? Reflect.get(error, 'statusCode');
  const isTransient = typeof status === 'number' && isTransientStatus(status);
  return { retryable: isTransient || networkCodeOf(error) !== undefined, ...retryAfterMs };
}
