/** HTTP servers with the official SDK, on loopback, for both revisions. */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { z } from 'zod';

export interface HttpServerForTests extends AsyncDisposable {
  readonly url: string;
  readonly port: number;
  /** The `authorization` header of each request. */
  readonly authorizations: (string | undefined)[];
  /** The number of sessions so far. */
  readonly sessions: () => number;
}

function createTools(): McpServer {
  const server = new McpServer({ name: 'http', version: '1' });
  server.registerTool(
    'add',
    {
      description: 'Adds.',
      inputSchema: z.object({ a: z.number(), b: z.number() }),
      outputSchema: z.object({ sum: z.number() }),
    },
    ({ a, b }) => {
      const structuredContent = { sum: a + b };
      return { content: [{ type: 'text', text: JSON.stringify(structuredContent) }], structuredContent };
    },
  );
  server.registerTool('fail', { description: 'Fails.', inputSchema: z.object({}) }, () => {
    throw new Error('it did not work');
  });
  return server;
}

type Handle = (request: IncomingMessage, response: ServerResponse) => Promise<void> | void;

/** One transport and one server for each session, as in the revision 2025-11-25. */
function withSessions(): { readonly handle: Handle; readonly sessions: () => number } {
  const transports = new Map<string, NodeStreamableHTTPServerTransport>();
  let count = 0;
  const handle: Handle = async (request, response) => {
    const id = request.headers['mcp-session-id'];
    const known = typeof id === 'string' ? transports.get(id) : undefined;
    if (known !== undefined) return known.handleRequest(request, response);
    if (typeof id === 'string') {
      response.writeHead(404).end('no such session');
      return;
    }
    const transport: NodeStreamableHTTPServerTransport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (session) => {
        count += 1;
        transports.set(session, transport);
      },
    });
    await createTools().connect(transport);
    return transport.handleRequest(request, response);
  };
  return { handle, sessions: () => count };
}

/** @param revision - `2025` has sessions, `2026` has none. @param port - 0: any free port. */
export async function httpServer(revision: '2025' | '2026', port = 0): Promise<HttpServerForTests> {
  const authorizations: (string | undefined)[] = [];
  const old = withSessions();
  const handler = createMcpHandler(createTools, { legacy: 'reject' });
  const modern = toNodeHandler(handler);
  const server: Server = createServer((request, response) => {
    authorizations.push(request.headers.authorization);
    void (revision === '2025'
      ? old.handle(request, response)
      : modern(request as Parameters<typeof modern>[0], response));
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  const { port: bound } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${bound}/mcp`,
    port: bound,
    authorizations,
    sessions: old.sessions,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await handler.close();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
