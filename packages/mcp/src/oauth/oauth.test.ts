/** Tokens of an issuer at `/mcp`, with a real issuer and the official client. */
import { archiveProject, createProject } from '@boxcar/runtime';
import {
  Client,
  ClientCredentialsProvider,
  discoverOAuthServerInfo,
  extractWWWAuthenticateParams,
  StreamableHTTPClientTransport,
} from '@modelcontextprotocol/client';
import { exportSPKI, generateKeyPair, type JWTPayload, SignJWT, UnsecuredJWT } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  bearer,
  openClient,
  openLegacyClient,
  openStage,
  type Stage,
  type StageOptions,
} from '../testing/http-stage.js';
import { type Claims, nowS, openIssuer, type TestIssuer } from '../testing/issuer.js';
import { openProxy } from '../testing/proxy.js';
import { makeAgents } from '../testing/world.js';

let issuer: TestIssuer;
let stage: Stage;
const tokens: string[] = [];
const EVERYTHING = 'mcp:call handoffs:read handoffs:write approvals:read approvals:write turns:read';

const PUBLIC_URL = 'https://boxcar.example';
const audience = `${PUBLIC_URL}/mcp`;

const openServer = (options: Partial<StageOptions> = {}, more: object = {}): Promise<Stage> =>
  openStage({
    oauth: {
      issuer: issuer.url,
      publicUrl: PUBLIC_URL,
      project: 'default',
      pauseMs: 0,
      cooldownMs: 0,
      ...more,
    },
    groups: new Set(['sessions', 'approvals']),
    ...options,
  });

beforeAll(async () => {
  issuer = await openIssuer({ audience });
  // The check of keys runs too rarely to end a stream here; only the end of a token does.
  stage = await openServer({ checkMs: 600_000 });
  await makeAgents(stage, ['scout']);
  await createProject(stage.database.pool, { name: 'other' });
  await createProject(stage.database.pool, { name: 'closed' });
  await archiveProject(stage.database.pool, 'closed');
});
beforeEach(() => {
  issuer.broken = undefined;
});
afterAll(async () => {
  await stage[Symbol.asyncDispose]();
  await issuer[Symbol.asyncDispose]();
});

async function tokenOf(claims: Claims = {}): Promise<string> {
  const token = await issuer.token(claims);
  tokens.push(token);
  return token;
}

const HEADERS = { accept: 'application/json, text/event-stream', 'content-type': 'application/json' };
const send = (
  token: string,
  body: object,
  { url = stage.url, session }: { readonly url?: string; readonly session?: string } = {},
): Promise<Response> =>
  fetch(url, {
    method: 'POST',
    headers: {
      ...HEADERS,
      ...bearer(token),
      ...(session === undefined ? {} : { 'mcp-session-id': session }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, ...body }),
  });
const INITIALIZE = {
  method: 'initialize',
  params: {
    protocolVersion: '2025-11-25',
    capabilities: {},
    clientInfo: { name: 'raw', version: '1' },
  },
};
const PING = { method: 'ping' };
const open = (token: string, url?: string): Promise<Response> =>
  send(token, INITIALIZE, url === undefined ? {} : { url });

async function sessionOf(token: string, url?: string): Promise<string> {
  const answer = await open(token, url);
  expect(answer.status).toBe(200);
  await answer.text();
  return answer.headers.get('mcp-session-id') ?? '';
}
const openStream = (token: string, session: string, url = stage.url): Promise<Response> =>
  fetch(url, { headers: { ...bearer(token), accept: 'text/event-stream', 'mcp-session-id': session } });

const toolsOf = async (token: string): Promise<readonly string[]> => {
  const client = await openClient(stage.url, token);
  const { tools } = await client.listTools();
  await client.close();
  return tools.map((tool) => tool.name);
};

describe('the metadata of the server', () => {
  test('name the issuer of tokens at both addresses, and a refusal names the address of the metadata', async () => {
    const origin = new URL(stage.url).origin;
    const refused = await fetch(stage.url, { method: 'POST', headers: HEADERS, body: '{}' });
    expect(refused.status).toBe(401);
    const { resourceMetadataUrl } = extractWWWAuthenticateParams(refused);
    expect(resourceMetadataUrl?.href).toBe(`${PUBLIC_URL}/.well-known/oauth-protected-resource/mcp`);
    for (const path of ['', '/mcp']) {
      const answer = await fetch(`${origin}/.well-known/oauth-protected-resource${path}`);
      expect([answer.status, await answer.json()]).toEqual([
        200,
        {
          resource: audience,
          resource_name: 'Boxcar',
          authorization_servers: [issuer.url],
          scopes_supported: [
            ...['mcp:call', 'handoffs:read', 'handoffs:write'],
            ...['approvals:read', 'approvals:write', 'turns:read'],
          ],
          bearer_methods_supported: ['header'],
        },
      ]);
    }
  });

  test('do not exist without an issuer, and nothing else changes', async () => {
    await using plain = await openStage({ database: stage.database });
    const { origin } = new URL(plain.url);
    for (const path of ['', '/mcp'])
      expect((await fetch(`${origin}/.well-known/oauth-protected-resource${path}`)).status).toBe(404);
    const refused = await open(await tokenOf(), plain.url);
    expect([refused.status, refused.headers.get('www-authenticate')]).toEqual([
      401,
      'Bearer realm="boxcar", error="invalid_token"',
    ]);
    expect(plain.frame.routes.filter(({ scope }) => scope === 'public').map(({ path }) => path)).toEqual([
      '/healthz',
    ]);
  });

  test('lead the official client to the issuer behind a proxy, and it gets a token and connects', async () => {
    await using proxy = await openProxy();
    await using other = await openServer({ database: stage.database }, { publicUrl: proxy.url });
    proxy.target = other.url;
    const url = `${proxy.url}/mcp`;
    const found = await discoverOAuthServerInfo(url);
    expect(found).toMatchObject({
      authorizationServerUrl: issuer.url,
      resourceMetadata: { resource: url },
    });
    const authProvider = new ClientCredentialsProvider({
      clientId: 'program',
      clientSecret: 'secret',
      expectedIssuer: issuer.url,
    });
    const client = new Client({ name: 'test', version: '1.0.0' });
    await client.connect(new StreamableHTTPClientTransport(new URL(url), { authProvider }));
    expect(client.getServerVersion()).toMatchObject({ name: 'boxcar' });
    await client.close();
  });

  test('are found by clients that put the path of the address at the end', async () => {
    await using other = await openServer(
      { database: stage.database },
      { publicUrl: `${PUBLIC_URL}/boxcar/`, audience: `${PUBLIC_URL}:443/boxcar/mcp` },
    );
    const refused = await open('none', other.url);
    expect(extractWWWAuthenticateParams(refused).resourceMetadataUrl?.href).toBe(
      `${PUBLIC_URL}/.well-known/oauth-protected-resource/boxcar/mcp`,
    );
    for (const aud of [`${PUBLIC_URL}:443/boxcar/mcp`, `${PUBLIC_URL}/boxcar/mcp`])
      expect((await open(await tokenOf({ aud }), other.url)).status).toBe(200);
    expect((await open(await tokenOf(), other.url)).status).toBe(401);
  });

  test.each([
    { publicUrl: `${PUBLIC_URL}/mcp` },
    { publicUrl: `${PUBLIC_URL}//` },
    { publicUrl: `${PUBLIC_URL}#` },
    { publicUrl: `${PUBLIC_URL}?` },
    { publicUrl: undefined, audience: `${PUBLIC_URL}/a?b=/mcp` },
    { publicUrl: undefined, audience: `${PUBLIC_URL}/a#/mcp` },
    { issuer: 'https:id.example' },
  ])('%j are not valid settings of a server', async (more) => {
    await expect(openServer({ database: stage.database }, more)).rejects.toMatchObject({
      code: 'bad_config',
    });
  });

  test('a server without the project of its tokens reports so', async () => {
    await using other = await openServer({ database: stage.database }, { project: 'nowhere' });
    const refused = await open(await tokenOf(), other.url);
    expect([refused.status, await refused.json()]).toMatchObject([
      403,
      { code: 'permission_denied', next: expect.stringContaining('--project') },
    ]);
    expect(other.log.some(({ event }) => event === 'oauth.no_project')).toBe(true);
  });

  test('a server that accepts tokens needs no key to be reachable for others', async () => {
    await using other = await openServer({ host: '0.0.0.0', allowedHosts: ['boxcar.example'] });
    expect((await open(await tokenOf(), other.url.replace('0.0.0.0', '127.0.0.1'))).status).toBe(200);
    await expect(openStage({ host: '0.0.0.0' })).rejects.toMatchObject({ code: 'bad_config' });
  });
});

describe('a token', () => {
  test('of the issuer is valid in both revisions for its scopes, and keys stay valid', async () => {
    const token = await tokenOf({ scope: 'mcp:call handoffs:read unknown:scope a2a:all' });
    const modern = await openClient(stage.url, token);
    const legacy = await openLegacyClient(stage.url, token);
    for (const client of [modern, legacy]) {
      const { tools } = await client.listTools();
      expect(tools.map((tool) => tool.name).toSorted()).toEqual([
        'get_context',
        'get_summary',
        'list_handoffs',
      ]);
      await client.close();
    }
    expect((await open(await stage.key())).status).toBe(200);
  });

  test.each(['JWT', 'at+jwt', 'application/AT+JWT'])('may have the type %s', async (typ) => {
    expect((await open(await issuer.token({}, { typ }))).status).toBe(200);
  });

  test('of another issuer, or an expired token, causes no request', async () => {
    await using own = await openIssuer({ audience });
    await using other = await openServer({ database: stage.database }, { issuer: own.url });
    for (const claims of [{ iss: 'https://other.example' }, { exp: nowS() - 60 }])
      expect((await open(await own.token(claims), other.url)).status).toBe(401);
    expect(own.asked).toEqual([]);
    expect((await open(await own.token(), other.url)).status).toBe(200);
  });

  test('may be for several servers', async () => {
    expect((await open(await tokenOf({ aud: ['https://other.example', audience] }))).status).toBe(200);
  });

  const payload = (): JWTPayload => ({
    iss: issuer.url,
    aud: audience,
    sub: 'ada',
    exp: nowS() + 600,
    scope: EVERYTHING,
  });
  const secretOf = async (): Promise<Uint8Array> =>
    new TextEncoder().encode(await exportSPKI(issuer.publicKey));

  test.each<[string, () => Promise<string>]>([
    ['that has expired', () => tokenOf({ exp: nowS() - 60 })],
    ['that is not valid yet', () => tokenOf({ nbf: nowS() + 600 })],
    ['for another server', () => tokenOf({ aud: 'https://other.example/mcp' })],
    ['for the server without its path', () => tokenOf({ aud: new URL(audience).origin })],
    ['for no server', () => tokenOf({ aud: undefined })],
    ['of another issuer', () => tokenOf({ iss: 'https://other.example' })],
    ['of the issuer with another spelling', () => tokenOf({ iss: `${issuer.url}/` })],
    ['without an issuer', () => tokenOf({ iss: undefined })],
    ['without an end', () => tokenOf({ exp: undefined })],
    ['without a subject', () => tokenOf({ sub: undefined })],
    ['with an empty subject', () => tokenOf({ sub: '' })],
    ['with scopes that are not a text', () => tokenOf({ scope: ['mcp:call'] })],
    ['with a project that is not a text', () => tokenOf({ boxcar_project: 7 })],
    ['without a signature', async () => new UnsecuredJWT(payload()).encode()],
    [
      'signed with the public key as a secret',
      async () =>
        new SignJWT(payload()).setProtectedHeader({ alg: 'HS256', kid: '1' }).sign(await secretOf()),
    ],
    [
      'signed with another issuer’s key',
      async () => {
        const { privateKey } = await generateKeyPair('RS256');
        return new SignJWT(payload()).setProtectedHeader({ alg: 'RS256', kid: '1' }).sign(privateKey);
      },
    ],
    [
      'whose claims were changed',
      async () => {
        const [head, , end] = (await tokenOf()).split('.');
        const body = Buffer.from(JSON.stringify({ ...payload(), sub: 'eve' })).toString('base64url');
        return `${head}.${body}.${end}`;
      },
    ],
    ['that is not a token', async () => 'eyJhbGciOiJSUzI1NiJ9.e30.AAAA'],
    ['with a key that the issuer does not have', () => issuer.token({}, { kid: 'unknown' })],
    ['that names no key', () => issuer.token({}, { kid: null })],
    ['for another purpose', () => issuer.token({}, { typ: 'logout+jwt' })],
  ])('%s is refused, and the answer does not give the reason', async (_what, make) => {
    const token = await make();
    tokens.push(token);
    const answer = await open(token);
    const body = (await answer.json()) as { readonly code: string; readonly detail: string };
    expect([answer.status, body.code, body.detail]).toEqual([
      401,
      'unauthorized',
      'The token is not valid here.',
    ]);
    const challenge = answer.headers.get('www-authenticate') ?? '';
    expect(challenge).toContain(`error="invalid_token", resource_metadata="${PUBLIC_URL}`);
  });

  test('without the scope of the door is 403, and the answer names the scope', async () => {
    for (const scope of ['handoffs:read', undefined, 'MCP:CALL', 'mcp:callx']) {
      const answer = await open(await tokenOf({ scope }));
      expect([scope, answer.status]).toEqual([scope, 403]);
      const challenge = answer.headers.get('www-authenticate') ?? '';
      expect(challenge).toContain(
        `error="insufficient_scope", scope="mcp:call", resource_metadata="${PUBLIC_URL}`,
      );
    }
  });

  test('for one server of the issuer is not valid at another server', async () => {
    const { database } = stage;
    await using other = await openServer({ database }, { publicUrl: 'https://other.example' });
    expect((await open(await tokenOf({ scope: EVERYTHING }), other.url)).status).toBe(401);
  });
});

describe('the project and the agent of a token', () => {
  test('are the named project and its operator, and other projects are invisible', async () => {
    const here = await openClient(stage.url, await tokenOf({ scope: EVERYTHING }));
    await here.callTool({
      name: 'register_session',
      arguments: { session_key: 'oauth-1', agent_from: 'claude' },
    });
    const there = await openClient(stage.url, await tokenOf({ scope: EVERYTHING, boxcar_project: 'other' }));
    const find = { name: 'get_summary', arguments: { session_key: 'oauth-1' } };
    expect((await here.callTool(find)).structuredContent).toMatchObject({ success: true });
    const refused = await there.callTool(find);
    expect([refused.isError, JSON.stringify(refused.content)]).toEqual([
      true,
      expect.stringContaining('SESSION_NOT_FOUND'),
    ]);
    await Promise.all([here.close(), there.close()]);
  });

  test.each<[string, Claims]>([
    ['an unknown project', { boxcar_project: 'nowhere' }],
    ['an archived project', { boxcar_project: 'closed' }],
    ['an unknown agent', { boxcar_agent: 'nobody' }],
    ['an agent of another project', { boxcar_project: 'other', boxcar_agent: 'scout' }],
    ['the operator as an agent', { boxcar_agent: 'operator' }],
    ['an invalid name', { boxcar_agent: 'a\u0000b' }],
  ])('are refused with 403 when the token names %s', async (_what, claims) => {
    const answer = await open(await tokenOf({ scope: EVERYTHING, ...claims }));
    expect([answer.status, ((await answer.json()) as { code: string }).code]).toEqual([
      403,
      'permission_denied',
    ]);
  });

  test('can be an agent, and the token then acts as this agent, which never decides', async () => {
    expect(await toolsOf(await tokenOf({ scope: EVERYTHING }))).toContain('decide_approval');
    const agent = await tokenOf({ scope: EVERYTHING, boxcar_agent: 'scout' });
    const names = await toolsOf(agent);
    expect(names).toContain('list_approvals');
    expect(names).not.toContain('decide_approval');
    const client = await openClient(stage.url, agent);
    const made = await client.callTool({
      name: 'register_session',
      arguments: { session_key: 'oauth-scout' },
    });
    expect(made.structuredContent).toMatchObject({ session: { agent_from: 'scout' } });
    await client.close();
  });
});

describe('in sessions and streams', () => {
  test('a session belongs to its subject, with any of its tokens, but not with fewer scopes than at its opening', async () => {
    const session = await sessionOf(await tokenOf({ scope: 'mcp:call handoffs:read' }));
    const statusOf = async (token: string): Promise<number> => (await send(token, PING, { session })).status;
    const wide = 'mcp:call handoffs:read handoffs:write';
    expect(await statusOf(await tokenOf({ scope: wide, jti: 'next' }))).toBe(200);
    expect(await statusOf(await tokenOf({ scope: wide, sub: 'eve' }))).toBe(404);
    expect(await statusOf(await tokenOf({ scope: 'mcp:call' }))).toBe(404);
    expect(await statusOf(await tokenOf({ scope: wide, boxcar_project: 'other' }))).toBe(404);
    expect(await statusOf(await tokenOf({ scope: wide, boxcar_agent: 'scout' }))).toBe(404);
    expect(await statusOf(await stage.key())).toBe(404);
  });

  test('all tokens of a subject have one limit', async () => {
    await using other = await openServer({ limits: { sessions: 1 } });
    expect((await open(await tokenOf(), other.url)).status).toBe(200);
    expect((await open(await tokenOf({ jti: 'next' }), other.url)).status).toBe(429);
    expect((await open(await tokenOf({ sub: 'eve' }), other.url)).status).toBe(200);
  });

  test('the streams of a token end with it, and the session continues with the next token', async () => {
    const exp = nowS() + 2;
    const short = await tokenOf({ exp });
    const session = await sessionOf(short);
    const stream = await openStream(short, session);
    expect(stream.status).toBe(200);
    await stream.text();
    expect(Date.now()).toBeGreaterThan(exp * 1000);
    expect((await send(short, PING, { session })).status).toBe(401);
    const next = await tokenOf();
    expect((await send(next, PING, { session })).status).toBe(200);
    const again = await openStream(next, session);
    expect(again.status).toBe(200);
    await again.body?.cancel();
  });

  test('a stream of the newer revision ends with its token', async () => {
    const exp = nowS() + 2;
    const short = await tokenOf({ exp, scope: 'mcp:call handoffs:read' });
    const version = '2026-07-28';
    const answer = await fetch(stage.url, {
      method: 'POST',
      headers: {
        ...HEADERS,
        ...bearer(short),
        'mcp-protocol-version': version,
        'mcp-method': 'subscriptions/listen',
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'subscriptions/listen',
        params: {
          notifications: { resourceSubscriptions: ['handoff://sessions'] },
          _meta: {
            'io.modelcontextprotocol/protocolVersion': version,
            'io.modelcontextprotocol/clientInfo': { name: 'raw', version: '1' },
            'io.modelcontextprotocol/clientCapabilities': {},
          },
        },
      }),
    });
    expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'text/event-stream']);
    await answer.text();
    expect(Date.now()).toBeGreaterThan(exp * 1000);
  });

  test('a stream ends when the project of its token is archived', async () => {
    await createProject(stage.database.pool, { name: 'brief' });
    await using other = await openServer({ database: stage.database, checkMs: 20 });
    const token = await tokenOf({ boxcar_project: 'brief' });
    const stream = await openStream(token, await sessionOf(token, other.url), other.url);
    await archiveProject(stage.database.pool, 'brief');
    await stream.text();
  });
});

describe('an issuer during operation', () => {
  test('may change its key: new tokens are valid, and tokens of the old key end', async () => {
    const old = await tokenOf();
    expect((await open(old)).status).toBe(200);
    await issuer.rotate();
    expect((await open(await tokenOf())).status).toBe(200);
    expect((await open(old)).status).toBe(401);
  });

  test('may be away: known keys stay valid, and tokens that cannot be judged give an error without details', async () => {
    const known = await tokenOf();
    expect((await open(known)).status).toBe(200);
    issuer.broken = (answer) => void answer.destroy();
    expect((await open(known)).status).toBe(200);
    const unknown = await open(await issuer.token({}, { kid: 'unknown' }));
    expect([unknown.status, ((await unknown.json()) as { code: string }).code]).toEqual([
      503,
      'issuer_unavailable',
    ]);
    const ended = await issuer.token({ exp: nowS() - 60 }, { kid: 'unknown' });
    expect((await open(ended)).status).toBe(401);
    expect((await open(known)).status).toBe(200);
  });
});

test('no log line contains a token', () => {
  const log = JSON.stringify(stage.log, (_key, value) => (value instanceof Error ? `${value.stack}` : value));
  expect(log).toContain('oauth.token_refused');
  for (const token of tokens) expect(log.includes(token)).toBe(false);
  for (const [, body = ''] of tokens.map((token) => token.split('.')))
    if (body.length > 20) expect(log.includes(body)).toBe(false);
});
