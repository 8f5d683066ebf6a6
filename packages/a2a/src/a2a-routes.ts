/**
 * Public agents over HTTP: the card and the JSON-RPC endpoint of each agent, mounted on the frame.
 *
 * R1  Both need a key, because the name of an agent is unique only within a project. The frame reports a wrong key or name (401, 403,
 *     404); the protocol reports an error in a message.
 * R2  Open connections are the only state of the server. Every answer is read from rows, so any process can answer any request.
 * Rule: docs/reference/a2a.md.
 */
import { A2A_VERSION_HEADER } from '@a2a-js/sdk';
import { LegacyJsonRpcTransportHandler } from '@a2a-js/sdk/compat/v0_3/server';
import { ContentTypeNotSupportedError } from '@a2a-js/sdk/errors';
import { JsonRpcTransportHandler, ServerCallContext, validateVersion } from '@a2a-js/sdk/server';
import { JSON_TYPE } from '@boxcar/adapters/a2a';
import { type Call, type Route, readPublicUrl, type ServerEvent } from '@boxcar/http';
import { isJsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import { type AgentDoor, type HandoffRuntime, openAgentDoor } from '@boxcar/runtime';
import { cardJson, cardOf, LEGACY_VERSION, legacyCardJson } from './card.js';
import { malformed, toA2AError } from './errors.js';
import { RequestHandler } from './request-handler.js';

const WAIT_MS = 300_000;
const PARSE_ERROR = -32700;
const INTERNAL_ERROR = -32603;

export interface A2ARoutesOptions {
  /** The address of the server for other platforms, such as `https://agents.example`. Default: the address of each request. */
  readonly publicUrl?: string | undefined;
  /** How long a message that asks to wait for the end of its task waits for it. Default: five minutes. */
  readonly waitMs?: number | undefined;
}

type Envelope = object;

/** The protocol version of a request. `1.0.2` counts as 1.0. A request without a version uses protocol 0.3. */
function versionOf({ headers }: Request): string {
  const given = headers.get(A2A_VERSION_HEADER)?.trim() ?? '';
  if (given === '') return LEGACY_VERSION;
  return /^(\d{1,4}\.\d{1,4})(?:\.\d{1,9})?$/.exec(given)?.[1] ?? given;
}

const isLegacy = (version: string): boolean => version === LEGACY_VERSION;

const reply = (value: unknown): Response =>
  Response.json(value, { headers: { 'cache-control': 'no-store', vary: A2A_VERSION_HEADER } });

const isStream = (answer: Envelope): answer is AsyncGenerator<Envelope, void> =>
  Symbol.asyncIterator in answer;

/** The id of a JSON-RPC request, or null without one. */
const idIn = (body: JsonValue): string | number | null => {
  const id = isJsonObject(body) ? body.id : null;
  return typeof id === 'string' || typeof id === 'number' ? id : null;
};

/** Converts an error to the form of a protocol version. */
const mapError = (error: unknown, version: string): unknown =>
  isLegacy(version)
    ? LegacyJsonRpcTransportHandler.mapToLegacyJSONRPCError(error)
    : JsonRpcTransportHandler.mapToJSONRPCError(error);

/** The SDK reads the parameters before it calls the handler. An error at that point does not have the form of the protocol. */
const isUnreadable = (answer: Envelope, handler: RequestHandler): boolean => {
  const { error } = answer as { error?: { code?: unknown } };
  return error?.code === INTERNAL_ERROR && !handler.isReached;
};

/** One request to an agent. */
class Exchange {
  readonly #call: Call;
  readonly #version: string;
  readonly #ending = new AbortController();

  constructor(call: Call) {
    this.#call = call;
    this.#version = versionOf(call.request);
    this.#endWith(call.signal);
  }

  /** @throws KernelError for failures that the frame answers. */
  async answer(door: AgentDoor, of: { readonly url: string; readonly waitMs: number }): Promise<Response> {
    let id: JsonValue = null;
    const { log, closing } = this.#call;
    try {
      this.#checkType();
      const body = await this.#read();
      if (body === undefined) return reply(this.#error(new NotJson(), null));
      id = idIn(body);
      const card = cardOf(door.agent, { url: of.url, pushes: door.pushes.isOffered });
      validateVersion(this.#version, card, 'JSONRPC');
      const handler = new RequestHandler(door, {
        ...of,
        version: this.#version,
        signal: this.#ending.signal,
        closing,
        log,
      });
      const answer = await this.#transport(handler).handle(body as never, this.#context());
      if (isStream(answer)) return await this.#stream(answer, id);
      if (isUnreadable(answer, handler)) throw malformed('params: must have the form of the protocol.');
      return reply(answer);
    } catch (error) {
      if (error instanceof KernelError) throw error;
      return reply(this.#error(error, id));
    }
  }

  #transport(handler: RequestHandler): JsonRpcTransportHandler | LegacyJsonRpcTransportHandler {
    return isLegacy(this.#version)
      ? new LegacyJsonRpcTransportHandler(handler)
      : new JsonRpcTransportHandler(handler);
  }

  #context(): ServerCallContext {
    const user = { isAuthenticated: true, userName: this.#call.principal.id };
    return new ServerCallContext({ requestedVersion: this.#version, user });
  }

  #checkType(): void {
    const [type] = (this.#call.request.headers.get('content-type') ?? JSON_TYPE).split(';');
    if (type?.trim().toLowerCase() !== JSON_TYPE)
      throw new ContentTypeNotSupportedError({ message: `The body must be ${JSON_TYPE}.` });
  }

  /** Undefined when the body is not JSON. */
  async #read(): Promise<JsonValue | undefined> {
    try {
      return await this.#call.json();
    } catch (error) {
      if (!(error instanceof KernelError) || error.code !== 'bad_request') throw error;
      if (error.details.field === 'body') return undefined;
      // The body is JSON, but contains a value that cannot be stored in a row.
      throw malformed(error.problem);
    }
  }

  #error(given: unknown, id: JsonValue): Envelope {
    const error =
      given instanceof NotJson
        ? { code: PARSE_ERROR, message: 'The body must be JSON in UTF-8.' }
        : mapError(toA2AError(given, this.#call.log), this.#version);
    return { jsonrpc: '2.0', id, error };
  }

  /** An error before the first event is sent as a plain error answer, without a stream. */
  async #stream(answer: AsyncGenerator<Envelope, void>, id: JsonValue): Promise<Response> {
    const first = await answer.next();
    return this.#call.events(({ signal }) => {
      this.#endWith(signal);
      return this.#events(answer, { first, id });
    });
  }

  async *#events(
    answer: AsyncGenerator<Envelope, void>,
    of: { readonly first: IteratorResult<Envelope, void>; readonly id: JsonValue },
  ): AsyncGenerator<ServerEvent> {
    try {
      for (let step = of.first; step.done !== true; step = await answer.next()) yield { data: step.value };
    } catch (error) {
      yield { event: 'error', data: this.#error(error, of.id) };
    } finally {
      this.#ending.abort();
      // When a reader is dropped between two events, its source is still running and must be ended.
      await answer.return();
    }
  }

  /** Ends the exchange when the client no longer waits for the answer. */
  #endWith(signal: AbortSignal): void {
    if (signal.aborted) this.#ending.abort();
    signal.addEventListener('abort', () => this.#ending.abort(), { once: true });
  }
}

class NotJson extends Error {}

/** The routes of all public agents, for the frame to mount. */
export function a2aRoutes(runtime: HandoffRuntime, options: A2ARoutesOptions = {}): readonly Route[] {
  const { waitMs = WAIT_MS } = options;
  const base = options.publicUrl === undefined ? undefined : readPublicUrl(options.publicUrl);
  const urlOf = ({ url }: Call, name: string): string =>
    `${base ?? url.origin}/a2a/${encodeURIComponent(name)}`;
  const open = ({ params, principal }: Call): Promise<AgentDoor> =>
    openAgentDoor(runtime, params.agent ?? '', principal);
  return [
    {
      method: 'GET',
      path: '/a2a/:agent/.well-known/agent-card.json',
      scope: 'a2a:call',
      handle: async (call) => {
        const { agent, pushes } = await open(call);
        const facts = { url: urlOf(call, agent.name), pushes: pushes.isOffered };
        return reply(
          isLegacy(versionOf(call.request)) ? legacyCardJson(agent, facts) : cardJson(agent, facts),
        );
      },
    },
    {
      method: 'POST',
      path: '/a2a/:agent',
      scope: 'a2a:call',
      handle: async (call) => {
        const door = await open(call);
        return new Exchange(call).answer(door, { url: urlOf(call, door.agent.name), waitMs });
      },
    },
  ];
}
