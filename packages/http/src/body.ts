/** Reads the bodies of requests, up to a limit. */
import { type JsonValue, KernelError, parseJsonValue } from '@boxcar/kernel';

const tooLarge = (limitBytes: number): KernelError =>
  new KernelError('payload_too_large', {
    message: `The body is larger than ${limitBytes} bytes.`,
    next: 'Send less at once.',
    details: { limit_bytes: limitBytes },
  });

/** Checks the content-length before any of the body is read. @throws KernelError `payload_too_large`. */
export function checkLength(headers: Headers, limitBytes: number): void {
  if (Number(headers.get('content-length') ?? 0) > limitBytes) throw tooLarge(limitBytes);
}

/** Counts the bytes that arrive, because a chunked body has no content-length. */
const limiter = (limitBytes: number): TransformStream<Uint8Array, Uint8Array> => {
  let size = 0;
  return new TransformStream({
    transform: (chunk, controller) => {
      size += chunk.byteLength;
      if (size > limitBytes) controller.error(tooLarge(limitBytes));
      else controller.enqueue(chunk);
    },
  });
};

/** Wraps the request so that reading its body beyond the limit fails with `payload_too_large`. */
export function limitBody(request: Request, limitBytes: number): Request {
  if (request.body === null || request.method === 'GET' || request.method === 'HEAD') return request;
  return new Request(request.url, {
    method: request.method,
    headers: request.headers,
    signal: request.signal,
    body: request.body.pipeThrough(limiter(limitBytes)),
    duplex: 'half',
  });
}

const notJson = (why: string): KernelError =>
  new KernelError('bad_request', { message: `body: ${why}.`, details: { field: 'body' } });

/** @throws KernelError `bad_request` when the body is not JSON in UTF-8; `payload_too_large`. */
export async function readJson(request: Request): Promise<JsonValue> {
  const bytes = await request.arrayBuffer();
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    throw notJson(bytes.byteLength === 0 ? 'must be JSON; it is empty' : 'must be JSON in UTF-8');
  }
  return parseJsonValue(value, 'body');
}
