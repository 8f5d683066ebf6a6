/**
 * Serves the client that has started this process, over stdin and stdout.
 *
 * C1  stdout has only messages of the protocol.
 * C2  When the client closes stdin, or the process is asked to stop, calls in progress have a limited time for their answer. Then the
 *     connection ends. A call without an answer by then is given up; its committed writes stay, and no write is half done.
 * C3  A line that is not a message gets an answer, and has no other effect.
 * Rule: docs/reference/mcp.md, "Over stdio".
 */
import type { Readable, Writable } from 'node:stream';
import type { JSONRPCMessage } from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import type { McpClientScope } from '../client-scope.js';
import { createMcpServer } from '../create-server.js';
import { CheckedInput, MAX_LINE_BYTES } from './checked-input.js';
import { isListen, Listens } from './listens.js';
import { OpenCalls } from './open-calls.js';

export interface StdioOptions {
  readonly stdin: Readable;
  readonly stdout: Writable;
  /** Requests the end. If the client has already closed stdin, the connection ends at once. */
  readonly stop: AbortSignal;
  /** The time for calls in progress after that. */
  readonly graceMs: number;
}

class Transport extends StdioServerTransport {
  readonly closed: Promise<void>;
  readonly #calls: OpenCalls;
  #setClosed: () => void = () => undefined;

  constructor(input: Readable, stdout: Writable, calls: OpenCalls) {
    super(input, stdout, { maxBufferSize: 2 * MAX_LINE_BYTES });
    this.#calls = calls;
    this.closed = new Promise((resolve) => {
      this.#setClosed = resolve;
    });
  }

  override async send(message: JSONRPCMessage): Promise<void> {
    try {
      await super.send(message);
    } finally {
      this.#calls.said(message);
    }
  }

  override async close(): Promise<void> {
    await super.close();
    this.#setClosed();
  }
}

/** Serves until the connection has ended. */
export async function serveClient(scope: McpClientScope, options: StdioOptions): Promise<void> {
  const { stdin, stdout, stop, graceMs } = options;
  const { log } = scope;
  const calls = new OpenCalls();
  const listens = new Listens(scope);
  const input = new CheckedInput({
    onMessage: (message) => {
      listens.heard(message);
      // An event stream does not count as an open call.
      if (!isListen(message)) calls.heard(message);
    },
    onRefused: (error) => {
      log('warn', 'mcp.line_refused', { error: error.error.message });
      stdout.write(`${JSON.stringify(error)}\n`);
    },
    untilDone: () => calls.settled(graceMs, stop.aborted ? undefined : stop),
  });
  const transport = new Transport(input, stdout, calls);
  const served = serveStdio(
    () => {
      listens.server = createMcpServer(scope);
      return listens.server;
    },
    {
      transport,
      onerror: (error) => log('warn', 'mcp.protocol_error', { error }),
    },
  );
  const end = (): void => {
    stdin.unpipe(input);
    input.end();
  };
  stdin.once('error', end);
  stop.addEventListener('abort', end, { once: true });
  stdin.pipe(input);
  if (stop.aborted) end();
  await transport.closed;
  listens.close();
  stop.removeEventListener('abort', end);
  stdin.unpipe(input);
  await served.close();
}
