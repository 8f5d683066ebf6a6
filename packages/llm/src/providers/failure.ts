/**
 * Classifies a failure with a code that tells the caller how to react. The rules are pure functions of the evidence. The error bodies of
 * providers differ; common to them is an object with `message`, mostly with `code` or `type`, at some depth.
 */
import { isContextOverflow, isJsonObject, type JsonObject, type ModelErrorCode } from '@boxcar/kernel';

/** The facts about a failed answer of a provider. */
export interface FailureEvidence {
  /** HTTP status; undefined when no answer arrived. */
  readonly status?: number | undefined;
  /** The provider's error object: from an error response, from an event in a stream, or from a body with status 200. */
  readonly error?: ProviderError | undefined;
  /** The code of a network or runtime failure: `ECONNREFUSED`, `UND_ERR_SOCKET`, … */
  readonly network?: string | undefined;
  /** The kind of an answer that is not a valid answer of the provider. */
  readonly answer?: 'html' | 'broken' | 'empty' | 'cut' | 'no_stream' | undefined;
}

export interface ProviderError {
  readonly message: string;
  readonly code?: string | undefined;
  readonly type?: string | undefined;
}

export interface Verdict {
  readonly code: ModelErrorCode;
  readonly canRetry: boolean;
}

/** The HTTP statuses of the error types that providers name in streams, where the HTTP status is always 200. */
const STATUS_OF_TYPE: ReadonlyMap<string, number> = new Map(
  Object.entries({
    invalid_request_error: 400,
    invalid_prompt: 400,
    authentication_error: 401,
    invalid_api_key: 401,
    billing_error: 402,
    insufficient_quota: 402,
    permission_error: 403,
    not_found_error: 404,
    model_not_found: 404,
    request_too_large: 413,
    rate_limit_error: 429,
    rate_limit_exceeded: 429,
    server_error: 500,
    api_error: 500,
    timeout_error: 504,
    overloaded_error: 529,
    // Google's names.
    INVALID_ARGUMENT: 400,
    FAILED_PRECONDITION: 400,
    UNAUTHENTICATED: 401,
    PERMISSION_DENIED: 403,
    NOT_FOUND: 404,
    RESOURCE_EXHAUSTED: 429,
    INTERNAL: 500,
    UNAVAILABLE: 503,
    DEADLINE_EXCEEDED: 504,
  }),
);

const FILTER_CODES = new Set(['content_filter', 'content_policy_violation', 'responsibleaipolicyviolation']);
const CREDIT_WORDS = /credit balance is too low|insufficient (quota|credit|balance)/i;
const MISSING_MODEL_WORDS = /\bmodel\b.{0,200}(does not exist|not found|is not supported|not a valid model)/i;

const UNREACHABLE = new Set([
  'EAI_AGAIN',
  'ECONNABORTED',
  'ECONNREFUSED',
  'ECONNRESET',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EPIPE',
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_SOCKET',
]);
const TIMEOUTS = new Set(['UND_ERR_BODY_TIMEOUT', 'UND_ERR_HEADERS_TIMEOUT']);

const verdict = (code: ModelErrorCode, canRetry: boolean): Verdict => ({ code, canRetry });

/** The status that counts: the response's, or for status 200 the status that its error object stands for. */
export function findStatus({ status, error }: FailureEvidence): number | undefined {
  if (status !== undefined && (status < 200 || status > 299)) return status;
  if (error === undefined) return undefined;
  for (const name of [error.code, error.type]) {
    if (name === undefined) continue;
    if (/^[45]\d\d$/.test(name)) return Number(name);
    const known = STATUS_OF_TYPE.get(name);
    if (known !== undefined) return known;
  }
  return 500;
}

export function judgeFailure(evidence: FailureEvidence): Verdict {
  const { error, network, answer } = evidence;
  const status = findStatus(evidence);
  if (status !== undefined) return judgeStatus(status, error ?? { message: '' });
  if (network !== undefined && TIMEOUTS.has(network)) return verdict('model_timeout', true);
  if (network !== undefined && UNREACHABLE.has(network)) return verdict('model_unavailable', true);
  if (answer === 'cut' || answer === 'empty') return verdict('model_unavailable', true);
  // A page in place of an answer means a wrong address. Broken JSON is a temporary fault.
  return verdict('model_failed', answer === 'broken');
}

function judgeStatus(status: number, error: ProviderError): Verdict {
  const names = [error.code, error.type]
    .filter((name) => name !== undefined)
    .map((name) => name.toLowerCase());
  const isNamed = (known: ReadonlySet<string>): boolean => names.some((name) => known.has(name));
  // With other statuses the words mean something else.
  const isOfRequest = status === 400 || status === 413 || status === 422 || status >= 500;
  const saysTooLong =
    names.some((code) => isContextOverflow({ message: '', code })) ||
    (isOfRequest && isContextOverflow({ message: error.message, status }));
  if (saysTooLong) return verdict('context_overflow', false);
  if (isNamed(FILTER_CODES)) return verdict('model_refused', false);
  const isWithoutCredit = names.includes('insufficient_quota') || CREDIT_WORDS.test(error.message);
  if (status === 401 || status === 402 || status === 403 || isWithoutCredit)
    return verdict('model_unauthorized', false);
  // A request larger than the allowance of a minute fails however long the caller waits. Some hosts answer it with 413.
  if (status === 429 || status === 413)
    return verdict('model_rate_limited', !/request too large/i.test(error.message));
  if (status === 404 || isNamed(new Set(['model_not_found']))) return verdict('model_unknown', false);
  if (status === 400 && MISSING_MODEL_WORDS.test(error.message)) return verdict('model_unknown', false);
  if (status === 408 || status === 409 || status === 425) return verdict('model_unavailable', true);
  if (status === 501 || status === 505) return verdict('model_failed', false);
  return status >= 500 ? verdict('model_unavailable', true) : verdict('model_failed', false);
}

/** Enough for any text of a provider; an event of a stream has no other limit. */
const MAX_TEXT = 64 * 1024;

const textOf = (value: unknown): string | undefined => {
  if (typeof value === 'string') return value.trim() === '' ? undefined : value.slice(0, MAX_TEXT);
  return typeof value === 'number' ? String(value) : undefined;
};

function readErrorObject(value: JsonObject): ProviderError | undefined {
  const message = textOf(value.message) ?? textOf(value.detail) ?? textOf(value.msg);
  const code = textOf(value.code);
  // Google puts the number of the status in `code`, and its name in `status`.
  const type = textOf(value.type) ?? textOf(value.status);
  if (message === undefined && code === undefined) return undefined;
  return { message: message ?? '', code, type };
}

/** The provider's error object in a parsed body or event, at any depth that providers use. */
export function findProviderError(value: unknown): ProviderError | undefined {
  if (!isJsonObject(value)) return undefined;
  const response: unknown = value.response;
  if (isJsonObject(response) && isJsonObject(response.error)) return findProviderError(response);
  if (isJsonObject(value.error)) return readErrorObject(value.error);
  const text = textOf(value.error);
  if (text !== undefined) return { message: textOf(value.message) ?? text, code: undefined, type: undefined };
  return readErrorObject(value);
}

/** The error object in a body of text; undefined when the body is not JSON or has no error object. */
export function findErrorInBody(body: string): ProviderError | undefined {
  try {
    const parsed: unknown = JSON.parse(body);
    // Some gateways answer with a list of one element.
    return findProviderError(Array.isArray(parsed) ? parsed[0] : parsed);
  } catch {
    return undefined;
  }
}
