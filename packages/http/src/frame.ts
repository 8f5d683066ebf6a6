/**
 * The HTTP frame, on which all HTTP routes are mounted. Each request passes these checks, in this order, before its route is called.
 *
 * F1  The request gets an id, which is in each of its log lines and in its answer.
 * F2  Host and origin: web pages cannot use this server unless they are allowed to.
 * F3  A body whose content-length is above the limit is refused. A body without a length is cut off at the limit, after its key was
 *     checked.
 * F4  The key, read from its row, and its scope. Some routes also accept tokens of an issuer. Each route has a scope; few routes are
 *     public.
 * F5  Every error is answered as problem details. An error without a known code is answered as `internal_error`, without any details.
 * Rule: docs/reference/http.md.
 */
import { KernelError } from '@boxcar/kernel';
import { type Log, type Runtime, silentLog } from '@boxcar/runtime';
import { hasUsableKey } from '@boxcar/store';
import { getRequestListener, type HttpBindings } from '@hono/node-server';
import { Hono } from 'hono';
import { authenticate, challengeFor } from './authenticate.js';
import { checkLength, limitBody, readJson } from './body.js';
import {
  type EventSource,
  type EventStreamLimits,
  eventStreamResponse,
  readLastEventId,
} from './event-stream.js';
import {
  checkHost,
  checkOrigin,
  corsHeaders,
  preflightHeaders,
  readAllowedHosts,
  readAllowedOrigins,
} from './host-check.js';
import { type Binding, DEFAULT_HOST, resolveBinding } from './loopback.js';
import { problemResponse, toProblem } from './problem.js';
import { requestIdOf } from './request-id.js';
import { type CallPrincipal, checkRoute, type PublicCall, type Route, readParams } from './route.js';
import { keepSeen, type Seen, seenIn } from './seen.js';
import { HttpServer, type ServerLimits } from './server.js';
import { Unreadable } from './unreadable.js';

const MAX_BODY_BYTES = 1_048_576;
const HEADERS_MS = 10_000;
const REQUEST_MS = 30_000;
const HEARTBEAT_MS = 15_000;
const STALL_MS = 30_000;
const GRACE_MS = 10_000;

export interface HttpFrameOptions extends Partial<ServerLimits>, Partial<EventStreamLimits> {
  readonly runtime: Pick<Runtime, 'pool'>;
  /** An address or a host name of this machine. Default: 127.0.0.1. */
  readonly host?: string | undefined;
  /** 0: any free port. */
  readonly port: number;
  /** Names under which clients reach the server, in addition to its own address. */
  readonly allowedHosts?: readonly string[] | undefined;
  /** The origins of web pages that may use the server. Default: none. */
  readonly allowedOrigins?: readonly string[] | undefined;
  /** Default: 1 MiB. */
  readonly bodyLimitBytes?: number | undefined;
  readonly log?: Log | undefined;
}

export interface HttpAddress {
  /** With the port, without a trailing slash. */
  readonly url: string;
  readonly port: number;
  readonly isLoopback: boolean;
}

interface Env {
  readonly Bindings: HttpBindings;
}

type ClosedRoute = Exclude<Route, { readonly scope: 'public' }>;

const HEALTH: Route = {
  method: 'GET',
  path: '/healthz',
  scope: 'public',
  handle: () => Response.json({ status: 'ok' }, { headers: { 'cache-control': 'no-store' } }),
};

const urlOf = (address: string, port: number): string =>
  `http://${address.includes(':') ? `[${address}]` : address}:${port}`;

/** Serves the routes that are mounted on it. */
export class HttpFrame {
  readonly #options: HttpFrameOptions;
  readonly #log: Log;
  readonly #hosts: ReadonlySet<string>;
  readonly #origins: ReadonlySet<string>;
  readonly #bodyLimitBytes: number;
  readonly #routes: Route[] = [];
  readonly #closing = new AbortController();
  readonly #server: HttpServer;
  #app: Hono<Env> | undefined;
  #binding: Binding | undefined;
  #close: Promise<void> | undefined;

  /** @throws KernelError `bad_config` for hosts and origins that are not valid. */
  constructor(options: HttpFrameOptions) {
    this.#options = options;
    this.#log = options.log ?? silentLog;
    this.#hosts = readAllowedHosts(options.allowedHosts ?? []);
    this.#origins = readAllowedOrigins(options.allowedOrigins ?? []);
    this.#bodyLimitBytes = options.bodyLimitBytes ?? MAX_BODY_BYTES;
    const unreadable = new Unreadable(this.#log);
    const listener = getRequestListener((request, env) => this.#answer(request, env as HttpBindings), {
      overrideGlobalObjects: false,
      errorHandler: (error) => unreadable.refuseRequest(error),
    });
    this.#server = new HttpServer(listener, {
      headersMs: options.headersMs ?? HEADERS_MS,
      requestMs: options.requestMs ?? REQUEST_MS,
      unreadable,
    });
    this.mount([HEALTH]);
  }

  /** All mounted routes. */
  get routes(): readonly Route[] {
    return this.#routes;
  }

  /**
   * @throws KernelError `bad_config` for a route without a scope, for a route that is already mounted, and after the frame has begun to
   * listen.
   */
  mount(routes: readonly Route[]): this {
    for (const route of routes) {
      checkRoute(route);
      const { method, path } = route;
      const isDouble = this.#routes.some((other) => other.method === method && other.path === path);
      if (isDouble || this.#app !== undefined)
        throw new KernelError('bad_config', {
          message: `Route ${method} ${path}: ${isDouble ? 'it is mounted already' : 'the server has begun to listen'}.`,
          next: 'Mount each route once, before the server listens.',
        });
      this.#routes.push(route);
    }
    return this;
  }

  /**
   * Begins to answer requests. When other machines can reach the address, there must be a key or a route that accepts tokens.
   *
   * @throws KernelError `bad_config`, `port_in_use`; `database_unavailable`.
   */
  async listen(): Promise<HttpAddress> {
    this.#checkOpen();
    const binding = await resolveBinding(this.#options.host ?? DEFAULT_HOST);
    if (!binding.isLoopback && !(await this.#hasClients()))
      throw new KernelError('bad_config', {
        message: `host: '${binding.host}' can be reached from other machines, and no API key exists that a client could use.`,
        next: 'Make a key first (boxcar keys create), or listen on 127.0.0.1.',
        details: { field: 'host' },
      });
    this.#checkOpen();
    this.#binding = binding;
    this.#app = this.#build();
    const { address, port } = await this.#server.listen(binding, this.#options.port);
    return { url: urlOf(address, port), port, isLoopback: binding.isLoopback };
  }

  /**
   * Refuses new requests, ends the event streams, and waits for the other requests. Requests that take longer than `graceMs` are cut off.
   *
   * @param options.graceMs - Default: 10 s.
   */
  close({ graceMs = GRACE_MS }: { readonly graceMs?: number | undefined } = {}): Promise<void> {
    this.#closing.abort();
    this.#close ??= this.#server.close(graceMs);
    return this.#close;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #hasClients(): Promise<boolean> {
    const takesTokens = this.#routes.some((route) => route.scope !== 'public' && route.tokens !== undefined);
    return takesTokens || (await hasUsableKey(this.#options.runtime.pool));
  }

  /** A server that is closed while it starts must not listen, because nothing would close it again. */
  #checkOpen(): void {
    if (!this.#closing.signal.aborted) return;
    throw new KernelError('bad_config', {
      message: 'The server was closed before it could listen.',
      next: 'Make a new one.',
    });
  }

  #build(): Hono<Env> {
    const app = new Hono<Env>();
    const methods = new Map<string, string[]>();
    for (const route of this.#routes) {
      app.on(route.method, route.path, (context) =>
        this.#serve(route, context.req.raw, { env: context.env, seen: seenIn(context.env) }),
      );
      methods.set(route.path, [...(methods.get(route.path) ?? []), route.method]);
    }
    for (const [path, allowed] of methods)
      app.all(path, (context) => {
        throw new NotAllowed(context.req.method, allowed);
      });
    app.notFound((context) => {
      throw new KernelError('not_found', {
        message: `There is nothing at ${new URL(context.req.url).pathname}.`,
        next: 'Check the address; docs/reference/http.md lists all of them.',
      });
    });
    app.onError((error) => {
      throw error;
    });
    return app;
  }

  /** F1, F2, and the answer, also when the request fails. */
  async #answer(request: Request, env: HttpBindings): Promise<Response> {
    const requestId = requestIdOf(request.headers.get('x-request-id') ?? undefined);
    const seen: Seen = {
      requestId,
      log: (level, event, fields) => this.#log(level, event, { request_id: requestId, ...fields }),
      startedAt: performance.now(),
      origin: undefined,
      principal: undefined,
      metadataUrl: undefined,
    };
    keepSeen(env, seen);
    const response = await this.#respond(request, env, seen);
    this.#note(request, response.status, seen);
    return withHeaders(response, {
      'x-request-id': requestId,
      'x-content-type-options': 'nosniff',
      ...(seen.origin === undefined ? {} : corsHeaders(seen.origin)),
    });
  }

  async #respond(request: Request, env: HttpBindings, seen: Seen): Promise<Response> {
    try {
      this.#checkSource(request, env, seen);
      if (isPreflight(request, seen)) return new Response(null, { status: 204, headers: preflightHeaders() });
      if (this.#app === undefined) throw new KernelError('internal_error');
      return await this.#app.fetch(request, env);
    } catch (error) {
      return this.#refuse(error, request, seen);
    }
  }

  #checkSource({ headers }: Request, env: HttpBindings, seen: Seen): void {
    const { incoming } = env;
    if (this.#binding === undefined) throw new KernelError('internal_error');
    checkHost(incoming.headers.host, {
      binding: this.#binding,
      localAddress: incoming.socket.localAddress,
      allowed: this.#hosts,
    });
    seen.origin = checkOrigin(
      { origin: headers.get('origin') ?? undefined, fetchSite: headers.get('sec-fetch-site') ?? undefined },
      this.#origins,
    );
  }

  /** F3 and F4, then the route itself. */
  async #serve(
    route: Route,
    request: Request,
    { env, seen }: { readonly env: HttpBindings; readonly seen: Seen },
  ): Promise<Response> {
    checkLength(request.headers, this.#limitOf(route));
    if (route.scope === 'public') return route.handle(this.#callOf(route, request, { env, seen }));
    seen.metadataUrl = route.tokens?.metadataUrl;
    const principal = await this.#authenticate(request, route);
    seen.principal = principal;
    principal.noteUse?.().catch((error: unknown) => seen.log('warn', 'http.use_not_noted', { error }));
    const isStillAllowed = (): Promise<boolean> => this.#isStillAllowed(request, route);
    const call = this.#callOf(route, request, { env, seen });
    const response = await route.handle({ ...call, principal, isStillAllowed });
    // No client reads the body of a HEAD answer, so a stream of events would never learn that it must end.
    if (request.method === 'HEAD') await response.body?.cancel();
    return response;
  }

  #limitOf({ bodyLimitBytes }: Route): number {
    return bodyLimitBytes ?? this.#bodyLimitBytes;
  }

  #authenticate({ headers }: Request, { scope, tokens }: ClosedRoute): Promise<CallPrincipal> {
    const { isLoopback = false } = this.#binding ?? {};
    return authenticate(this.#options.runtime.pool, headers, { scope, isLoopback, tokens });
  }

  /** An unreachable database or issuer does not end a stream. */
  async #isStillAllowed(request: Request, route: ClosedRoute): Promise<boolean> {
    try {
      await this.#authenticate(request, route);
      return true;
    } catch (error) {
      return !isRefusal(error);
    }
  }

  #callOf(
    route: Route,
    request: Request,
    { env, seen }: { readonly env: HttpBindings; readonly seen: Seen },
  ): PublicCall {
    const url = new URL(request.url);
    const limited = limitBody(request, this.#limitOf(route));
    return {
      request: limited,
      url,
      params: readParams(route.path, url),
      requestId: seen.requestId,
      signal: request.signal,
      closing: this.#closing.signal,
      log: seen.log,
      json: () => readJson(limited),
      events: (source) => this.#stream(source, { route, request, env, seen }),
    };
  }

  #stream(
    source: EventSource,
    {
      route,
      request,
      env,
      seen,
    }: { readonly route: Route; readonly request: Request; readonly env: HttpBindings; readonly seen: Seen },
  ): Response {
    const { heartbeatMs = HEARTBEAT_MS, stallMs = STALL_MS } = this.#options;
    return eventStreamResponse(source, {
      heartbeatMs,
      stallMs,
      lastEventId: readLastEventId(request.headers),
      signals: [request.signal, this.#closing.signal],
      isAllowed: async () => route.scope === 'public' || this.#isStillAllowed(request, route),
      drop: () => {
        seen.log('warn', 'http.reader_dropped', { stall_ms: stallMs });
        env.outgoing.destroy();
      },
      onError: (error) => seen.log('error', 'http.stream_failed', { error }),
    });
  }

  /** F5. */
  #refuse(error: unknown, request: Request, seen: Seen): Response {
    const path = new URL(request.url).pathname;
    const given = error instanceof NotAllowed ? error.cause : error;
    const problem = toProblem(given, { requestId: seen.requestId, path });
    if (problem.status >= 500) seen.log('error', 'http.failed', { code: problem.code, error: given });
    return problemResponse(problem, {
      ...challengeFor(given, seen.metadataUrl),
      ...(error instanceof NotAllowed ? { allow: error.allowed.join(', ') } : {}),
    });
  }

  /** Logs the path without the query, which may contain private values. */
  #note(request: Request, status: number, { log, startedAt, principal }: Seen): void {
    log('info', 'http.request', {
      method: request.method,
      path: new URL(request.url).pathname,
      status,
      ms: Math.round(performance.now() - startedAt),
      ...(principal === undefined ? {} : { key_id: principal.keyId, project_id: principal.projectId }),
    });
  }
}

/** Makes a copy, because the headers of an answer that a route has fetched are immutable. */
function withHeaders(response: Response, more: Readonly<Record<string, string>>): Response {
  const { status, statusText } = response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(more))
    if (name === 'vary') headers.append(name, value);
    else headers.set(name, value);
  return new Response(response.body, { status, statusText, headers });
}

const isPreflight = ({ method, headers }: Request, { origin }: Seen): boolean =>
  method === 'OPTIONS' && origin !== undefined && headers.has('access-control-request-method');

const isRefusal = (error: unknown): boolean =>
  error instanceof KernelError && ['unauthorized', 'permission_denied'].includes(error.code);

/** The path exists, but not with this method. */
class NotAllowed extends Error {
  readonly allowed: readonly string[];

  constructor(method: string, allowed: readonly string[]) {
    super('method not allowed', {
      cause: new KernelError('method_not_allowed', { message: `This address does not have ${method}.` }),
    });
    this.allowed = allowed;
  }
}

export const createHttpFrame = (options: HttpFrameOptions): HttpFrame => new HttpFrame(options);
