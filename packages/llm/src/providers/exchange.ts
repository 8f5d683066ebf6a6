/**
 * One HTTP exchange with a provider: a `fetch` for the SDK, and a record of the answer for failures.
 *
 * X1  Redirects are not followed: the key would be sent along.
 * X2  A stream that has begun and is silent for `idleMs` is given up. Any byte resets the clock.
 * X3  When a stream was requested and the answer is not a stream, the answer never reaches the SDK's stream parser, which would see
 *     nothing in it.
 * X4  At most 64 KiB of a body that is not an answer are read: error messages are short, whatever the provider sends.
 */
import { ModelError, startTimer, type Timer } from '@boxcar/kernel';

const MAX_ANSWER_BYTES = 64 * 1024 * 1024;
/** The part of an error body that is read (X4). */
export const MAX_ERROR_BYTES = 64 * 1024;

export interface Exchange extends Disposable {
  readonly fetch: typeof globalThis.fetch;
  /** Aborts with the caller's signal, when the answer goes silent, and when the exchange is over. */
  readonly signal: AbortSignal;
  /** The reason when the exchange itself gave up. */
  readonly fault: ModelError | undefined;
  readonly status: number | undefined;
  readonly headers: Headers | undefined;
  /** Bytes of the request's body; 0: no request was sent. */
  readonly sentBytes: number;
  readonly isStreaming: boolean;
  /** Bytes of the answer's body so far. */
  readonly bytes: number;
  /** The body that was read when it was not the requested stream (X3). */
  readonly unexpectedBody: string | undefined;
}

/** Thrown into the SDK, which passes it through; `Exchange` has the facts. */
class UnexpectedAnswer extends Error {
  override readonly name = 'UnexpectedAnswer';
}

const isStream = (response: Response): boolean =>
  !/^(text\/html|application\/(problem\+)?json)\b/i.test(response.headers.get('content-type') ?? '');

export function openExchange(options: {
  readonly signal: AbortSignal;
  readonly idleMs: number;
  readonly isStreaming: boolean;
}): Exchange {
  const over = new AbortController();
  const signal = AbortSignal.any([options.signal, over.signal]);
  let timer: Timer | undefined;
  const seen: {
    fault?: ModelError;
    status?: number;
    headers?: Headers;
    sentBytes: number;
    bytes: number;
    unexpectedBody?: string;
  } = { sentBytes: 0, bytes: 0 };

  const giveUp = (code: 'model_timeout' | 'model_failed', message: string): void => {
    seen.fault = new ModelError(code, message, { canRetry: code === 'model_timeout' });
    over.abort(seen.fault);
  };
  const watch = (): void => {
    timer?.clear();
    timer = startTimer(options.idleMs, () =>
      giveUp(
        'model_timeout',
        `fell silent for ${options.idleMs / 1000} s after ${seen.bytes} bytes of its answer`,
      ),
    );
  };
  const count = (isAnswer: boolean) =>
    new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        const room = MAX_ERROR_BYTES - seen.bytes;
        seen.bytes += chunk.byteLength;
        if (!isAnswer && chunk.byteLength > room) {
          timer?.clear();
          controller.enqueue(chunk.subarray(0, room));
          controller.terminate();
          return;
        }
        if (seen.bytes > MAX_ANSWER_BYTES)
          giveUp('model_failed', `sent more than ${MAX_ANSWER_BYTES} bytes in one answer`);
        else watch();
        controller.enqueue(chunk);
      },
      flush: () => timer?.clear(),
    });

  const observe: typeof globalThis.fetch = async (input, init) => {
    seen.sentBytes = typeof init?.body === 'string' ? Buffer.byteLength(init.body) : 0;
    const response = await fetch(input, { ...init, redirect: 'manual', signal });
    seen.status = response.status;
    seen.headers = response.headers;
    if (response.body === null) return response;
    watch();
    const { status, statusText, headers } = response;
    const isExpected = !options.isStreaming || isStream(response);
    const body = response.body.pipeThrough(count(response.ok && isExpected));
    const observed = new Response(body, { status, statusText, headers });
    if (isExpected || !response.ok) return observed;
    seen.unexpectedBody = await observed.text();
    throw new UnexpectedAnswer(`the answer is ${headers.get('content-type')}, not an event stream`);
  };

  return {
    fetch: observe,
    signal,
    get fault() {
      return seen.fault;
    },
    get status() {
      return seen.status;
    },
    get headers() {
      return seen.headers;
    },
    get sentBytes() {
      return seen.sentBytes;
    },
    isStreaming: options.isStreaming,
    get bytes() {
      return seen.bytes;
    },
    get unexpectedBody() {
      return seen.unexpectedBody;
    },
    [Symbol.dispose]: () => {
      timer?.clear();
      over.abort(new Error('the exchange is over'));
    },
  };
}
