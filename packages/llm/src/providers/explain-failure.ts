/** Turns any error of an exchange into the `ModelError` that names it. */
import { ModelError, type ModelErrorCode, type ModelUsage, maskSecrets } from '@boxcar/kernel';
import { CutOff, StreamError } from './collect.js';
import { type Exchange, MAX_ERROR_BYTES } from './exchange.js';
import {
  type FailureEvidence,
  findErrorInBody,
  findProviderError,
  findStatus,
  judgeFailure,
  type ProviderError,
} from './failure.js';
import { findReportedUsage } from './reported-usage.js';
import { readRetryAfter } from './retry-after.js';
import { type UsageMeter, usageOfFailure } from './usage.js';

const MAX_WORDS = 500;

export interface Caller {
  /** The prefix of the model's name. */
  readonly provider: string;
  readonly keyVariable: string;
  readonly baseUrlVariable: string;
  readonly baseUrl: string;
  readonly apiKey: string | undefined;
  /** Ids that are in every error. */
  readonly details: Readonly<Record<string, unknown>>;
  /** `Turn …, step …`. */
  readonly where: string;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Foreign text, cut to the length that an error may hold. */
export const shorten = (text: string): string => {
  const words = text.slice(0, MAX_ERROR_BYTES).replaceAll(/\s+/g, ' ').trim();
  return words.length > MAX_WORDS ? `${words.slice(0, MAX_WORDS).toWellFormed()}…` : words;
};

const looksLikeHtml = (body: string): boolean => /^\s*<(!doctype|html|head|body|\?xml)/i.test(body);

const titleOf = (body: string): string => /<title(?:\s[^<>]*)?>([^<]*)</i.exec(body)?.[1] ?? body;

/** `error` and its causes, from the outside in. */
function causesOf(error: unknown): readonly Error[] {
  const causes: Error[] = [];
  let current = error;
  while (current instanceof Error && !causes.includes(current)) {
    causes.push(current);
    current = current.cause;
  }
  return causes;
}

const textMember = (value: unknown, name: string): string | undefined => {
  const member: unknown = typeof value === 'object' && value !== null ? Reflect.get(value, name) : undefined;
  return typeof member === 'string' ? member : undefined;
};

/** A code of Node or undici. These are in upper case; no provider's code is. */
const networkCodeOf = (causes: readonly Error[]): string | undefined =>
  causes.map((cause) => textMember(cause, 'code')).findLast((code) => /^[A-Z][A-Z0-9_]+$/.test(code ?? ''));

const bodyOf = (causes: readonly Error[], exchange: Exchange): string | undefined =>
  (
    exchange.unexpectedBody ??
    causes.map((cause) => textMember(cause, 'responseBody')).find((body) => body !== undefined)
  )?.slice(0, MAX_ERROR_BYTES);

const valueIn = (cause: Error): unknown => ('value' in cause ? cause.value : undefined);

function providerErrorOf(causes: readonly Error[], body: string | undefined): ProviderError | undefined {
  const inStream = causes.find((cause) => cause instanceof StreamError)?.cause;
  if (inStream !== undefined && !(inStream instanceof Error)) return findProviderError(inStream);
  // An event that the SDK's provider cannot read: its error holds the event.
  const event: unknown =
    inStream === undefined ? undefined : causes.map(valueIn).find((value) => value !== undefined);
  if (event !== undefined) return findProviderError(event);
  return body === undefined ? undefined : findErrorInBody(body);
}

/** The usage reported with the error, or in the whole answer that arrived in place of a stream. */
function reportedUsageOf(causes: readonly Error[], body: string | undefined): ModelUsage | undefined {
  const inAnswer = causes.find((cause) => cause instanceof StreamError || cause instanceof CutOff)?.cause;
  return findReportedUsage(inAnswer ?? (body === undefined ? undefined : parseJson(body)));
}

const isBrokenJson = (causes: readonly Error[]): boolean =>
  causes.some((cause) =>
    /JSONParseError|TypeValidationError|InvalidResponseData|SyntaxError/.test(cause.name),
  );

function answerOf(
  causes: readonly Error[],
  body: string | undefined,
  exchange: Exchange,
): FailureEvidence['answer'] {
  if (body !== undefined && looksLikeHtml(body)) return 'html';
  const isOk = exchange.status !== undefined && exchange.status < 300;
  if (isOk && exchange.bytes === 0) return 'empty';
  const saysCut = causes.some(
    (cause) => cause instanceof CutOff || /terminated|without a finish reason/.test(cause.message),
  );
  if (saysCut) return 'cut';
  if (exchange.unexpectedBody !== undefined) return 'no_stream';
  return isOk && isBrokenJson(causes) ? 'broken' : undefined;
}

/** The provider's failure in words; `words` is the provider's own text. */
function describe(evidence: FailureEvidence, words: string, causes: readonly Error[]): string {
  if (evidence.error !== undefined) {
    const named = words === '' ? (evidence.error.code ?? '') : words;
    const isInAnswer = evidence.status !== undefined && evidence.status < 300;
    return isInAnswer ? `broke its answer off: ${named}` : `answered ${evidence.status}: ${named}`;
  }
  switch (evidence.answer) {
    case 'html':
      return `answered ${evidence.status} with a web page: ${words}`;
    case 'empty':
      return 'gave an empty answer';
    case 'cut':
      return 'broke its answer off before the end';
    case 'no_stream':
      return 'answered in one piece where a stream was asked for; set model_settings.stream to false';
    case 'broken':
      return 'answered with broken or unknown JSON';
    case undefined:
      break;
    default:
      return evidence.answer satisfies never;
  }
  if (evidence.status !== undefined && evidence.status > 299)
    return `answered ${evidence.status}${words === '' ? '' : `: ${words}`}`;
  const why = shorten(causes.at(-1)?.message ?? '');
  return evidence.network === undefined
    ? `could not be asked: ${why}`
    : `cannot be reached (${evidence.network})${why === '' ? '' : `: ${why}`}`;
}

const adviceOf = (code: ModelErrorCode, caller: Caller): string => {
  if (code === 'model_unauthorized') return ` Check ${caller.keyVariable} of the workers.`;
  if (code === 'model_unknown') return ` Check the model's name and ${caller.baseUrlVariable}.`;
  return '';
};

/** Removes the key wherever a provider repeats it, even a key that is too short to be masked as a declared secret. */
const conceal = (text: string, { apiKey = '', keyVariable }: Caller): string =>
  maskSecrets(text, [{ name: keyVariable, value: apiKey }]);

/** The host alone: a path may give away secrets. */
const hostOf = (baseUrl: string): string => (URL.canParse(baseUrl) ? new URL(baseUrl).host : '');

/**
 * The failure of one exchange. Errors of the caller's own abort must not be passed in.
 *
 * @param options.now - Clock for a `retry-after` that is a date.
 */
export function explainFailure(
  error: unknown,
  caller: Caller,
  options: { readonly exchange: Exchange; readonly meter: UsageMeter; readonly now?: number },
): ModelError {
  const { exchange, meter, now = Date.now() } = options;
  const causes = causesOf(error);
  const body = bodyOf(causes, exchange);
  const fault = exchange.fault;
  const providerError = providerErrorOf(causes, body);
  const evidence: FailureEvidence = {
    status: exchange.status,
    error: providerError,
    network: networkCodeOf(causes),
    answer: answerOf(causes, body, exchange),
  };
  const status = findStatus(evidence);
  const usage = usageOfFailure(meter, {
    reported: reportedUsageOf(causes, body),
    status: exchange.status,
    network: evidence.network,
    hasError: providerError !== undefined,
    isPage: evidence.answer === 'html',
    sentBytes: exchange.sentBytes,
    receivedBytes: exchange.bytes,
    isStreaming: exchange.isStreaming,
  });
  const { code, canRetry } = fault ?? judgeFailure(evidence);
  const isPage = evidence.answer === 'html' && body !== undefined;
  const ownWords = providerError?.message ?? (isPage ? titleOf(body) : (body ?? ''));
  const location = exchange.headers?.get('location');
  const isRedirect = status !== undefined && status >= 300 && status < 400;
  // The key is concealed before the text is cut: a cut key would not be found.
  const words = shorten(
    conceal(isRedirect ? `it redirects to ${hostOf(location ?? '') || 'elsewhere'}` : ownWords, caller),
  );
  const did = fault?.message ?? describe(evidence, words, causes);
  const retryAfterMs =
    canRetry && exchange.headers !== undefined ? readRetryAfter(exchange.headers, now) : undefined;
  const requestId = exchange.headers?.get('x-request-id') ?? exchange.headers?.get('request-id');
  const named = {
    status,
    host: hostOf(caller.baseUrl),
    provider_code: providerError?.code,
    provider_type: providerError?.type,
    network: evidence.network,
    request_id: requestId ?? undefined,
    variable: code === 'model_unauthorized' ? caller.keyVariable : undefined,
    retry_after_ms: retryAfterMs,
  };
  const details = Object.entries(named).filter(([, value]) => value !== undefined);
  const clean = details.map(([name, value]): [string, unknown] => [
    name,
    typeof value === 'string' ? shorten(conceal(value, caller)) : value,
  ]);
  return new ModelError(
    code,
    conceal(`${caller.where}: ${caller.provider} ${did}.${adviceOf(code, caller)}`, caller),
    {
      canRetry,
      retryAfterMs,
      usage,
      details: { ...caller.details, ...Object.fromEntries(clean) },
    },
  );
}
