/**
 * MCP over HTTP, on the frame: one address for both protocol revisions.
 *
 * M1  The frame checks key, scope, host, origin and size of the body. Errors of a message are reported by the protocol.
 * M2  The revision 2026-07-28 has no sessions: each request gets its own server, and any process can answer it. The revision 2025-11-25
 *     has transport sessions in the memory of a process.
 * M3  Each key has limits: concurrent requests, sessions and streams. Above a limit the answer is 429. All tokens of a subject count as
 *     one key.
 * M4  A stream ends when its key or its token ends.
 * Rule: docs/reference/mcp.md, "HTTP".
 */
import type { Call, Route } from '@boxcar/http';
import { SCOPES, startTimer } from '@boxcar/kernel';
import { type Log, type Runtime, silentLog } from '@boxcar/runtime';
import {
  createMcpHandler,
  isLegacyRequest,
  type McpHttpHandler,
  type McpServer,
  ProtocolError,
  type ServerEventBus,
} from '@modelcontextprotocol/server';
import { DEFAULT_GROUPS, type McpClientScope, OPERATOR, type ToolGroup } from '../client-scope.js';
import { createMcpServer } from '../create-server.js';
import {
  type IssuerTimes,
  metadataRoutes,
  type OAuthOptions,
  openTokenDoor,
  readOAuth,
} from '../oauth/index.js';
import { DEFAULT_LIMITS, KeyCounts, type KeyLimits } from './key-limits.js';
import { type Listening, openListening, requestIdOf } from './listen.js';
import { type SessionTimes, type TransportSession, TransportSessions } from './transport-sessions.js';
import { watchBody } from './watched-body.js';

/** 1 MiB of content fits in any JSON encoding. */
const BODY_LIMIT_BYTES = 8 * 1024 * 1024;
const KEEP_ALIVE_MS = 15_000;
const STALL_MS = 30_000;
const IDLE_MS = 30 * 60_000;
const REPLACE_MS = 10_000;
const CHECK_MS = 15_000;
const SESSION_HEADER = 'mcp-session-id';
const LAST_EVENT_HEADER = 'last-event-id';
const PATH = '/mcp';

export interface McpRoutesOptions extends Partial<SessionTimes> {
  readonly runtime: Runtime;
  /** The groups of tools that are offered. Default: sessions and tapes. */
  readonly groups?: ReadonlySet<ToolGroup> | undefined;
  readonly log?: Log | undefined;
  /** Settings for tokens that are accepted in addition to keys. Default: no tokens. */
  readonly oauth?: (OAuthOptions & IssuerTimes) | undefined;
  /** The limits of each key. */
  readonly limits?: Partial<KeyLimits> | undefined;
  /** Creates the server of a connection. Default: `createMcpServer`. */
  readonly createServer?: ((scope: McpClientScope) => McpServer) | undefined;
  /** The interval of keep-alive messages on a silent stream. Default: 15 s. */
  readonly keepAliveMs?: number | undefined;
  /** How long a reader may read nothing. Default: 30 s. */
  readonly stallMs?: number | undefined;
}

type ErrorId = string | number | null;

const protocolError = (
  status: number,
  { code, message, headers = {}, id = null }: ProtocolProblem,
): Response =>
  Response.json({ jsonrpc: '2.0', error: { code, message }, id }, { status, headers: { ...headers } });

interface ProtocolProblem {
  readonly code: number;
  readonly message: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly id?: ErrorId;
}

const SERVER_ERROR = -32_000;
const NO_SESSION = -32_001;
const PARSE_ERROR = -32_700;

const tooMany = (what: string): Response =>
  protocolError(429, {
    code: SERVER_ERROR,
    message: `This key has as many ${what} as it may have at once. Try again when others have ended.`,
    headers: { 'retry-after': '1' },
  });

const noSessionGiven = (): Response =>
  protocolError(400, { code: SERVER_ERROR, message: `The header ${SESSION_HEADER} is required here.` });

const sessionNotFound = (): Response =>
  protocolError(404, { code: NO_SESSION, message: 'Session not found. Open another one with initialize.' });

const refuseSession = ({ request }: Call): Response =>
  request.headers.has(SESSION_HEADER) ? sessionNotFound() : noSessionGiven();

/** The body as JSON; `undefined` when it is not JSON. @throws KernelError `payload_too_large`. */
async function readBody(request: Request): Promise<unknown> {
  const bytes = await request.arrayBuffer();
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as unknown;
  } catch {
    return undefined;
  }
}

const hasMethod = (body: unknown, method: string): boolean =>
  [body]
    .flat()
    .some(
      (message) =>
        typeof message === 'object' && message !== null && Reflect.get(message, 'method') === method,
    );

const withHeader = ({ url, method, headers, signal }: Request, name: string, value: string): Request =>
  new Request(url, { method, headers: [...headers, [name, value]], signal });

class McpDoor {
  readonly #options: McpRoutesOptions;
  readonly #log: Log;
  readonly #counts: KeyCounts;
  readonly #sessions: TransportSessions;
  #closing: AbortSignal | undefined;

  constructor(options: McpRoutesOptions) {
    const { log = silentLog, keepAliveMs = KEEP_ALIVE_MS } = options;
    const { idleMs = IDLE_MS, replaceMs = REPLACE_MS, checkMs = CHECK_MS } = options;
    this.#options = options;
    this.#log = log;
    this.#counts = new KeyCounts({ ...DEFAULT_LIMITS, ...options.limits });
    this.#sessions = new TransportSessions({
      ...{ idleMs, replaceMs, checkMs, keepAliveMs, log },
      bodyLimitBytes: BODY_LIMIT_BYTES,
    });
  }

  async post(call: Call): Promise<Response> {
    this.#watchEnd(call);
    const { keyId } = call.principal;
    const give = this.#counts.take('requests', keyId);
    if (give === undefined) return tooMany('open requests');
    try {
      const body = await readBody(call.request);
      if (body === undefined) {
        give();
        return protocolError(400, { code: PARSE_ERROR, message: 'The body must be JSON in UTF-8.' });
      }
      if (!(await isLegacyRequest(call.request, body))) return await this.#serveModern(call, { body, give });
      return await this.#serveBatch(call, { body, give });
    } catch (error) {
      give();
      throw error;
    }
  }

  /** Each message of a batch counts as a request. */
  async #serveBatch(
    call: Call,
    { body, give }: { readonly body: unknown; readonly give: () => void },
  ): Promise<Response> {
    const more = Array.isArray(body) ? Math.max(body.length - 1, 0) : 0;
    const giveMore = this.#counts.take('requests', call.principal.keyId, more);
    if (giveMore === undefined) {
      give();
      return tooMany('open requests');
    }
    try {
      return this.#watch(await this.#serveSession(call, body), () => {
        give();
        giveMore();
      });
    } catch (error) {
      giveMore();
      throw error;
    }
  }

  /** Opens the stream of a session. */
  async get(call: Call): Promise<Response> {
    this.#watchEnd(call);
    const session = this.#sessionOf(call);
    if (session === undefined) return refuseSession(call);
    const give = this.#counts.take('streams', call.principal.keyId);
    if (give === undefined) return tooMany('open streams');
    const { request } = call;
    const { events } = session;
    const last = request.headers.get(LAST_EVENT_HEADER);
    const missed = last === null ? events.lastReadId : undefined;
    const asked = missed === undefined ? request : withHeader(request, LAST_EVENT_HEADER, missed);
    const response = await this.#inSession({ ...call, request: asked }, session).catch((error: unknown) => {
      give();
      throw error;
    });
    const isOwn = last === null || events.isOwn(last);
    const close = response.ok && isOwn ? events.openOwnStream() : () => undefined;
    const ended = new AbortController();
    const stop = this.#endOfToken(call, () => ended.abort());
    const onEnd = (): void => {
      stop();
      close();
      give();
    };
    return this.#watch(response, onEnd, ended.signal);
  }

  async delete(call: Call): Promise<Response> {
    const session = this.#sessionOf(call);
    return session === undefined ? refuseSession(call) : this.#inSession(call, session);
  }

  #sessionOf(call: Call): TransportSession | undefined {
    return this.#sessions.find(call.request.headers.get(SESSION_HEADER) ?? '', call);
  }

  #watchEnd({ closing }: Call): void {
    if (this.#closing !== undefined) return;
    this.#closing = closing;
    closing.addEventListener('abort', () => this.#sessions.close(), { once: true });
  }

  #watch(response: Response, onEnd: () => void, until?: AbortSignal): Response {
    const { stallMs = STALL_MS } = this.#options;
    const onStall = (): void => this.#log('warn', 'mcp.reader_dropped', { stall_ms: stallMs });
    return watchBody(response, { stallMs, onEnd, onStall, until });
  }

  #createServer(call: Call): McpServer {
    const { createServer = createMcpServer } = this.#options;
    return createServer(this.#scopeOf(call));
  }

  #scopeOf({ principal }: Call): McpClientScope {
    const { runtime, groups = DEFAULT_GROUPS } = this.#options;
    const fields = { key_id: principal.keyId };
    return {
      runtime,
      projectId: principal.projectId,
      as: principal.agent?.id ?? OPERATOR,
      scopes: SCOPES.filter((scope) => principal.scopes.includes(scope)),
      groups,
      principal,
      log: (level, event, more) => this.#log(level, event, { ...fields, ...more }),
    };
  }

  /** See M2. */
  async #serveModern(
    call: Call,
    { body, give }: { readonly body: unknown; readonly give: () => void },
  ): Promise<Response> {
    if (hasMethod(body, 'subscriptions/listen')) {
      // An event stream does not count as an open request.
      give();
      return this.#serveListen(call, body);
    }
    return this.#watch(await this.#handlerOf(call).fetch(call.request, { parsedBody: body }), give);
  }

  #handlerOf(call: Call, bus?: ServerEventBus): McpHttpHandler {
    return createMcpHandler(() => this.#createServer(call), {
      legacy: 'reject',
      maxRequestBodySize: BODY_LIMIT_BYTES,
      keepAliveMs: this.#options.keepAliveMs ?? KEEP_ALIVE_MS,
      onerror: (error) => call.log('debug', 'mcp.request_refused', { error }),
      ...(bus === undefined ? {} : { bus }),
    });
  }

  async #serveListen(call: Call, body: unknown): Promise<Response> {
    const give = this.#counts.take('streams', call.principal.keyId);
    if (give === undefined) return tooMany('open streams');
    let listening: Listening | undefined;
    let stop: (() => void) | undefined;
    const end = (): void => {
      stop?.();
      listening?.close();
      give();
    };
    try {
      listening = await openListening(this.#scopeOf(call), body);
      const handler = this.#handlerOf(call, listening.bus);
      stop = this.#endListen(call, () => void handler.close());
      return this.#watch(await handler.fetch(call.request, { parsedBody: listening.body }), end);
    } catch (error) {
      end();
      if (!(error instanceof ProtocolError)) throw error;
      return protocolError(200, { code: error.code, message: error.message, id: requestIdOf(body) });
    }
  }

  /** Ends a stream with its token. Keys are checked for all sessions together. */
  #endOfToken(call: Call, end: () => void): () => void {
    return call.principal.expiresAt === undefined ? () => undefined : this.#endListen(call, end);
  }

  /** A stream ends when the server stops, and when its key is no longer valid (M4). */
  #endListen({ closing, isStillAllowed, principal }: Call, end: () => void): () => void {
    const { checkMs = CHECK_MS } = this.#options;
    const check = async (): Promise<void> => {
      if (!(await isStillAllowed())) end();
    };
    const timer = setInterval(() => void check(), checkMs).unref();
    const { expiresAt = Infinity } = principal;
    const expiry = startTimer(Math.max(expiresAt - Date.now(), 0), end);
    closing.addEventListener('abort', end, { once: true });
    if (closing.aborted) end();
    return () => {
      clearInterval(timer);
      expiry.clear();
      closing.removeEventListener('abort', end);
    };
  }

  async #serveSession(call: Call, body: unknown): Promise<Response> {
    if (call.request.headers.has(SESSION_HEADER)) {
      const known = this.#sessionOf(call);
      return known === undefined ? sessionNotFound() : this.#inSession(call, known, body);
    }
    const isOpening = hasMethod(body, 'initialize');
    const give = await this.#takeSession(call, isOpening);
    if (give === undefined && isOpening) return tooMany('sessions');
    const opened = await this.#sessions.open(call, {
      server: this.#createServer(call),
      onEnd: () => give?.(),
    });
    return this.#inSession(call, opened, body);
  }

  async #takeSession({ principal: { keyId } }: Call, isOpening: boolean): Promise<(() => void) | undefined> {
    let give = this.#counts.take('sessions', keyId);
    while (give === undefined && isOpening && (await this.#sessions.makeRoom(keyId)))
      give = this.#counts.take('sessions', keyId);
    return give;
  }

  async #inSession(call: Call, session: TransportSession, body?: unknown): Promise<Response> {
    const end = session.begin(call);
    const settle = (): void => {
      end();
      void this.#sessions.settle(session);
    };
    try {
      const response = await session.transport.handleRequest(
        call.request,
        body === undefined ? {} : { parsedBody: body },
      );
      return this.#watch(response, settle);
    } catch (error) {
      settle();
      throw error;
    }
  }
}

/**
 * The routes of `/mcp`, for mounting.
 *
 * @throws KernelError `bad_config` for an issuer, an audience or an address that is not valid.
 */
export function mcpRoutes(options: McpRoutesOptions): readonly Route[] {
  const { oauth, runtime, log = silentLog, groups = DEFAULT_GROUPS } = options;
  const door = new McpDoor(options);
  const settings = oauth === undefined ? undefined : readOAuth(oauth);
  const tokens = settings && openTokenDoor(settings, { ...oauth, runtime, log });
  const common = { path: PATH, scope: 'mcp:call', bodyLimitBytes: BODY_LIMIT_BYTES, tokens } as const;
  return [
    { ...common, method: 'POST', handle: (call: Call) => door.post(call) },
    { ...common, method: 'GET', handle: (call: Call) => door.get(call) },
    { ...common, method: 'DELETE', handle: (call: Call) => door.delete(call) },
    ...(settings === undefined ? [] : metadataRoutes(settings, groups)),
  ];
}
