/** MCP over HTTP, with servers of the official SDK. */
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { KernelError } from '@boxcar/kernel';
import type { Tool, ToolContext } from '@boxcar/runtime';
import { waitFor } from '@boxcar/testkit';
import { afterEach, describe, expect, test } from 'vitest';
import { httpServer } from '../testing/http-server.js';
import { McpServers } from './mcp-servers.js';
import { checkServers } from './parse-servers.js';

const opened: McpServers[] = [];
const events: string[] = [];
const never = new AbortController().signal;

function open(entry: object, now?: () => number): McpServers {
  const servers = new McpServers(checkServers({ web: { allow_private: true, ...entry } }), {
    env: { TOKEN: 'a-token-of-the-operator' },
    connectMs: 5_000,
    log: (_level, event) => void events.push(event),
    ...(now === undefined ? {} : { now }),
  });
  opened.push(servers);
  return servers;
}
afterEach(async () => {
  for (const servers of opened.splice(0)) await servers.close();
  events.length = 0;
});

const tools = (servers: McpServers) => servers.toolsOf(['web'], never);
async function call(servers: McpServers, name: string, args: unknown = {}): Promise<unknown> {
  const tool = (await tools(servers)).find((each) => each.name === name) as Tool;
  return tool.run(tool.input.parse(args), { signal: never } as ToolContext);
}
async function failureOf(work: Promise<unknown>): Promise<KernelError> {
  const error = await work.catch((failure: unknown) => failure);
  if (error instanceof KernelError) return error;
  throw new Error(`no failure: ${String(error)}`);
}

describe.each(['2025', '2026'] as const)('a server of the revision of %s', (revision) => {
  test('provides its tools, and headers get values of the environment', async () => {
    await using server = await httpServer(revision);
    const servers = open({ url: server.url, headers: { Authorization: `Bearer $\{TOKEN}` } });
    expect(await call(servers, 'web.add', { a: 2, b: 3 })).toEqual({ sum: 5 });
    expect(await failureOf(call(servers, 'web.fail'))).toMatchObject({
      code: 'tool_failed',
      message: expect.stringContaining('it did not work'),
    });
    expect(new Set(server.authorizations)).toEqual(new Set(['Bearer a-token-of-the-operator']));
    expect(servers.get('web')?.era).toBe(revision === '2025' ? 'legacy' : 'modern');
  });

  test('is used again after a restart, and its tools stay available meanwhile', async () => {
    let now = 0;
    const first = await httpServer(revision);
    const servers = open({ url: first.url }, () => now);
    expect(await call(servers, 'web.add', { a: 1, b: 1 })).toEqual({ sum: 2 });
    await first[Symbol.asyncDispose]();
    const away = await failureOf(call(servers, 'web.add', { a: 1, b: 1 }));
    expect(away.code).toBe('tool_server_unavailable');
    expect((await tools(servers)).map(({ name }) => name)).toEqual(['web.add', 'web.fail']);
    await using second = await httpServer(revision, first.port);
    now += 60_000;
    expect(await call(servers, 'web.add', { a: 2, b: 2 })).toEqual({ sum: 4 });
    expect(second.authorizations.length).toBeGreaterThan(0);
  });
});

test('a server that has lost the session is called again with a new session', async () => {
  const first = await httpServer('2025');
  const servers = open({ url: first.url });
  await call(servers, 'web.add', { a: 1, b: 1 });
  await first[Symbol.asyncDispose]();
  await using second = await httpServer('2025', first.port);
  expect(await call(servers, 'web.add', { a: 2, b: 2 })).toEqual({ sum: 4 });
  expect(second.sessions()).toBe(1);
});

async function plain(listener: RequestListener): Promise<AsyncDisposable & { readonly url: string }> {
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

interface Message {
  readonly id?: number;
  readonly method: string;
  readonly params: { readonly arguments?: { readonly n?: number } };
}

async function readMessage(request: IncomingMessage): Promise<Message> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return JSON.parse(Buffer.concat(parts).toString()) as Message;
}

/** The answers to the messages before a call, in the older revision. */
const ANSWERS: Readonly<Record<string, object>> = {
  initialize: {
    protocolVersion: '2025-11-25',
    capabilities: { tools: {} },
    serverInfo: { name: 'plain', version: '1' },
  },
  'tools/list': { tools: [{ name: 'work', inputSchema: { type: 'object' } }] },
};

/** A server of the older revision that answers calls with the given function. */
const answering = (onCall: (response: ServerResponse, message: Message) => unknown) =>
  plain((request, response) => {
    void (async () => {
      if (request.method !== 'POST') return response.writeHead(405).end();
      const message = await readMessage(request);
      if (message.id === undefined) return response.writeHead(202).end();
      if (message.method === 'tools/call') return onCall(response, message);
      return answer(response, message, ANSWERS[message.method]);
    })();
  });

function answer(response: ServerResponse, { id }: Message, result: object | undefined): void {
  const said = result === undefined ? { error: { code: -32601, message: 'no' } } : { result };
  response
    .setHeader('content-type', 'application/json')
    .setHeader('mcp-session-id', 'one')
    .end(JSON.stringify({ jsonrpc: '2.0', id, ...said }));
}

test.each([400, 404, 502, 503])('a call that is refused with %s ends no other call', async (status) => {
  let calls = 0;
  let finish = (): void => undefined;
  const going = new Promise<void>((resolve) => {
    finish = resolve;
  });
  await using server = await answering(async (response, message) => {
    calls += 1;
    if (message.params.arguments?.n !== 1) return response.writeHead(status).end('no');
    await going;
    return answer(response, message, { content: [{ type: 'text', text: 'done' }] });
  });
  const servers = open({ url: server.url });
  const first = call(servers, 'web.work', { n: 1 });
  await waitFor(() => calls === 1, { message: 'the first call to arrive' });
  const code = status < 500 ? 'tool_failed' : 'outcome_unknown';
  expect((await failureOf(call(servers, 'web.work', { n: 2 }))).code).toBe(code);
  finish();
  expect(await first).toBe('done');
  // Only 404 says that the session was unknown, so that nothing was executed.
  expect(calls).toBe(status === 404 ? 3 : 2);
});

test.each<[string, (response: ServerResponse) => unknown]>([
  ['ended', (response) => response.end(': nothing\n\n')],
  ['cut', (response) => response.write(': nothing\n\n', () => response.destroy())],
  ['cut, and cannot be resumed', (response) => response.write('id: 1\ndata:\n\n', () => response.destroy())],
])('a call whose stream is %s has an unknown outcome, at once', async (_what, lose) => {
  await using server = await answering((response) => {
    response.setHeader('content-type', 'text/event-stream');
    return lose(response);
  });
  const servers = open({ url: server.url });
  expect(await failureOf(call(servers, 'web.work'))).toMatchObject({ code: 'outcome_unknown' });
});

test.each<[string, RequestListener]>([
  ['a page', (_request, response) => response.setHeader('content-type', 'text/html').end('<html>hello')],
  ['an error', (_request, response) => response.writeHead(500).end('no')],
  ['a demand for a key', (_request, response) => response.writeHead(401).end('no')],
  [
    'a redirect elsewhere',
    (_request, response) => response.writeHead(307, { location: 'http://169.254.169.254/' }).end(),
  ],
  [
    'an endless document',
    (_request, response) => {
      response.setHeader('content-type', 'application/json');
      const more = (): void => {
        while (!response.destroyed && response.write(' '.repeat(100_000)));
      };
      response.on('drain', more);
      more();
    },
  ],
  [
    'an endless event',
    (_request, response) => {
      response.setHeader('content-type', 'text/event-stream');
      const more = (): void => {
        while (!response.destroyed && response.write('data: x\n'.repeat(10_000)));
      };
      response.on('drain', more);
      more();
    },
  ],
  ['nothing', () => undefined],
])(
  'a server that answers with %s counts as unreachable, and no call waits for it',
  async (_what, listener) => {
    await using server = await plain(listener);
    const servers = open({ url: server.url });
    expect((await tools(servers)).map(({ name }) => name)).toEqual(['web.unavailable']);
    await waitFor(() => events.includes('mcp.unavailable'), { message: 'the reason is in the log' });
  },
);

test('an address that is not public is also refused at the connection', async () => {
  await using server = await httpServer('2026');
  const url = `http://localhost:${server.port}/mcp`;
  // A program without types may pass values that were not checked.
  const servers = new McpServers(new Map([['web', { url, headers: {}, allow_private: false }]]), { env: {} });
  opened.push(servers);
  expect((await tools(servers)).map(({ name }) => name)).toEqual(['web.unavailable']);
  expect(server.authorizations).toEqual([]);
});
