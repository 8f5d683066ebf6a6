/**
 * The tools of MCP servers, as the runtime requests them. No server is started or connected before a turn needs it.
 *
 * P1  A step waits a limited time for servers that start, and continues without the servers that do not answer.
 * P2  For a server that was never reached, agents get one tool that says so and tries again.
 * P3  The connections belong to this process: `close` ends the children and the connections.
 */
import { KernelError } from '@boxcar/kernel';
import type { Log, Tool, ToolServers } from '@boxcar/runtime';
import { z } from 'zod';
import type { Environment } from '../connection/open-transport.js';
import { McpServer } from './mcp-server.js';
import type { ServerDefinitions } from './server-definition.js';

/** How long a step waits for the lists of its servers (P1). */
const WAIT_MS = 10_000;

export interface McpServersOptions {
  /** The variables that entries can use. */
  readonly env: Environment;
  readonly log?: Log;
  /** How long a step waits for servers that start. Default 10,000. */
  readonly waitMs?: number;
  /** How long a server may take to start. Default 30,000. */
  readonly connectMs?: number;
  /** For tests: milliseconds of a monotonic clock. */
  readonly now?: () => number;
}

/** The connections to the MCP servers of a worker, and their tools. */
export class McpServers implements ToolServers, AsyncDisposable {
  readonly names: ReadonlySet<string>;
  readonly #servers: ReadonlyMap<string, McpServer>;
  readonly #waitMs: number;
  /** By server and reason: the same tool is the same object. */
  readonly #lookers = new Map<string, Tool>();

  constructor(definitions: ServerDefinitions, options: McpServersOptions) {
    const { env, connectMs, log = () => undefined, now = () => performance.now() } = options;
    this.#waitMs = options.waitMs ?? WAIT_MS;
    this.names = new Set(definitions.keys());
    this.#servers = new Map(
      [...definitions].map(([name, definition]) => [
        name,
        new McpServer(name, definition, { env, log, now, connectMs }),
      ]),
    );
  }

  /** Returns one server, to inspect it. */
  get(name: string): McpServer | undefined {
    return this.#servers.get(name);
  }

  async toolsOf(names: readonly string[], signal: AbortSignal): Promise<readonly Tool[]> {
    const servers = names.flatMap((name) => this.#servers.get(name) ?? []);
    const lists = await Promise.all(servers.map((server) => this.#toolsOf(server, signal)));
    return lists.flat();
  }

  async #toolsOf(server: McpServer, signal: AbortSignal): Promise<readonly Tool[]> {
    try {
      const { tools } = await inTime(server.list(), this.#waitMs, signal);
      return tools;
    } catch (error) {
      signal.throwIfAborted();
      if (server.known !== undefined) return server.known.tools;
      return [this.#looker(server, error instanceof KernelError ? error.message : 'It is still starting.')];
    }
  }

  whyUnseen(name: string): KernelError | undefined {
    const server = this.#servers.get(name);
    return server?.known === undefined ? server?.whyAway : undefined;
  }

  /** See P2. */
  #looker(server: McpServer, reason: string): Tool {
    const name = `${server.name}.unavailable`;
    const key = `${name} ${reason}`;
    const known = this.#lookers.get(key);
    if (known !== undefined) return known;
    const tool: Tool = {
      name,
      description: `The tools of the MCP server '${server.name}' cannot be used now: ${reason} Call this to look again; when it succeeds, they are there with your next step.`,
      input: z.looseObject({}),
      parameters: { type: 'object', properties: {} },
      isReadOnly: true,
      repeatable: true,
      run: async () => ({ tools: (await server.list()).tools.map((found) => found.name) }),
    };
    this.#lookers.set(key, tool);
    return tool;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#servers.values()].map((server) => server.close()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** @throws the signal's reason, or an error when the time is over. The work itself continues. */
async function inTime<T>(work: Promise<T>, withinMs: number, signal: AbortSignal): Promise<T> {
  work.catch(() => undefined);
  signal.throwIfAborted();
  let timer: NodeJS.Timeout | undefined;
  let stop: (() => void) | undefined;
  const over = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error('it took too long')), withinMs);
    stop = () => reject(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
  });
  try {
    return await Promise.race([work, over]);
  } finally {
    clearTimeout(timer);
    if (stop !== undefined) signal.removeEventListener('abort', stop);
  }
}
