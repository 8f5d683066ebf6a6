/** A client for programs on the same machine: the command line uses it to ask a server, without a database. */
import { ERROR_CATALOGUE, type ErrorCode, errorText, KernelError } from '@boxcar/kernel/base';
import { z } from 'zod';
import { keyOfServer } from './local-state.js';
import { isLoopbackAddress } from './loopback.js';

const ANSWER_MS = 30_000;

/** @throws KernelError `bad_request` when the text is not the address of a server. */
export function readServerUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url !== undefined && url.username === '' && url.search === '' && url.hash === '';
  if (isPlain && /^https?:$/.test(url.protocol)) return url;
  throw new KernelError('bad_request', {
    message: 'url: must be the address of a server, such as http://127.0.0.1:7420.',
    details: { field: 'url' },
  });
}

/** The loopback addresses that a name may mean. On another of these addresses, another account may listen on the same port. */
function loopbacksOf({ protocol, hostname }: URL): readonly string[] {
  if (protocol !== 'http:') return [];
  if (hostname === 'localhost') return ['127.0.0.1', '[::1]'];
  return isLoopbackAddress(hostname) ? [hostname] : [];
}

/**
 * The key that a server of this account has left for its clients, and the address of that server. The key must be sent only to that
 * address. Undefined when no server of this account has announced itself at the address.
 */
export function localAccessFor(
  url: URL,
  folder: string,
): { readonly url: URL; readonly key: string } | undefined {
  for (const hostname of loopbacksOf(url)) {
    const there = new URL(url);
    there.hostname = hostname;
    const found = keyOfServer(folder, there);
    if (found !== undefined) return { url: there, key: found.key };
  }
  return undefined;
}

const problemSchema = z.object({
  code: z.string(),
  detail: z.string(),
  next: z.string().optional(),
  details: z.record(z.string(), z.json()).optional(),
});

const isCode = (code: string): code is ErrorCode => Object.hasOwn(ERROR_CATALOGUE, code);

const unavailable = (url: URL, why: string, cause?: unknown): KernelError =>
  new KernelError('server_unavailable', {
    message: `${url.origin}: ${why}.`,
    details: { url: url.origin },
    cause,
  });

/** Rebuilds the error that the server threw. */
function toError(url: URL, status: number, body: unknown): KernelError {
  const parsed = problemSchema.safeParse(body);
  if (!parsed.success || !isCode(parsed.data.code))
    return unavailable(url, `it answers with status ${status}`);
  const { code, detail, next, details } = parsed.data;
  return new KernelError(code, {
    message: detail,
    ...(next === undefined ? {} : { next }),
    details: details ?? {},
  });
}

export interface ServerRequest {
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | undefined>>;
  /** A request with a body is a POST. */
  readonly body?: unknown;
}

/**
 * Sends one request to a server, without retries.
 *
 * @throws KernelError as the server reports it; `server_unavailable`.
 */
export async function askServer<Answer>(
  { url, key }: { readonly url: URL; readonly key: string },
  { path, query = {}, body }: ServerRequest,
): Promise<Answer> {
  const target = new URL(url.href.replace(/\/$/, '') + path);
  for (const [name, value] of Object.entries(query))
    if (value !== undefined) target.searchParams.set(name, String(value));
  let response: Response;
  let answer: unknown;
  try {
    response = await fetch(target, {
      method: body === undefined ? 'GET' : 'POST',
      // A redirect would send the key to another server.
      redirect: 'manual',
      signal: AbortSignal.timeout(ANSWER_MS),
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    answer = await response.json().catch(() => undefined);
  } catch (error) {
    const { cause } = error as { readonly cause?: unknown };
    throw unavailable(url, errorText(cause ?? error), error);
  }
  if (response.ok && answer !== undefined) return answer as Answer;
  throw toError(url, response.status, answer);
}
