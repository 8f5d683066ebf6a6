/**
 * Decides which requests a server answers at all. A web page can reach a server on this machine under a name that resolves to it (DNS
 * rebinding), and can send requests whose answers it cannot read. Both are refused before any other check.
 */
import { KernelError } from '@boxcar/kernel/base';
import { type Binding, isLoopbackAddress, plainAddress } from './loopback.js';

/** The name in `name`, `name:port` or `[address]:port`, in the spelling of URLs. Undefined when the text is not valid. */
function nameIn(host: string): string | undefined {
  if (/[/?#@\\\s]/.test(host) || !URL.canParse(`http://${host}`)) return undefined;
  const { hostname } = new URL(`http://${host}`);
  return hostname.endsWith('.') ? hostname.slice(0, -1) : hostname;
}

const badConfig = (field: string, value: string, must: string): KernelError =>
  new KernelError('bad_config', { message: `${field}: '${value}' must be ${must}.`, details: { field } });

/** @throws KernelError `bad_config`. */
export function readAllowedHosts(hosts: readonly string[]): ReadonlySet<string> {
  return new Set(
    hosts.map((host) => {
      const name = nameIn(host);
      if (name === undefined) throw badConfig('allowedHosts', host, 'the name of a host');
      return name;
    }),
  );
}

/** @throws KernelError `bad_config`. */
export function readAllowedOrigins(origins: readonly string[]): ReadonlySet<string> {
  return new Set(
    origins.map((text) => {
      const origin = URL.canParse(text) ? new URL(text).origin : 'null';
      if (origin === 'null' || !/^https?:/.test(origin))
        throw badConfig('allowedOrigins', text, 'an origin such as https://desk.example');
      return origin;
    }),
  );
}

const denied = (message: string): KernelError => new KernelError('origin_denied', { message });

/**
 * @param of.localAddress - The address at which the request arrived.
 * @throws KernelError `origin_denied`.
 */
export function checkHost(
  host: string | undefined,
  of: {
    readonly binding: Binding;
    readonly localAddress: string | undefined;
    readonly allowed: ReadonlySet<string>;
  },
): void {
  const name = host === undefined ? undefined : nameIn(host);
  if (name !== undefined && (of.allowed.has(name) || name === nameIn(of.binding.host) || isOwn(name, of)))
    return;
  throw denied(`This server does not answer by the host name '${host ?? ''}'.`);
}

function isOwn(
  name: string,
  { binding, localAddress }: { readonly binding: Binding; readonly localAddress: string | undefined },
): boolean {
  if (binding.isLoopback) return name === 'localhost' || isLoopbackAddress(name);
  if (localAddress === undefined) return false;
  const own = plainAddress(localAddress);
  return name === own || name === `[${own}]`;
}

/** The headers by which a browser describes the page that sends a request. Other programs do not send them. */
export interface BrowserHeaders {
  readonly origin: string | undefined;
  /** `sec-fetch-site`, because pages can send some requests without an origin. */
  readonly fetchSite: string | undefined;
}

/**
 * @returns The origin of a page that may read the answer; undefined when no page sent the request.
 * @throws KernelError `origin_denied`.
 */
export function checkOrigin(
  { origin, fetchSite }: BrowserHeaders,
  allowed: ReadonlySet<string>,
): string | undefined {
  if (origin !== undefined && allowed.has(origin)) return origin;
  if (origin !== undefined) throw denied(`Pages of '${origin}' may not use this server.`);
  if (fetchSite === 'cross-site' || fetchSite === 'same-site')
    throw denied('Pages of other servers may not use this server.');
  return undefined;
}

/** The headers with which a browser lets the page read the answer. */
export const corsHeaders = (origin: string): Readonly<Record<string, string>> => ({
  'access-control-allow-origin': origin,
  'access-control-expose-headers': 'x-request-id, www-authenticate, allow, retry-after, mcp-session-id',
  vary: 'origin',
});

/** The headers of the answer to a preflight request. */
export const preflightHeaders = (): Readonly<Record<string, string>> => ({
  'access-control-allow-methods': 'GET, POST, PUT, PATCH, DELETE',
  'access-control-allow-headers':
    'authorization, content-type, last-event-id, x-request-id, a2a-version, a2a-extensions, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name',
  'access-control-max-age': '600',
});
