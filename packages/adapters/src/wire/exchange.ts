/**
 * The exchange of one attempt with a platform: a `fetch` for the platforms' clients, a record of the sent bodies, and the reason of a
 * failure.
 *
 * X1  Each request is made once. A status that is not 2xx, a network error and a cut body are one failure, however the platform's client
 *     treats them.
 * X2  An answer is at most 64 MiB. Of an error body, 64 KiB are read, for at most 5 s: the status is what matters.
 * X3  When the exchange is over, all of its connections are closed.
 */
import { KernelError } from '@boxcar/kernel';
import { findErrorInBody, type ProviderError, readRetryAfter } from '@boxcar/llm/failures';
import { AdapterError, networkCodeOf } from '../adapter-error.js';
import type { Concealer } from './conceal.js';
import { ADDRESS_REFUSED } from './http-fetch.js';
import { judge, type Verdict } from './judge.js';
import { abortReason } from './race-abort.js';

const MAX_ANSWER_BYTES = 64 * 1024 * 1024;
const MAX_ERROR_BYTES = 64 * 1024;
const ERROR_BODY_MS = 5_000;
const MAX_WORDS = 500;
const DOCUMENT = /^(text\/html|application\/json)\b/i;

/** The attempt, as errors name it. */
export interface Caller {
  readonly platform: string;
  readonly handoffId: string;
  readonly attempt: number;
  /** The variable that holds the key, for errors about the key. */
  readonly keyVariable: string | undefined;
  readonly concealer: Concealer;
}

export interface ExchangeOptions {
  readonly fetch: typeof globalThis.fetch;
  readonly signal: AbortSignal;
  readonly caller: Caller;
  /** Sent with each request to this origin, and to no other origin. */
  readonly authorization?: { readonly origin: string; readonly value: string } | undefined;
  /** Answers are streams of events; a page or a document instead is a failure. */
  readonly isStream?: boolean | undefined;
  /** @internal Tests use a smaller value. */
  readonly maxAnswerBytes?: number | undefined;
  /** @internal Tests use a smaller value. */
  readonly errorBodyMs?: number | undefined;
}

/** Foreign text in an error. Secrets are concealed before the text is cut, since half a key would not be found. */
export const shorten = (text: string, { concealer }: Pick<Caller, 'concealer'>): string => {
  const words = concealer.error(text.slice(0, MAX_ERROR_BYTES)).replaceAll(/\s+/g, ' ').trim();
  return words.length > MAX_WORDS ? `${words.slice(0, MAX_WORDS).toWellFormed()}…` : words;
};

const ended = (words: string): string => (/[.!?…]$/.test(words) ? words : `${words}.`);

/** The failure of an attempt. `did` is what the platform did, and may end with the platform's own text. */
export function failureOf(
  caller: Caller,
  verdict: Verdict,
  did: string,
  more: {
    readonly retryAfterMs?: number | undefined;
    readonly status?: number | undefined;
    readonly network?: string | undefined;
    readonly platformCode?: string | undefined;
  } = {},
): AdapterError {
  const { platform, handoffId, attempt, keyVariable, concealer } = caller;
  const { retryAfterMs, status, network, platformCode } = more;
  const details = Object.entries({
    handoff_id: handoffId,
    platform,
    attempt,
    status,
    network,
    platform_code: platformCode === undefined ? undefined : shorten(platformCode, caller),
    variable: verdict.code === 'platform_unauthorized' ? keyVariable : undefined,
  }).filter(([, value]) => value !== undefined);
  return new AdapterError(verdict.code, {
    message: concealer.error(`Handoff ${handoffId}, attempt ${attempt}: ${platform} ${ended(did)}`),
    retryable: verdict.retryable,
    retryAfterMs: verdict.retryable ? retryAfterMs : undefined,
    details: Object.fromEntries(details),
  });
}

const looksLikeHtml = (body: string): boolean => /^\s*<(!doctype|html|head|body|\?xml)/i.test(body);

/** The message of an error body. Pages of gateways are left out. */
function wordsOf(body: string, error: ProviderError | undefined, caller: Caller): string {
  const words = error?.message ?? (looksLikeHtml(body) ? '' : body);
  return shorten(words === '' ? (error?.code ?? '') : words, caller);
}

/** At most 64 KiB of an error body: the bytes that arrived before the body broke off or the time was over. */
async function readError({ body }: Response, withinMs: number): Promise<string> {
  if (body === null) return '';
  let text = '';
  const decoder = new TextDecoder();
  const reader = body.getReader();
  const stop = (): void => void reader.cancel().catch(() => undefined);
  const timer = setTimeout(stop, withinMs);
  try {
    while (text.length < MAX_ERROR_BYTES) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
    }
  } catch {
    // The status is sufficient.
  } finally {
    clearTimeout(timer);
    stop();
  }
  return text.slice(0, MAX_ERROR_BYTES);
}

export class Exchange implements Disposable {
  readonly #options: ExchangeOptions;
  readonly #over = new AbortController();
  readonly #bodies: string[] = [];
  readonly signal: AbortSignal;
  #failure: Error | undefined;

  constructor(options: ExchangeOptions) {
    this.#options = options;
    this.signal = AbortSignal.any([options.signal, this.#over.signal]);
  }

  /** Why the exchange itself failed. */
  get failure(): Error | undefined {
    return this.#failure;
  }

  /** Clears the failure, which has been dealt with, so that a later failure counts. */
  forget(): void {
    this.#failure = undefined;
  }

  /** The bodies of all requests, as they were sent. */
  get sentBodies(): readonly string[] {
    return this.#bodies;
  }

  /** Wraps a function of the caller: its errors are the caller's errors, not the platform's. */
  guard<T>(callback: ((value: T) => void) | undefined): (value: T) => void {
    return (value) => {
      try {
        callback?.(value);
      } catch (error) {
        throw this.#fail(error instanceof Error ? error : new Error(String(error)));
      }
    };
  }

  /** For the platform's client. */
  readonly fetch: typeof globalThis.fetch = async (input, init = {}) => {
    const { signal, headers: given, body } = init;
    const headers = new Headers(given);
    const { authorization } = this.#options;
    const url = input instanceof Request ? input.url : String(input);
    if (authorization !== undefined && URL.canParse(url) && new URL(url).origin === authorization.origin)
      headers.set('authorization', authorization.value);
    if (typeof body === 'string') this.#bodies.push(body);
    const all = signal ? AbortSignal.any([signal, this.signal]) : this.signal;
    let response: Response;
    try {
      response = await this.#options.fetch(url, { ...init, headers, signal: all });
    } catch (error) {
      throw this.#fail(this.#explainNetwork(error, 'cannot be reached'));
    }
    if (!response.ok) throw this.#fail(await this.#explainStatus(response));
    const [document] = DOCUMENT.exec(response.headers.get('content-type') ?? '') ?? [];
    if (this.#options.isStream === true && document !== undefined)
      throw this.#fail(await this.#explainDocument(response, document));
    return this.#watch(response);
  };

  #fail(failure: Error): Error {
    if (!this.#options.signal.aborted) this.#failure ??= failure;
    return failure;
  }

  #explainNetwork(error: unknown, did: string): Error {
    const code: unknown = error instanceof Error ? Reflect.get(error, 'code') : undefined;
    const { caller } = this.#options;
    if (code === ADDRESS_REFUSED)
      return failureOf(
        caller,
        { code: 'bad_request', retryable: false },
        'has an agent at an address that is not public; BOXCAR_TARGETS_ALLOW_PRIVATE can allow it',
      );
    const network = networkCodeOf(error);
    if (network !== undefined)
      return failureOf(caller, { code: 'platform_unavailable', retryable: true }, `${did} (${network})`, {
        network,
      });
    if (error instanceof KernelError) return error;
    // The answer is not HTTP, or the certificate is not valid.
    const why = typeof code === 'string' ? ` (${code})` : '';
    return failureOf(caller, { code: 'platform_failed', retryable: false }, `${did}${why}`);
  }

  async #explainStatus(response: Response): Promise<AdapterError> {
    const { status, headers } = response;
    const { caller } = this.#options;
    if (status >= 300 && status < 400)
      return failureOf(caller, { code: 'platform_failed', retryable: false }, `redirects (${status})`, {
        status,
      });
    const body = await this.#readError(response);
    const error = findErrorInBody(body);
    const words = wordsOf(body, error, caller);
    const did = `answered ${status}${words === '' ? '' : `: ${words}`}`;
    return failureOf(caller, judge(status, error), did, {
      status,
      platformCode: error?.code,
      retryAfterMs: readRetryAfter(headers, Date.now()),
    });
  }

  /** Some gateways use the status 200 for errors too. */
  async #explainDocument(response: Response, type: string): Promise<AdapterError> {
    const { caller } = this.#options;
    const error = findErrorInBody(await this.#readError(response));
    if (error === undefined)
      return failureOf(
        caller,
        { code: 'platform_failed', retryable: false },
        `answered with ${type} in place of a stream`,
      );
    const did = `answered with an error: ${wordsOf('', error, caller)}`;
    return failureOf(caller, judge(200, error), did, { platformCode: error.code });
  }

  #readError(response: Response): Promise<string> {
    return readError(response, this.#options.errorBodyMs ?? ERROR_BODY_MS);
  }

  /** The same answer; its bytes are counted, and a broken connection is a failure. */
  #watch(response: Response): Response {
    if (response.body === null) return response;
    const reader = response.body.getReader();
    let bytes = 0;
    let isLeft = false;
    const most = this.#options.maxAnswerBytes ?? MAX_ANSWER_BYTES;
    const body = new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        try {
          const { done, value } = await reader.read();
          if (isLeft) return;
          if (done) return controller.close();
          bytes += value.byteLength;
          if (bytes > most) {
            const large = { code: 'platform_failed', retryable: false } as const;
            throw failureOf(this.#options.caller, large, `sent more than ${most} bytes in one answer`);
          }
          controller.enqueue(value);
        } catch (error) {
          if (isLeft) return;
          const did = `broke its answer off after ${bytes} bytes`;
          const failure = this.#fail(this.#explainNetwork(error, did));
          reader.cancel().catch(() => undefined);
          controller.error(failure);
        }
      },
      cancel: (reason) => {
        isLeft = true;
        return reader.cancel(reason);
      },
    });
    const { status, statusText, headers } = response;
    return new Response(body, { status, statusText, headers });
  }

  /**
   * The error to throw for a failed attempt: the abort's reason, else the failure of the exchange, else `otherwise`.
   *
   * @param error - The error that the platform's client threw.
   */
  explain(error: unknown, otherwise: (error: unknown) => Error): unknown {
    const { signal } = this.#options;
    if (signal.aborted) return abortReason(signal);
    return this.#failure ?? (error instanceof AdapterError ? error : otherwise(error));
  }

  [Symbol.dispose](): void {
    this.#over.abort(new Error('the exchange is over'));
  }
}
