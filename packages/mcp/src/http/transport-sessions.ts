/**
 * Sessions of the revision 2025-11-25 over HTTP. Each session has a server and a transport in the memory of this process.
 *
 * T1  A session belongs to the key that has opened it. For every other key it does not exist. With tokens it belongs to their subject; a
 *     token with fewer rights than the session does not find it.
 * T2  A session ends with a DELETE, after an idle time, when its key is no longer valid, and with the server. The end of a token ends
 *     only its streams: the client continues with the next token of its subject.
 * T3  A server that stops ends open streams at once, and each session after its last open request.
 * T4  When a key has reached its limit of sessions, a new session replaces an unused one: few clients end their sessions.
 * T5  Only the connection is kept here: the results of tools are in database rows. A client whose session has ended opens another.
 * Rule: docs/reference/mcp.md, "HTTP".
 */
import { randomUUID } from 'node:crypto';
import type { Call, CallPrincipal } from '@boxcar/http';
import type { Log } from '@boxcar/runtime';
import { type McpServer, WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/server';
import { SessionEvents } from './session-events.js';

export interface SessionTimes {
  /** A session without a request and without a stream ends after this time. */
  readonly idleMs: number;
  /** After this time a session without a request and without a stream may be replaced by another session of its key. */
  readonly replaceMs: number;
  /** The interval between checks of keys and idle sessions. */
  readonly checkMs: number;
}

export interface SessionOptions extends SessionTimes {
  readonly bodyLimitBytes: number;
  readonly keepAliveMs: number;
  readonly log: Log;
}

/** One session with its open requests and streams. */
export class TransportSession {
  readonly keyId: string;
  readonly principal: CallPrincipal;
  readonly transport: WebStandardStreamableHTTPServerTransport;
  readonly server: McpServer;
  readonly events: SessionEvents;
  isStillAllowed: Call['isStillAllowed'];
  #open = 0;
  #usedAt = performance.now();

  constructor(
    { principal, isStillAllowed }: Call,
    of: {
      readonly transport: WebStandardStreamableHTTPServerTransport;
      readonly server: McpServer;
      readonly events: SessionEvents;
    },
  ) {
    this.keyId = principal.keyId;
    this.principal = principal;
    this.transport = of.transport;
    this.server = of.server;
    this.events = of.events;
    this.isStillAllowed = isStillAllowed;
  }

  get isBusy(): boolean {
    return this.#open > 0;
  }

  get idleMs(): number {
    return this.isBusy ? 0 : performance.now() - this.#usedAt;
  }

  /** Must be called at the beginning of an answer; call the result at its end. */
  begin(call: Call): () => void {
    this.isStillAllowed = call.isStillAllowed;
    this.#open += 1;
    return () => {
      this.#open -= 1;
      this.#usedAt = performance.now();
    };
  }
}

/** The server of a session was created for one project and agent, and offers the tools that its scopes allow. */
const mayUse = (principal: CallPrincipal, session: CallPrincipal): boolean =>
  principal.keyId === session.keyId &&
  principal.projectId === session.projectId &&
  principal.agent?.id === session.agent?.id &&
  session.scopes.every((scope) => principal.scopes.includes(scope));

export class TransportSessions {
  readonly #options: SessionOptions;
  readonly #sessions = new Map<string, TransportSession>();
  #timer: NodeJS.Timeout | undefined;
  #isClosing = false;

  constructor(options: SessionOptions) {
    this.#options = options;
  }

  /** Undefined: the key may use no session with this id (T1). */
  find(id: string, { principal }: Call): TransportSession | undefined {
    const session = this.#sessions.get(id);
    return session !== undefined && mayUse(principal, session.principal) ? session : undefined;
  }

  /**
   * Opens a session for the first request of a client. The session can be found after the answer to that request.
   *
   * @param onEnd - Called once, at the end of the session.
   */
  async open(
    call: Call,
    { server, onEnd }: { readonly server: McpServer; readonly onEnd: () => void },
  ): Promise<TransportSession> {
    const { bodyLimitBytes, keepAliveMs, log } = this.#options;
    const events = new SessionEvents();
    const transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => this.#keep(id, session),
      eventStore: events,
      maxRequestBodySize: bodyLimitBytes,
      keepAliveMs,
    });
    const session = new TransportSession(call, { transport, server, events });
    await server.connect(transport);
    const { onclose } = transport;
    transport.onclose = () => {
      onclose?.();
      this.#forget(transport.sessionId);
      onEnd();
    };
    const { onerror } = transport;
    transport.onerror = (error) => {
      onerror?.(error);
      log('debug', 'mcp.transport_error', { key_id: session.keyId, error });
    };
    return session;
  }

  /** Must be called after the answer to a request. Ends the session when the server stops, or when the request has opened none. */
  async settle(session: TransportSession): Promise<void> {
    const isUnused = session.transport.sessionId === undefined;
    if ((this.#isClosing || isUnused) && !session.isBusy) await this.end(session);
  }

  /** Ends an unused session of the key (T4). False: the key has no unused session. */
  async makeRoom(keyId: string): Promise<boolean> {
    const unused = [...this.#sessions.values()].filter(
      (session) => session.keyId === keyId && !session.isBusy && session.idleMs >= this.#options.replaceMs,
    );
    const [oldest] = unused.toSorted((a, b) => b.idleMs - a.idleMs);
    if (oldest === undefined) return false;
    await this.end(oldest);
    this.#forget(oldest.transport.sessionId);
    return true;
  }

  /** See T3. */
  close(): void {
    this.#isClosing = true;
    for (const session of this.#sessions.values()) {
      session.transport.closeStandaloneSSEStream();
      void this.settle(session);
    }
  }

  #keep(id: string, session: TransportSession): void {
    this.#sessions.set(id, session);
    this.#timer ??= setInterval(() => void this.#check(), this.#options.checkMs).unref();
  }

  #forget(id: string | undefined): void {
    if (id !== undefined) this.#sessions.delete(id);
    if (this.#sessions.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  /** See T2. One check for each key. */
  async #check(): Promise<void> {
    const byKey = new Map<string, TransportSession[]>();
    for (const session of this.#sessions.values()) {
      if (session.idleMs >= this.#options.idleMs) await this.end(session);
      else if (session.principal.expiresAt === undefined)
        byKey.set(session.keyId, [...(byKey.get(session.keyId) ?? []), session]);
    }
    for (const sessions of byKey.values()) {
      if ((await sessions[0]?.isStillAllowed()) !== false) continue;
      for (const session of sessions) await this.end(session);
    }
  }

  async end({ server, keyId }: TransportSession): Promise<void> {
    try {
      await server.close();
    } catch (error) {
      this.#options.log('warn', 'mcp.session_not_closed', { key_id: keyId, error });
    }
  }
}
