/**
 * One connection with a server, from its handshake to its end. It is never repaired: after its end a new connection is opened.
 *
 * C1  Its end is reported once, whatever caused it.
 * C2  A peer that keeps sending messages that are not MCP is disconnected.
 * C3  A failed call does not end other calls: a connection that is given up is closed after its last call.
 * C4  Results and failures are masked on arrival, before they are cut, since half a secret would not be recognized.
 */
import { type JsonObject, maskSecrets } from '@boxcar/kernel';
import type { CallToolResult, Client, Tool } from '@modelcontextprotocol/client';
import type { ServerDefinition } from '../servers/server-definition.js';
import { endLostCalls } from './lost-calls.js';
import { type NamedValue, type OpenedTransport, openTransport } from './open-transport.js';
import { outputValidator } from './output-validator.js';

/** The limit of consecutive faults of a peer (C2), without a valid answer between them. */
const MAX_FAULTS = 1_000;
const LIST_MS = 10_000;
const PROBE_MS = 5_000;
/** The longest time that a timer accepts. Calls have their own deadlines. */
const NO_TIMEOUT_MS = 2_147_483_647;

/** The family of protocol revisions that a server speaks. */
export type Era = 'legacy' | 'modern';

export interface ConnectionOptions {
  readonly definition: ServerDefinition;
  readonly values: readonly NamedValue[];
  readonly connectMs: number;
  /** The era of an earlier connection. */
  readonly era: Era | undefined;
  /** Aborts the attempt. */
  readonly signal: AbortSignal;
  readonly onEnd: () => void;
  readonly onListChanged: () => void;
}

export class Connection {
  readonly #client: Client;
  readonly #lastWords: () => string;
  readonly #values: readonly NamedValue[];
  #faults = 0;
  #lastFault = '';
  #isOpen = true;
  /** Calls in progress. */
  #calls = 0;

  private constructor(
    client: Client,
    {
      lastWords,
      values,
      onEnd,
    }: Pick<OpenedTransport, 'lastWords'> & Pick<ConnectionOptions, 'values' | 'onEnd'>,
  ) {
    this.#client = client;
    this.#lastWords = lastWords;
    this.#values = values;
    client.onclose = () => {
      this.#isOpen = false;
      onEnd();
    };
    client.onerror = (error) => {
      this.#faults += 1;
      this.#lastFault = error.message;
      if (this.#faults > MAX_FAULTS) void this.close();
    };
  }

  /** @throws the error of the handshake. Nothing stays open then. */
  static async open(options: ConnectionOptions): Promise<Connection> {
    const { definition, values, connectMs, era, onEnd, onListChanged } = options;
    const { Client } = await import('@modelcontextprotocol/client');
    const { transport, lastWords } = await openTransport(definition, values);
    const client = new Client(
      { name: 'boxcar', version: '1' },
      {
        jsonSchemaValidator: outputValidator,
        versionNegotiation: { mode: 'auto', probe: { timeoutMs: Math.min(PROBE_MS, connectMs) } },
        listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: onListChanged } },
      },
    );
    const connection = new Connection(client, { lastWords, values, onEnd });
    const signal = AbortSignal.any([options.signal, AbortSignal.timeout(connectMs)]);
    try {
      // The probe would start a second child process.
      const prior = era === 'legacy' ? { prior: { kind: 'legacy' } as const } : {};
      await client.connect(transport, { timeout: connectMs, signal, ...prior });
      endLostCalls(transport);
    } catch (error) {
      const why = connection.#explain(error);
      await connection.close();
      throw why;
    }
    return connection;
  }

  /** The failure with the last stderr output of the child, which says more than the error. */
  #explain(error: unknown): Error {
    const words = this.#lastWords().trim();
    const fault = this.#lastFault;
    const message = error instanceof Error ? error.message : String(error);
    const more = [words === '' ? fault : words].filter((text) => text !== '' && text !== message);
    return this.#masked(new Error([message, ...more].join(': '), { cause: error }));
  }

  /** See C4. */
  #masked<T>(value: T): T {
    return maskSecrets(value, this.#values);
  }

  /** Whether it accepts new calls. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Whether calls are in progress. */
  get isBusy(): boolean {
    return this.#calls > 0;
  }

  get era(): Era | undefined {
    return this.#client.getProtocolEra();
  }

  /** The name and version that the server reports. */
  get serverInfo(): { readonly name: string; readonly version: string } | undefined {
    return this.#client.getServerVersion();
  }

  async list(): Promise<readonly Tool[]> {
    // Without this check the SDK would write to stdout.
    if (this.#client.getServerCapabilities()?.tools === undefined) return [];
    const timeouts = { timeout: LIST_MS, maxTotalTimeout: LIST_MS };
    const { tools } = await this.#maskingFailures(this.#client.listTools(undefined, timeouts));
    this.#faults = 0;
    return tools;
  }

  /** @param signal - When it aborts, the server is notified. */
  async call(name: string, args: JsonObject, signal: AbortSignal): Promise<CallToolResult> {
    this.#calls += 1;
    try {
      const result = await this.#maskingFailures(
        this.#client.callTool({ name, arguments: args }, { signal, timeout: NO_TIMEOUT_MS }),
      );
      this.#faults = 0;
      return this.#masked(result);
    } finally {
      this.#calls -= 1;
      if (!this.#isOpen && !this.isBusy) void this.close();
    }
  }

  #maskingFailures<T>(work: Promise<T>): Promise<T> {
    return work.catch((error: unknown) => {
      throw this.#masked(error);
    });
  }

  /** Stops accepting new calls; the connection closes after its last call (C3). */
  async giveUp(): Promise<void> {
    this.#isOpen = false;
    if (!this.isBusy) await this.close();
  }

  /** Never fails. A child process that does not end by itself is killed. */
  async close(): Promise<void> {
    this.#isOpen = false;
    await this.#client.close().catch(() => undefined);
  }
}
