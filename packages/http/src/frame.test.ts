/** The checks that every request passes before its route. */
import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import { KernelError, type Scope } from '@boxcar/kernel';
import { rotateKey } from '@boxcar/runtime';
import { createPool, endPool } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createHttpFrame } from './frame.js';
import type { Route } from './route.js';
import { bearer, openStage, type Stage } from './testing/stage.js';

const LIMIT = 10_000;
let stage: Stage;
let key: string;

const ROUTES: readonly Route[] = [
  {
    method: 'POST',
    path: '/echo',
    scope: 'handoffs:read',
    handle: async (call) => {
      call.log('info', 'echo.said', {});
      return Response.json({ body: await call.json(), request_id: call.requestId });
    },
  },
  {
    method: 'GET',
    path: '/echo/:name/of/:other',
    scope: 'handoffs:read',
    handle: ({ params, principal }) => Response.json({ params, principal: principal.kind }),
  },
  {
    method: 'POST',
    path: '/large',
    scope: 'handoffs:read',
    bodyLimitBytes: 3 * LIMIT,
    handle: async (call) => {
      const { length } = JSON.stringify(await call.json());
      return Response.json({ length, is_allowed: await call.isStillAllowed() });
    },
  },
  {
    method: 'GET',
    path: '/elsewhere',
    scope: 'handoffs:read',
    handle: () => Response.redirect('http://127.0.0.1/there', 303),
  },
  {
    method: 'GET',
    path: '/broken',
    scope: 'handoffs:read',
    handle: () => {
      throw new Error('the secret of the house');
    },
  },
  {
    method: 'GET',
    path: '/known',
    scope: 'handoffs:read',
    handle: () => {
      throw new KernelError('conflict', { message: 'It changed.', details: { id: 'x' } });
    },
  },
];

beforeAll(async () => {
  stage = await openStage({
    routes: ROUTES,
    bodyLimitBytes: LIMIT,
    allowedHosts: ['desk.example'],
    allowedOrigins: ['https://desk.example'],
  });
  key = await stage.key(['handoffs:read']);
});
afterAll(() => stage[Symbol.asyncDispose]());

/** A request with any headers, `host` included. */
async function send(
  path: string,
  headers: Readonly<Record<string, string>> = {},
  { method = 'GET', chunks = [] }: { readonly method?: string; readonly chunks?: readonly string[] } = {},
): Promise<{
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly body: Record<string, unknown>;
}> {
  const outgoing = httpRequest({ host: '127.0.0.1', port: stage.port, path, method, headers, agent: false });
  outgoing.on('error', () => undefined);
  for (const chunk of chunks) outgoing.write(chunk);
  outgoing.end();
  const [answer] = (await once(outgoing, 'response')) as [IncomingMessage];
  let text = '';
  for await (const chunk of answer.setEncoding('utf8')) text += chunk;
  return {
    status: answer.statusCode ?? 0,
    headers: answer.headers,
    body: text === '' ? {} : (JSON.parse(text) as Record<string, unknown>),
  };
}
const post = (headers: Readonly<Record<string, string>>, ...chunks: string[]) =>
  send('/echo', headers, { method: 'POST', chunks });

/** The path of each mounted route, with values for its parameters. */
const paths = (): readonly (readonly [Route, string])[] =>
  stage.frame.routes.map((route) => [
    route,
    route.path.replaceAll(/:\w+/g, '00000000-0000-7000-8000-00000000000f'),
  ]);

describe('mounting of routes:', () => {
  const mount = (route: unknown) =>
    createHttpFrame({ runtime: stage.opened.runtime, port: 0 }).mount([route as Route]);
  const handle = () => new Response();

  test.each([
    { method: 'GET', path: '/x', handle },
    { method: 'GET', path: '/x', scope: undefined, handle },
    { method: 'GET', path: '/x', scope: '', handle },
    { method: 'GET', path: '/x', scope: 'everything', handle },
    { method: 'GET', path: '/x', scope: 'public', handle },
    { method: 'GET', path: '/*', scope: 'a2a:call', handle },
    { method: 'GET', path: '/healthz', scope: 'public', handle },
    { method: 'GET', path: '/.well-known/oauth-protected-resource/x', scope: 'public', handle },
    { method: 'GET', path: '/mcp', scope: 'public', handle },
  ])('a route without a scope is not mounted: %o', (route) => {
    expect(() => mount(route)).toThrow(KernelError);
  });

  test('all other routes are mounted', () => {
    for (const { path, scope } of stage.frame.routes) expect([path, scope]).not.toEqual([path, undefined]);
    expect(stage.frame.routes.filter(({ scope }) => scope === 'public').map(({ path }) => path)).toEqual([
      '/healthz',
    ]);
  });
});

test('tokens are accepted only by routes that declare it', async () => {
  const given: string[] = [];
  const tokens = {
    metadataUrl: 'https://boxcar.example/metadata',
    authenticate: async (token: string) => {
      given.push(token);
      throw new KernelError('unauthorized', { details: { has_key: true } });
    },
  };
  const { runtime } = stage.opened;
  const route = { method: 'GET', scope: 'mcp:call', handle: () => new Response() } as const;
  await using frame = createHttpFrame({ runtime, port: 0 }).mount([
    { ...route, path: '/open', tokens },
    { ...route, path: '/closed' },
  ]);
  const { url } = await frame.listen();
  const challenges = [];
  for (const [path, text] of [
    ['/open', 'a.b.c'],
    ['/open', key],
    ['/closed', 'a.b.c'],
  ] as const)
    challenges.push(
      (await fetch(`${url}${path}`, { headers: bearer(text) })).headers.get('www-authenticate'),
    );
  const invalid = 'Bearer realm="boxcar", error="invalid_token"';
  const where = 'resource_metadata="https://boxcar.example/metadata"';
  expect(challenges).toEqual([
    `${invalid}, ${where}`,
    `Bearer realm="boxcar", error="insufficient_scope", scope="mcp:call", ${where}`,
    invalid,
  ]);
  expect(given).toEqual(['a.b.c']);
});

describe('on every route', () => {
  const refusals = (): readonly (readonly [string, number, () => Promise<Record<string, string>>])[] => [
    ['no key', 401, async () => ({})],
    ['an empty header', 401, async () => ({ authorization: '' })],
    ['another scheme', 401, async () => ({ authorization: `Basic ${key}` })],
    ['a malformed key', 401, async () => bearer('boxcar_x')],
    ['a key that nobody made', 401, async () => bearer(`boxcar_${'a'.repeat(43)}`)],
    ['two keys', 401, async () => ({ authorization: `Bearer ${key} ${key}` })],
  ];
  const ended = async (change: string): Promise<string> => {
    const text = await stage.key(['approvals:read', 'approvals:write', 'handoffs:read', 'a2a:call']);
    await stage.database.pool.query(
      `update boxcar.api_keys set ${change} where created_at = (select max(created_at) from boxcar.api_keys)`,
    );
    return text;
  };

  test('a missing, malformed, revoked, expired or rotated key is refused with 401, and a key without the scope with 403', async () => {
    const revoked = await ended('revoked_at = now()');
    const expired = await ended("expires_at = now() - interval '1 second'");
    const rotated = await ended("name = 'rotated'");
    const { rows } = await stage.database.pool.query<{ id: string }>(
      "select id from boxcar.api_keys where name = 'rotated'",
    );
    await rotateKey(stage.database.pool, rows[0]?.id ?? '');
    await stage.opened.runtime.createProject({ name: 'archived' });
    const archived = await stage.key(['approvals:read', 'approvals:write'], { projectId: 'archived' });
    await stage.opened.runtime.archiveProject('archived');
    const table = [
      ...refusals(),
      ['a revoked key', 401, async () => bearer(revoked)] as const,
      ['an expired key', 401, async () => bearer(expired)] as const,
      ['a rotated key', 401, async () => bearer(rotated)] as const,
      ['a key of an archived project', 401, async () => bearer(archived)] as const,
    ];
    for (const [route, path] of paths()) {
      if (route.scope === 'public') continue;
      for (const [what, status, headers] of table) {
        const answer = await send(path, await headers(), { method: route.method });
        expect([what, path, answer.status, answer.body.code]).toEqual([what, path, status, 'unauthorized']);
        expect(answer.headers['www-authenticate']).toMatch(/^Bearer realm="boxcar"/);
      }
      const others = (['approvals:read', 'approvals:write', 'handoffs:read', 'a2a:call'] as const).filter(
        (scope: Scope) => scope !== route.scope,
      );
      const answer = await send(path, bearer(await stage.key(others)), { method: route.method });
      expect([path, answer.status, answer.body.code]).toEqual([path, 403, 'permission_denied']);
      expect(answer.headers['www-authenticate']).toContain(`scope="${route.scope}"`);
    }
  });

  test('a foreign web page and a foreign name for this address are refused, with any key', async () => {
    for (const [route, path] of paths()) {
      for (const headers of [
        { host: 'evil.example' },
        { host: `evil.example:${stage.port}` },
        { host: '127.0.0.1.evil.example' },
        { host: '10.0.0.1' },
        { origin: 'https://evil.example' },
        { origin: 'null' },
        { origin: `http://127.0.0.1:${stage.port}` },
        { 'sec-fetch-site': 'cross-site' },
      ]) {
        const answer = await send(path, { ...bearer(key), ...headers }, { method: route.method });
        expect([headers, answer.status, answer.body.code]).toEqual([headers, 403, 'origin_denied']);
        expect(answer.headers['access-control-allow-origin']).toBeUndefined();
      }
    }
  });

  test('a body that is longer than the limit is refused by its length, before its key is checked', async () => {
    for (const [route, path] of paths()) {
      const length = (route.bodyLimitBytes ?? LIMIT) + 1;
      const answer = await send(
        path,
        { 'content-length': String(length) },
        { method: route.method, chunks: ['x'.repeat(length)] },
      );
      expect([path, answer.status, answer.body.code]).toEqual([path, 413, 'payload_too_large']);
    }
  });
});

describe('the check of hosts and origins', () => {
  test.each(['localhost', 'LOCALHOST:80', 'localhost.', '[::1]', '127.0.0.2', 'desk.example:8443'])(
    'accepts the host name %s',
    async (host) => {
      expect(await send('/healthz', { host })).toMatchObject({ status: 200, body: { status: 'ok' } });
    },
  );

  test.each(['a b', 'x@localhost', 'localhost/x', '[::2]', '0.0.0.0'])(
    'refuses the host name %o',
    async (host) => {
      expect((await send('/healthz', { host })).status).toBeGreaterThanOrEqual(400);
    },
  );

  test('lets an allowed page ask and read, and gives others no information about the answer', async () => {
    const origin = 'https://desk.example';
    const asked = await send(
      '/echo',
      { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization' },
      { method: 'OPTIONS' },
    );
    expect(asked).toMatchObject({
      status: 204,
      headers: {
        'access-control-allow-origin': origin,
        'access-control-allow-headers': expect.stringMatching(/authorization.*a2a-version.*mcp-session-id/),
      },
    });
    const answer = await post({ origin, ...bearer(key) }, '{}');
    expect(answer).toMatchObject({ status: 200, headers: { 'access-control-allow-origin': origin } });
    const refused = await post({ origin }, '{}');
    expect(refused).toMatchObject({ status: 401, headers: { 'access-control-allow-origin': origin } });
    expect((await send('/healthz')).headers['access-control-allow-origin']).toBeUndefined();
  });

  test('refuses invalid hosts and origins at the start', () => {
    const { runtime } = stage.opened;
    expect(() => createHttpFrame({ runtime, port: 0, allowedHosts: ['a b'] })).toThrow(/allowedHosts/);
    for (const origin of ['desk.example', '*', 'null', 'file:///x'])
      expect(() => createHttpFrame({ runtime, port: 0, allowedOrigins: [origin] })).toThrow(/allowedOrigins/);
  });
});

describe('the id of a request', () => {
  test('is the caller’s id, and is in each line of the log and in the answer', async () => {
    const answer = await post({ 'x-request-id': 'desk:1.a_b-c', ...bearer(key) }, '{"a":1}');
    expect(answer).toMatchObject({
      status: 200,
      headers: { 'x-request-id': 'desk:1.a_b-c' },
      body: { body: { a: 1 }, request_id: 'desk:1.a_b-c' },
    });
    const lines = stage.log.filter(({ fields }) => fields.request_id === 'desk:1.a_b-c');
    expect(lines.map(({ event }) => event)).toEqual(['echo.said', 'http.request']);
    expect(lines[1]?.fields).toMatchObject({ method: 'POST', path: '/echo', status: 200 });
  });

  test('is also in the answer of a route whose headers cannot be changed', async () => {
    expect(await send('/elsewhere', { 'x-request-id': 'r3', ...bearer(key) })).toMatchObject({
      status: 303,
      headers: { 'x-request-id': 'r3', location: 'http://127.0.0.1/there' },
    });
  });

  test.each(['a b', 'a\tb', 'x'.repeat(129), 'ü', '{"a":1}'])('is replaced when it is %o', async (id) => {
    const { headers } = await send('/healthz', { 'x-request-id': Buffer.from(id).toString('latin1') });
    expect(headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/);
  });

  test('is in every line of the request’s log, and no line has a key or a query', async () => {
    await send(`/approvals?agent=hidden-query`, bearer(key));
    const lines = stage.log.filter(({ event }) => event.startsWith('http.'));
    expect(lines.length).toBeGreaterThan(0);
    for (const { fields } of lines) expect(fields.request_id).toEqual(expect.any(String));
    expect(JSON.stringify(stage.log)).not.toContain(key);
    expect(JSON.stringify(stage.log)).not.toContain('hidden-query');
  });
});

describe('the body of a request', () => {
  const auth = () => bearer(key);

  test('in chunks ends at the limit', async () => {
    const chunk = `"${'x'.repeat(4_000)}"`;
    expect(await post(auth(), `[${chunk},`, `${chunk}]`)).toMatchObject({ status: 200 });
    expect(await post(auth(), `[${chunk},`, `${chunk},`, `${chunk}]`)).toMatchObject({
      status: 413,
      body: { code: 'payload_too_large', details: { limit_bytes: LIMIT } },
    });
  });

  test('may have a limit of its own per route, with and without a length', async () => {
    const text = `"${'x'.repeat(2 * LIMIT)}"`;
    const large = (headers: Readonly<Record<string, string>>, ...chunks: string[]) =>
      send('/large', { ...auth(), ...headers }, { method: 'POST', chunks });
    const whole = { status: 200, body: { length: text.length, is_allowed: true } };
    expect(await large({ 'content-length': String(text.length) }, text)).toMatchObject(whole);
    expect(await large({}, text)).toMatchObject(whole);
    expect(await large({}, `[${text}`, `,${text}]`)).toMatchObject({
      status: 413,
      body: { details: { limit_bytes: 3 * LIMIT } },
    });
  });

  test.each(['', '{', '\xff', '{"a":"\\u0000"}'])('is refused when it is not JSON: %o', async (text) => {
    expect(await post(auth(), ...(text === '' ? [] : [text]))).toMatchObject({
      status: 400,
      body: { code: 'bad_request' },
    });
  });

  test('that never ends is cut at the time limit of a request', async () => {
    await using slow = await openStage({ routes: ROUTES, requestMs: 300, headersMs: 200 });
    for (const text of [
      'POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{',
      'GET /healthz HTTP/1.1\r\nhost: loc',
    ]) {
      const socket = connect(slow.port, '127.0.0.1');
      socket.on('error', () => undefined);
      socket.write(text);
      socket.resume();
      await once(socket, 'close');
    }
    expect(await (await fetch(`${slow.url}/healthz`)).json()).toEqual({ status: 'ok' });
  });
});

describe('the answer to an error', () => {
  test('with a code is problem details', async () => {
    expect(await send('/known', { ...bearer(key), 'x-request-id': 'r1' })).toMatchObject({
      status: 409,
      headers: { 'content-type': 'application/problem+json', 'cache-control': 'no-store' },
      body: {
        type: 'urn:boxcar:error:conflict',
        title: 'The row changed meanwhile.',
        status: 409,
        detail: 'It changed.',
        instance: '/known',
        code: 'conflict',
        request_id: 'r1',
        next: 'Read the current state and decide again.',
        details: { id: 'x' },
      },
    });
  });

  test('without a code has no details, which are only in the log', async () => {
    const answer = await send('/broken', { ...bearer(key), 'x-request-id': 'r2' });
    expect(answer).toMatchObject({ status: 500, body: { code: 'internal_error', request_id: 'r2' } });
    expect(JSON.stringify(answer.body)).not.toContain('secret');
    const line = stage.log.find(({ event, fields }) => event === 'http.failed' && fields.request_id === 'r2');
    expect(line).toMatchObject({ level: 'error', fields: { error: new Error('the secret of the house') } });
  });

  test('for an unknown address or method says so', async () => {
    expect(await send('/nothing')).toMatchObject({ status: 404, body: { code: 'not_found' } });
    expect(await send('/echo', bearer(key), { method: 'DELETE' })).toMatchObject({
      status: 405,
      headers: { allow: 'POST' },
      body: { code: 'method_not_allowed' },
    });
  });

  test('for parameters that cannot be decoded is a refusal, and parameters are decoded once', async () => {
    const read = async (path: string) => (await send(path, bearer(key))).body;
    expect(await read('/echo/a%2Fb/of/%252F%20%C3%BC')).toEqual({
      params: { name: 'a/b', other: '%2F ü' },
      principal: 'key',
    });
    expect(await read('/echo/%ff/of/x')).toMatchObject({ code: 'bad_request', status: 400 });
  });

  test('says that the database is away', async () => {
    const away = createPool({ connectionString: 'postgres://a@127.0.0.1:1/b' });
    await using frame = createHttpFrame({ runtime: { pool: away }, port: 0 }).mount(ROUTES);
    const { url } = await frame.listen();
    const answer = await fetch(`${url}/known`, { headers: bearer(key) });
    expect([answer.status, ((await answer.json()) as { code: string }).code]).toEqual([
      503,
      'database_unavailable',
    ]);
    await endPool(away);
  });
});

test('the use of a key is recorded', async () => {
  const text = await stage.key(['handoffs:read']);
  await send('/known', bearer(text));
  await waitFor(
    async () => {
      const { rows } = await stage.database.pool.query(
        'select from boxcar.api_keys where hint = $1 and last_used_at is not null',
        [text.slice(-4)],
      );
      return rows.length > 0 ? true : undefined;
    },
    { message: 'the use of the key' },
  );
});
