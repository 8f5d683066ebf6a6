/** A failed attempt, and the rule which failures may be tried again. Rule: README.md, "Failures". */
import { type ErrorCode, KernelError, ModelError } from '@boxcar/kernel';
import type { AdapterUsage } from './adapter.js';

/** A failed attempt. Its texts never contain an address, a model or a key of the target. */
export class AdapterError extends KernelError {
  /** True when the same attempt may succeed later. */
  readonly retryable: boolean;
  /** The wait that the platform asks for, counted from its answer. */
  readonly retryAfterMs: number | undefined;
  /** The usage of the failed attempt; null: the platform reported none. */
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

  /** The same failure with the usage of the attempt. */
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

/** `error` and its causes, from the outside in. */
function* causesOf(error: unknown): Generator<object> {
  const seen = new Set<unknown>();
  let current = error;
  while (typeof current === 'object' && current !== null && !seen.has(current)) {
    seen.add(current);
    yield current;
    current = Reflect.get(current, 'cause');
  }
}

/** The code of a network failure, from the error or any of its causes. */
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
 * Whether another attempt may follow a failed one. It may after network errors, HTTP 408, 425, 429 and 5xx, errors with `retryable:
 * true`, and errors whose code is marked as retryable in the catalogue, and after no other failure.
 *
 * @param error - The error of any adapter, including adapters of other programs.
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
