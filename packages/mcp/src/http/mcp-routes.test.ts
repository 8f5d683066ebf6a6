/** MCP over HTTP with the official clients of both revisions. */
import { revokeKey } from '@boxcar/runtime';
import { waitFor } from '@boxcar/testkit';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createMcpServer } from '../create-server.js';
import { bearer, openClient, openLegacyClient, openStage, type Stage } from '../testing/http-stage.js';

let stage: Stage;
let key: string;
const others: AsyncDisposable[] = [];

beforeAll(async () => {
  stage = await openStage();
  key = await stage.key();
});
afterEach(async () => {
  for (const other of others.splice(0)) await other[Symbol.asyncDispose]();
});
afterAll(() => stage[Symbol.asyncDispose]());

const second = async (options: Parameters<typeof openStage>[0]): Promise<Stage> => {
  const other = await openStage({ database: stage.database, ...options });
  others.push(other);
  return other;
};

const INITIALIZE = {
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: {
    protocolVersion: '2025-11-25',
    capabilities: {},
    clientInfo: { name: 'raw', version: '1' },
  },
};
const HEADERS = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };

const send = (
  body: unknown,
  {
    headers = {},
    as = key,
    url = stage.url,
  }: {
    readonly headers?: Readonly<Record<string, string>>;
    readonly as?: string;
    readonly url?: string;
  } = {},
): Promise<Response> =>
  fetch(url, {
    method: 'POST',
    headers: { ...HEADERS, ...bearer(as), ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });

/** Opens a session and returns its id. */
async function initialize(of: { readonly as?: string; readonly url?: string } = {}): Promise<string> {
  const answer = await send(INITIALIZE, of);
  expect(answer.status).toBe(200);
  await answer.text();
  return answer.headers.get('mcp-session-id') ?? '';
}
const ping = (session: string, of: { readonly as?: string; readonly url?: string } = {}) =>
  send({ jsonrpc: '2.0', id: 2, method: 'ping' }, { ...of, headers: { 'mcp-session-id': session } });

describe('clients', () => {
  test('a 1.x client opens a session, and a 2.x client speaks either revision, with the same tools', async () => {
    const legacy = await openLegacyClient(stage.url, key);
    const old = await openClient(stage.url, key, 'legacy');
    const modern = await openClient(stage.url, key);
    expect(modern.getNegotiatedProtocolVersion()).toBe('2026-07-28');
    expect(old.getNegotiatedProtocolVersion()).toBe('2025-11-25');
    const names = [];
    for (const client of [legacy, old, modern]) {
      expect(client.getServerVersion()).toMatchObject({ name: 'boxcar' });
      const { resources } = await client.listResources();
      names.push(resources.map(({ uri }) => uri));
    }
    expect(names[1]).toEqual(names[0]);
    expect(names[2]).toEqual(names[0]);
    await Promise.all([legacy.close(), old.close(), modern.close()]);
  });

  test('a request of the newer revision is answered by any process', async () => {
    const other = await second({});
    const client = await openClient(stage.url, key);
    const there = await openClient(other.url, key);
    expect((await there.listResources()).resources).toEqual((await client.listResources()).resources);
  });
});

describe('MCP sessions over HTTP', () => {
  test('belong to the key that has opened them', async () => {
    const session = await initialize();
    const another = await stage.key();
    expect((await ping(session)).status).toBe(200);
    const get = { headers: { ...bearer(another), accept: 'text/event-stream', 'mcp-session-id': session } };
    for (const answer of [
      await ping(session, { as: another }),
      await fetch(stage.url, get),
      await fetch(stage.url, { ...get, method: 'DELETE' }),
      await ping('no-session'),
    ]) {
      expect(answer.status).toBe(404);
      expect(await answer.json()).toMatchObject({ error: { code: -32001 }, id: null });
    }
    expect((await ping(session)).status).toBe(200);
  });

  test('are ended by the client, and every later request of the session is 404', async () => {
    const session = await initialize();
    const gone = await fetch(stage.url, {
      method: 'DELETE',
      headers: { ...bearer(key), 'mcp-session-id': session },
    });
    expect(gone.status).toBe(200);
    expect((await ping(session)).status).toBe(404);
  });

  test('end when they are idle, unless they have an open stream', async () => {
    const other = await second({ idleMs: 1, checkMs: 20 });
    const idle = await initialize({ url: other.url });
    // On a busy machine a session may end before its stream is open.
    const { busy, stream } = await waitFor(
      async () => {
        const session = await initialize({ url: other.url });
        const answer = await fetch(other.url, {
          headers: { ...bearer(key), accept: 'text/event-stream', 'mcp-session-id': session },
        });
        return answer.ok ? { busy: session, stream: answer } : undefined;
      },
      { message: 'a session with a stream' },
    );
    await waitFor(async () => (await ping(idle, { url: other.url })).status === 404 || undefined, {
      message: 'the idle session to end',
    });
    expect((await ping(busy, { url: other.url })).status).toBe(200);
    await stream.body?.cancel();
  });

  test('end with their streams when their key is revoked', async () => {
    const other = await second({ checkMs: 20 });
    const own = await stage.key();
    const session = await initialize({ url: other.url, as: own });
    const stream = await fetch(other.url, {
      headers: { ...bearer(own), accept: 'text/event-stream', 'mcp-session-id': session },
    });
    const ended = stream.text();
    const { rows } = await stage.database.pool.query<{ id: string }>(
      'select id from boxcar.api_keys order by created_at desc limit 1',
    );
    await revokeKey(stage.database.pool, rows[0]?.id ?? '');
    await ended;
    expect((await ping(session, { url: other.url, as: own })).status).toBe(401);
  });

  test('have their open streams ended at once when the server stops', async () => {
    const other = await second({});
    const session = await initialize({ url: other.url });
    const stream = await fetch(other.url, {
      headers: { ...bearer(key), accept: 'text/event-stream', 'mcp-session-id': session },
    });
    const ended = stream.text();
    await other.frame.close({ graceMs: 60_000 });
    await ended;
  });
});

test('keep a message for their own stream while the client resumes the stream of a call', async () => {
  let finish = (): void => undefined;
  const { url } = await second({
    createServer: (scope) => {
      const server = createMcpServer(scope);
      server.registerTool('slow', { description: 'Takes its time.' }, async () => {
        await server.server.sendResourceUpdated({ uri: 'test://first' });
        await new Promise<void>((resolve) => {
          finish = resolve;
        });
        return { content: [] };
      });
      return server;
    },
  });
  const headers = {
    ...{ ...HEADERS, ...bearer(key), 'mcp-protocol-version': '2025-11-25' },
    'mcp-session-id': await initialize({ url }),
  };
  const body = JSON.stringify({
    jsonrpc: '2.0',
    id: 2,
    method: 'tools/call',
    params: { name: 'slow', arguments: {} },
  });
  const gone = new AbortController();
  const first = await fetch(url, { method: 'POST', headers, body, signal: gone.signal });
  const event = new TextDecoder().decode((await first.body?.getReader().read())?.value);
  gone.abort();
  const last = /^id: (.*)$/m.exec(event)?.[1] ?? '';
  const again = await waitFor(
    async () => {
      const answer = await fetch(url, { headers: { ...headers, 'last-event-id': last } });
      return answer.status === 200 ? answer : undefined;
    },
    { message: 'the stream of the call to go on' },
  );
  finish();
  expect(await again.text()).toContain('"content":[]');
  const own = await fetch(url, { headers });
  const told = new TextDecoder().decode((await own.body?.getReader().read())?.value);
  expect(told).toContain('test://first');
});

describe('limits of a key', () => {
  test('answer 429 to sessions, streams and requests beyond the limit, and do not affect other keys', async () => {
    const other = await second({ limits: { sessions: 2, streams: 1, requests: 1 } });
    const { url } = other;
    const session = await initialize({ url });
    await initialize({ url });
    const refused = await send(INITIALIZE, { url });
    expect([refused.status, refused.headers.get('retry-after')]).toEqual([429, '1']);
    await initialize({ url, as: await stage.key() });
    const open = () =>
      fetch(url, { headers: { ...bearer(key), accept: 'text/event-stream', 'mcp-session-id': session } });
    const stream = await open();
    expect((await open()).status).toBe(429);
    await stream.body?.cancel();
    await waitFor(async () => ((await open()).status === 200 ? true : undefined), {
      message: 'the stream to be given back',
    });
    await fetch(url, { method: 'DELETE', headers: { ...bearer(key), 'mcp-session-id': session } });
    await initialize({ url });
  });

  test('end a session of a vanished client for a new session of its key, but not a session with a stream', async () => {
    const other = await second({ limits: { sessions: 2 }, replaceMs: 0 });
    const { url } = other;
    const [used, unused] = [await initialize({ url }), await initialize({ url })];
    const stream = await fetch(url, {
      headers: { ...bearer(key), accept: 'text/event-stream', 'mcp-session-id': used },
    });
    const opened = await initialize({ url });
    expect((await ping(unused, { url })).status).toBe(404);
    expect((await ping(used, { url })).status).toBe(200);
    expect((await ping(opened, { url })).status).toBe(200);
    await stream.body?.cancel();
  });

  test('count each message of a batch', async () => {
    const { url } = await second({ limits: { requests: 4 } });
    const session = await initialize({ url });
    const batch = (count: number) =>
      send(
        Array.from({ length: count }, (_, id) => ({ jsonrpc: '2.0', id, method: 'ping' })),
        { url, headers: { 'mcp-session-id': session } },
      );
    for (const [count, status] of [
      [4, 200],
      [5, 429],
      [4, 200],
    ] as const) {
      const answer = await batch(count);
      await answer.text();
      expect([count, answer.status]).toEqual([count, status]);
    }
  });

  test('count an open request until its answer has been read', async () => {
    const other = await second({ limits: { requests: 1 } });
    const { url } = other;
    const session = await initialize({ url });
    const slow = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(new TextEncoder().encode('{')),
    });
    const ending = new AbortController();
    const open = fetch(url, {
      method: 'POST',
      headers: { ...HEADERS, ...bearer(key), 'mcp-session-id': session },
      body: slow,
      duplex: 'half',
      signal: ending.signal,
    } as RequestInit).catch(() => undefined);
    await waitFor(async () => ((await ping(session, { url })).status === 429 ? true : undefined), {
      message: 'the limit to be reached',
    });
    ending.abort();
    await open;
    await waitFor(async () => ((await ping(session, { url })).status === 200 ? true : undefined), {
      message: 'the request to be given back',
    });
  });
});

describe('bad input over HTTP:', () => {
  test('a request without a key, or with a key without the scope, is refused by the frame', async () => {
    const narrow = await stage.key({ scopes: ['handoffs:read'] });
    expect((await send(INITIALIZE, { as: narrow })).status).toBe(403);
    expect((await fetch(stage.url, { method: 'POST', headers: HEADERS, body: '{}' })).status).toBe(401);
  });

  test.each([
    ['a body that is not JSON', '{', 400, -32700],
    ['an empty body', '', 400, -32700],
    ['a body that is not a message', '{"a":1}', 400, -32600],
    ['a request outside a session', '{"jsonrpc":"2.0","id":1,"method":"ping"}', 400, -32000],
  ])('%s is answered by the protocol', async (_what, body, status, code) => {
    const answer = await send(body);
    expect([answer.status, ((await answer.json()) as { error: { code: number } }).error.code]).toEqual([
      status,
      code,
    ]);
  });

  test('a request with another content type is 415, and a body over 8 MiB is 413', async () => {
    expect((await send('{}', { headers: { 'content-type': 'text/plain' } })).status).toBe(415);
    expect((await send(JSON.stringify('x'.repeat(8 * 1024 * 1024)))).status).toBe(413);
  });

  test('1 MiB of content is accepted in any JSON spelling, and a byte more is refused', async () => {
    const client = await openClient(stage.url, key);
    const update = async (content: string) => {
      const entry = { session_key: 'large', context_type: 'message', content };
      const { content: said } = await client.callTool({ name: 'update_context', arguments: entry });
      const [first] = said as readonly { readonly text: string }[];
      return JSON.parse(first?.text ?? '') as unknown;
    };
    await client.callTool({
      name: 'register_session',
      arguments: { session_key: 'large', agent_from: 'claude' },
    });
    // JSON needs six characters for each byte.
    const content = '\u0001'.repeat(1_048_576);
    expect(await update(content)).toMatchObject({
      success: true,
      context_entry: { content_length: 1_048_576 },
    });
    expect(await update(`${content}x`)).toMatchObject({
      success: false,
      error_code: 'VALIDATION_ERROR',
    });
    await client.close();
  });

  test('a stream without a session is 400', async () => {
    for (const method of ['GET', 'DELETE']) {
      const answer = await fetch(stage.url, {
        method,
        headers: { ...bearer(key), accept: 'text/event-stream' },
      });
      expect([method, answer.status]).toEqual([method, 400]);
    }
  });

  test('an unknown revision is refused with the list of served revisions', async () => {
    const answer = await send(
      {
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/list',
        params: { _meta: { 'io.modelcontextprotocol/protocolVersion': '2030-01-01' } },
      },
      { headers: { 'mcp-protocol-version': '2030-01-01', 'mcp-method': 'tools/list' } },
    );
    expect(answer.status).toBe(400);
  });
});
