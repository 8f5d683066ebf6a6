/** The routes that other packages mount on the HTTP frame. */
import { type JsonValue, KernelError, SCOPES, type Scope } from '@boxcar/kernel';
import type { KeyPrincipal, Log } from '@boxcar/runtime';
import type { EventSource } from './event-stream.js';

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** A request that has passed the checks. */
export interface PublicCall {
  /** Reading the body beyond the limit fails with `payload_too_large`. */
  readonly request: Request;
  readonly url: URL;
  /** The decoded values of the path parameters. */
  readonly params: Readonly<Record<string, string>>;
  readonly requestId: string;
  /** Fires when the client has disconnected. */
  readonly signal: AbortSignal;
  /** Fires when the server stops: waiting requests are then answered at once. */
  readonly closing: AbortSignal;
  /** Each log line contains the id of the request. */
  readonly log: Log;
  /** @throws KernelError `bad_request`, `payload_too_large`. */
  json(): Promise<JsonValue>;
  /** Answers with server-sent events. */
  events(source: EventSource): Response;
}

/** The principal of a request: a key, or a token of an issuer. All tokens of a subject have the same `keyId`. */
export interface CallPrincipal extends KeyPrincipal {
  /** The time at which a token expires, in milliseconds since 1970. */
  readonly expiresAt?: number | undefined;
}

/** The tokens that a route accepts in addition to keys. */
export interface TokenDoor {
  /** Where a client reads which issuer gives tokens. Refusals name this address. */
  readonly metadataUrl: string;
  /** @throws KernelError `unauthorized`, `permission_denied`; `issuer_unavailable`, `database_unavailable`. */
  authenticate(token: string): Promise<CallPrincipal>;
}

export interface Call extends PublicCall {
  readonly principal: CallPrincipal;
  /** Whether the key or token is still valid. True while the database or the issuer does not answer. */
  isStillAllowed(): Promise<boolean>;
}

/** The part that all routes have. */
export interface RouteBase {
  readonly method: Method;
  /** `/runs/:run_id/approvals`. */
  readonly path: string;
  /** Default: the limit of the frame. */
  readonly bodyLimitBytes?: number | undefined;
}

/** A route without a scope does not compile, and is also refused at mounting. */
export type Route =
  | (RouteBase & {
      readonly scope: Scope;
      /** Default: only keys are accepted. */
      readonly tokens?: TokenDoor | undefined;
      handle(call: Call): Response | Promise<Response>;
    })
  | (RouteBase & { readonly scope: 'public'; handle(call: PublicCall): Response | Promise<Response> });

/** All paths that are answered without a key. */
const PUBLIC_PATHS: ReadonlySet<string> = new Set([
  '/healthz',
  // Tells clients without a token which issuer gives tokens (RFC 9728).
  '/.well-known/oauth-protected-resource',
  '/.well-known/oauth-protected-resource/mcp',
]);

const PATH = /^(?:\/:?[A-Za-z0-9._-]+)+$/;

/** Checks the route at run time, because JavaScript programs can mount routes too. @throws KernelError `bad_config`. */
export function checkRoute({ method, path, scope }: Route): void {
  const refuse = (why: string): never => {
    throw new KernelError('bad_config', {
      message: `Route ${method} ${path}: ${why}.`,
      next: `Give it one of these scopes: ${SCOPES.join(', ')}.`,
      details: { field: 'scope' },
    });
  };
  if (!PATH.test(path)) refuse('its path must consist of words and parameters such as /runs/:run_id');
  if (scope === 'public' && !PUBLIC_PATHS.has(path)) refuse('it may not be public');
  if (scope !== 'public' && !SCOPES.includes(scope)) refuse('it has no scope');
}

/**
 * The parameters of a path, each decoded once.
 *
 * @throws KernelError `bad_request` for a part that is not percent-encoded UTF-8.
 */
export function readParams(path: string, url: URL): Readonly<Record<string, string>> {
  const given = url.pathname.split('/');
  const named = path
    .split('/')
    .flatMap((part, at) => (part.startsWith(':') ? [[part.slice(1), given[at] ?? ''] as const] : []));
  return Object.fromEntries(
    named.map(([name, text]) => {
      try {
        return [name, decodeURIComponent(text)];
      } catch {
        throw new KernelError('bad_request', {
          message: `${name}: must be percent-encoded UTF-8.`,
          details: { field: name },
        });
      }
    }),
  );
}

/**
 * The query parameters of a URL. Each name may occur once.
 *
 * @throws KernelError `bad_request` for a name that is given twice.
 */
export function readQuery(url: URL): Readonly<Record<string, string>> {
  const query: Record<string, string> = Object.create(null);
  for (const [name, value] of url.searchParams) {
    if (name in query)
      throw new KernelError('bad_request', {
        message: `${name}: must be given once.`,
        details: { field: name },
      });
    query[name] = value;
  }
  return { ...query };
}
