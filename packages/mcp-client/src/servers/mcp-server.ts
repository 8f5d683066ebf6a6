/**
 * One server as this process knows it: its list of tools and its connection, which is opened on demand and reopened after its end.
 *
 * S1  All callers share one connection, and one attempt to open it.
 * S2  A server that failed is not tried again before a growing pause has passed. Meanwhile callers get the reason at once.
 * S3  Its tools stay those of the last list that could be read, also while the server is unavailable.
 * S4  A server may handle one request at a time. While it has calls, a missing list is not a failure: it is requested again later.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { errorText, type JsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import type { Log, Tool } from '@boxcar/runtime';
import { Connection, type Era } from '../connection/connection.js';
import { explainCall, isRefusedSession } from '../connection/explain-call.js';
import { type Environment, findValues, type NamedValue } from '../connection/open-transport.js';
import { toResult } from '../tool/result.js';
import { type ToolList, toTools } from '../tool/to-tool.js';
import { Backoff } from './backoff.js';
import type { ServerDefinition } from './server-definition.js';

const CONNECT_MS = 30_000;
const CLOSE_MS = 1_000;
/** After this time a list is read again in the background: not every server reports a change. */
const LIST_MS = 60_000;

export interface McpServerOptions {
  readonly env: Environment;
  readonly log: Log;
  readonly now: () => number;
  readonly connectMs?: number | undefined;
}

/** One MCP server: its connection, the list of its tools, and its last failure. */
export class McpServer {
  readonly name: string;
  readonly definition: ServerDefinition;
  readonly #options: McpServerOptions;
  readonly #backoff: Backoff;
  readonly #kept = new Map<string, Tool>();
  /** Includes connections that were given up and still have calls. */
  readonly #connections = new Set<Connection>();
  #connection: Connection | undefined;
  #opening: Promise<Connection> | undefined;
  #listing: Promise<ToolList> | undefined;
  #list: ToolList | undefined;
  #listedAt = 0;
  #isStale = true;
  #failure: KernelError | undefined;
  #reason: string | undefined;
  #era: Era | undefined;
  readonly #closing = new AbortController();

  constructor(name: string, definition: ServerDefinition, options: McpServerOptions) {
    this.name = name;
    this.definition = definition;
    this.#options = options;
    this.#backoff = new Backoff(options.now);
  }

  /** The last list that could be read. */
  get known(): ToolList | undefined {
    return this.#list;
  }

  /** Why the server cannot be used now. */
  get failure(): KernelError | undefined {
    return this.#failure;
  }

  /** The failure, or the fact that the server has not answered yet. */
  get whyAway(): KernelError {
    return this.#failure ?? this.#unavailable('has not answered yet');
  }

  /** Why the server cannot be used now, as logged: for the operator, not for models. */
  get reason(): string | undefined {
    return this.#reason;
  }

  get serverInfo(): Connection['serverInfo'] {
    return this.#connection?.serverInfo;
  }

  get era(): Era | undefined {
    return this.#era;
  }

  /** The server's current tools. @throws KernelError `tool_server_unavailable`. */
  async list(): Promise<ToolList> {
    const isOpen = this.#connection?.isOpen === true;
    if (!isOpen || this.#isStale || this.#list === undefined) return this.#read();
    if (this.#options.now() - this.#listedAt > LIST_MS) this.#read().catch(() => undefined);
    return this.#list;
  }

  #read(): Promise<ToolList> {
    this.#listing ??= this.#readOnce().finally(() => {
      this.#listing = undefined;
    });
    return this.#listing;
  }

  async #readOnce(): Promise<ToolList> {
    const connection = await this.#connect();
    // A change during the read makes the list stale again.
    this.#isStale = false;
    try {
      const listed = await connection.list();
      this.#list = toTools(this.name, this.definition, {
        listed,
        call: (call, signal) => this.#call(call, signal),
        before: this.#kept,
      });
    } catch (error) {
      if (this.#list !== undefined && connection.isOpen && connection.isBusy && !isRefusedSession(error)) {
        this.#options.log('info', 'mcp.list_put_off', { server: this.name, error: errorText(error) });
        this.#listedAt = this.#options.now();
        return this.#list;
      }
      this.#isStale = true;
      const failure = this.#failed(error, 'has not listed its tools');
      await connection.giveUp();
      throw failure;
    }
    this.#listedAt = this.#options.now();
    this.#failure = undefined;
    this.#backoff.succeeded();
    return this.#list;
  }

  async #connect(): Promise<Connection> {
    if (this.#connection?.isOpen === true) return this.#connection;
    if (this.#closing.signal.aborted) throw this.#unavailable('is closed, since this worker ends');
    if (this.#backoff.remainingMs > 0 && this.#failure !== undefined) throw this.#failure;
    this.#opening ??= this.#open().finally(() => {
      this.#opening = undefined;
    });
    return this.#opening;
  }

  async #open(): Promise<Connection> {
    let values: readonly NamedValue[];
    try {
      values = findValues(this.name, this.definition, this.#options.env);
    } catch (error) {
      throw this.#failed(error, 'cannot be reached');
    }
    try {
      const connection: Connection = await Connection.open({
        definition: this.definition,
        values,
        connectMs: this.#options.connectMs ?? CONNECT_MS,
        era: this.#era,
        signal: this.#closing.signal,
        onEnd: () => this.#ended(),
        onListChanged: () => {
          this.#isStale = true;
        },
      });
      for (const other of this.#connections)
        if (!other.isOpen && !other.isBusy) this.#connections.delete(other);
      this.#connections.add(connection);
      this.#connection = connection;
      this.#era = connection.era;
      this.#isStale = true;
      if (this.#closing.signal.aborted) {
        await connection.close();
        throw new Error('this worker ends');
      }
      this.#options.log('info', 'mcp.connected', { server: this.name, ...connection.serverInfo });
      return connection;
    } catch (error) {
      throw this.#failed(error, 'cannot be reached');
    }
  }

  #ended(): void {
    if (this.#connection?.isOpen === true) return;
    this.#isStale = true;
    if (!this.#closing.signal.aborted && this.#connection !== undefined)
      this.#options.log('warn', 'mcp.disconnected', { server: this.name });
  }

  #unavailable(did: string): KernelError {
    return new KernelError('tool_server_unavailable', {
      message: `The MCP server '${this.name}' ${did}.`,
      details: { mcp_server: this.name },
    });
  }

  /** Records a failure (S2). The message of the server or the system goes only to the log: it may contain paths and addresses. */
  #failed(error: unknown, did: string): KernelError {
    const failure =
      error instanceof KernelError && error.code === 'tool_server_unavailable'
        ? error
        : this.#unavailable(did);
    this.#failure = failure;
    this.#backoff.failed();
    this.#reason = error instanceof Error ? error.message : String(error);
    this.#options.log('warn', 'mcp.unavailable', { server: this.name, error: this.#reason });
    return failure;
  }

  async #call(
    { tool, shown, args }: { readonly tool: string; readonly shown: string; readonly args: JsonObject },
    signal: AbortSignal,
    isAgain = false,
  ): Promise<JsonValue> {
    const connection = await this.#connect();
    signal.throwIfAborted();
    try {
      return toResult(shown, await connection.call(tool, args, signal));
    } catch (error) {
      if (signal.aborted) throw error;
      const isLost = connection.era === 'legacy' && isRefusedSession(error);
      if (isLost) await connection.giveUp();
      // A restarted server does not know earlier sessions, and has refused the call.
      if (isLost && !isAgain) return this.#call({ tool, shown, args }, signal, true);
      const failure = explainCall(this.name, shown, error);
      if (failure.code === 'tool_server_unavailable') this.#failed(error, 'cannot be reached');
      if (failure.code !== 'tool_failed') await connection.giveUp();
      throw failure;
    }
  }

  async close(): Promise<void> {
    this.#closing.abort(new Error('this worker ends'));
    // A server that is still starting ends by itself; closing does not wait long for it.
    const opening = this.#opening?.catch(() => undefined);
    await Promise.race([opening, delay(CLOSE_MS, undefined, { ref: false })]);
    await Promise.all([...this.#connections].map((connection) => connection.close()));
  }
}
