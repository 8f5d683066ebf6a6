/** `boxcar mcp --http` and `/mcp` of `boxcar serve`. The tests of the server itself are in @boxcar/mcp. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cli, type Env, PLUGIN, prepare, startCli } from '../../testing/cli.js';

let database: TestDatabase;
let folder: string;
let env: Env;

beforeAll(async () => {
  database = await testDatabase();
  folder = mkdtempSync(join(tmpdir(), 'boxcar-mcp-'));
  env = { DATABASE_URL: database.url, BOXCAR_DATA_DIR: folder };
  await (await prepare(env)).close();
});
afterAll(async () => {
  await database.close();
  rmSync(folder, { recursive: true, force: true });
});

interface Message {
  readonly id: number;
  readonly method: string;
  readonly params: object;
}

async function post(
  url: string,
  { key, message, session }: { readonly key: string; readonly message: Message; readonly session?: string },
): Promise<Response> {
  const headers = {
    authorization: `Bearer ${key}`,
    accept: 'application/json, text/event-stream',
    'content-type': 'application/json',
    ...(session === undefined
      ? {}
      : { 'mcp-session-id': session, 'mcp-protocol-version': INITIALIZE.params.protocolVersion }),
  };
  return fetch(`${url}/mcp`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ jsonrpc: '2.0', ...message }),
  });
}

const INITIALIZE = {
  id: 1,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};
const initialize = (url: string, key: string): Promise<Response> => post(url, { key, message: INITIALIZE });

test.each([
  ['mcp', ['mcp', '--http', '--tools', 'sessions']],
  ['serve', ['serve', '--mcp-tools', 'sessions']],
])('%s answers clients at /mcp with the key of this machine, and ends at SIGTERM', async (event, args) => {
  await using child = startCli([...args, '--json', '--port', '0'], env);
  await waitFor(() => child.stdout.includes('\n'), { message: 'the server to be ready' });
  const ready = JSON.parse(child.stdout.split('\n')[0] ?? '');
  expect(ready.event).toBe(`${event}.ready`);
  const { key } = JSON.parse(readFileSync(ready.key_file, 'utf8'));
  const answer = await initialize(ready.url, key);
  expect([answer.status, await answer.text()]).toEqual([200, expect.stringContaining('"name":"boxcar"')]);
  expect((await initialize(ready.url, 'boxcar_none')).status).toBe(401);
  // An open session does not delay the end.
  await child.kill('SIGTERM');
  expect(await child.exited).toMatchObject({ code: 0 });
  expect(child.stdout).toContain(`"${event}.stopped"`);
});

test.each([
  ['mcp', ['mcp', '--http', '--tools', 'primitives']],
  ['serve', ['serve', '--mcp-tools', 'primitives']],
])('%s offers the primitives of plugins', async (_name, args) => {
  await using child = startCli([...args, '--json', '--port', '0', '--plugin', PLUGIN], env);
  await waitFor(() => child.stdout.includes('\n'), { message: 'the server to be ready' });
  const { url, key_file } = JSON.parse(child.stdout.split('\n')[0] ?? '');
  const { key } = JSON.parse(readFileSync(key_file, 'utf8'));
  const opened = await initialize(url, key);
  await opened.text();
  const session = opened.headers.get('mcp-session-id') ?? '';
  const params = { name: 'repeat', arguments: { result: args[0], idempotency_key: `once ${args[0]}` } };
  const answer = await post(url, { key, session, message: { id: 2, method: 'tools/call', params } });
  expect(await answer.text()).toContain(`"answer":{"repeated":"${args[0]}"}`);
});

const ISSUER = 'https://id.example/tenant';

test.each([
  ['mcp', ['mcp', '--http', '--port', '0', '--public-url', 'https://boxcar.example'], {}],
  ['serve', ['serve', '--port', '0', '--public-url', 'https://boxcar.example/'], {}],
  ['serve', ['serve', '--port', '0'], { BOXCAR_OAUTH_AUDIENCE: 'https://boxcar.example/mcp' }],
])('%s names the issuer of tokens: %j %j', async (_name, args, more) => {
  await using child = startCli([...args, '--json'], { ...env, BOXCAR_OAUTH_ISSUER: ISSUER, ...more });
  await waitFor(() => child.stdout.includes('\n'), { message: 'the server to be ready' });
  const { url } = JSON.parse(child.stdout.split('\n')[0] ?? '');
  const answer = await fetch(`${url}/.well-known/oauth-protected-resource/mcp`);
  expect(await answer.json()).toMatchObject({
    resource: 'https://boxcar.example/mcp',
    authorization_servers: [ISSUER],
  });
  expect((await initialize(url, 'none')).headers.get('www-authenticate')).toContain(
    'resource_metadata="https://boxcar.example/.well-known/oauth-protected-resource/mcp"',
  );
});

test('an issuer without the address of the server prevents the start', async () => {
  for (const more of [{}, { BOXCAR_OAUTH_AUDIENCE: 'boxcar' }]) {
    const { code, stderr } = await cli(['mcp', '--http', '--port', '0'], {
      ...env,
      BOXCAR_OAUTH_ISSUER: ISSUER,
      ...more,
    });
    expect([code === 0, stderr.includes('--public-url')]).toEqual([false, true]);
  }
});

test('an invalid address prevents the start, with an issuer or without', async () => {
  const { code, stderr } = await cli(['mcp', '--http', '--port', '0', '--public-url', 'desk'], env);
  expect([code === 0, stderr.includes("publicUrl: 'desk'")]).toEqual([false, true]);
});

test('flags without effect in a mode are wrong usage', async () => {
  for (const args of [
    ['mcp', '--port', '0'],
    ['mcp', '--allow-origin', 'https://desk.example'],
    ['mcp', '--public-url', 'https://desk.example'],
    ['mcp', '--http', '--agent', 'ada'],
    ['serve', '--mcp-tools', 'all'],
  ])
    expect([args, (await cli(args, env)).code]).toEqual([args, 2]);
});
