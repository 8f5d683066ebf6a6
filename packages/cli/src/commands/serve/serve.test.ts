/** The HTTP server on the command line, its keys, and decisions by people without access to the database. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { argsHash, buildCard, type ProjectId } from '@boxcar/kernel';
import { newId } from '@boxcar/runtime';
import { requestApproval } from '@boxcar/store';
import { type NodeChild, type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { cli, type Env, prepare, startCli } from '../../testing/cli.js';

const DEFAULT_PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
let database: TestDatabase;
let folder: string;
let env: Env;

beforeAll(async () => {
  database = await testDatabase();
  await (await prepare({ DATABASE_URL: database.url })).close();
});
afterAll(() => database.close());
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-serve-'));
  env = { DATABASE_URL: database.url, BOXCAR_DATA_DIR: folder };
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

interface Ready {
  readonly url: string;
  readonly key_file: string | null;
}

const serve = (...args: string[]): NodeChild => startCli(['serve', '--json', '--port', '0', ...args], env);
async function readyOf(child: NodeChild): Promise<Ready> {
  await waitFor(async () => (child.stdout.includes('\n') ? true : undefined), {
    message: 'the server to be ready',
  });
  return JSON.parse(child.stdout.split('\n')[0] ?? '') as Ready;
}
const json = async (args: readonly string[], more: Env = env) => {
  const { stdout, stderr, code } = await cli([...args, '--json'], more);
  return code === 0 ? JSON.parse(stdout) : { code, ...JSON.parse(stderr) };
};

async function ticket(args: { readonly n: number }): Promise<string> {
  const card = buildCard(
    {
      type: 'approval.request',
      role: null,
      content: { kind: 'json', data: args },
      metadata: {},
      authorId: 'main',
    },
    { id: newId<'card'>(), projectId: DEFAULT_PROJECT },
  );
  const hashes = { argsHash: argsHash(args), contextHash: '', payloadHash: '', policyVersion: '' };
  const asked = { runId: 'run/7', turnId: null, toolCallId: null, agent: 'main', toolName: 'pay' };
  const { id } = await requestApproval(database.pool, {
    ...{ id: newId<'ticket'>(), projectId: DEFAULT_PROJECT, card, timeoutMs: 600_000, callMs: null },
    ...{ ...hashes, ...asked, metadata: {} },
  });
  return id;
}

test('a person without database access decides with the key that the server has left, or with BOXCAR_API_KEY', async () => {
  const ids = [await ticket({ n: 1 }), await ticket({ n: 2 })];
  await using server = serve();
  const { url, key_file } = await readyOf(server);
  expect(statSync(key_file ?? '').mode & 0o777).toBe(0o600);
  // These settings cannot open any database.
  const outside = { BOXCAR_DATA_DIR: folder, DATABASE_URL: 'postgres://a@127.0.0.1:1/b' };
  const ask = (args: readonly string[], more: Env = outside) => json([...args, '--url', url], more);
  const { approvals } = await ask(['approvals', 'ls', '--run', 'run/7', '--status', 'pending']);
  expect(approvals).toMatchObject([{ ticket_id: ids[1] }, { ticket_id: ids[0] }]);
  expect(await ask(['approvals', 'show', String(ids[0])])).toMatchObject({
    approval: { tool_args: { n: 1 } },
  });
  expect(await ask(['approvals', 'approve', String(ids[0]), '--reason', 'order 7'])).toMatchObject({
    approval: { status: 'approved', decision_reason: 'order 7' },
  });
  expect(await ask(['approvals', 'deny', String(ids[0])])).toMatchObject({
    code: 1,
    error: { code: 'approval_resolved' },
  });

  const made = await json(['keys', 'create', '--scope', 'approvals:read', '--name', 'desk']);
  expect(made).toEqual({
    key_id: expect.any(String),
    key: expect.stringMatching(/^boxcar_/),
    scopes: ['approvals:read'],
    project: 'default',
  });
  const other = { ...outside, BOXCAR_DATA_DIR: join(folder, 'other') };
  expect(await ask(['approvals', 'ls'], other)).toMatchObject({ code: 1, error: { code: 'unauthorized' } });
  const withKey = { ...other, BOXCAR_API_KEY: made.key };
  expect((await ask(['approvals', 'ls'], withKey)).approvals).toHaveLength(2);
  expect(await ask(['approvals', 'deny', String(ids[1])], withKey)).toMatchObject({
    error: { code: 'permission_denied' },
  });
  await json(['keys', 'revoke', made.key_id]);
  expect(await ask(['approvals', 'ls'], withKey)).toMatchObject({ error: { code: 'unauthorized' } });
  expect(server.stderr).not.toContain(made.key);
  expect(server.stderr).toContain('"http.request"');
});

test('a stop ends the server, and the next start uses the same key, also after a kill', async () => {
  const keyFiles = () => readdirSync(join(folder, 'http', 'keys'));
  const keys: string[] = [];
  for (const signal of ['SIGTERM', 'SIGKILL', 'SIGTERM'] as const) {
    await using server = serve();
    const { url, key_file } = await readyOf(server);
    const { key } = JSON.parse(readFileSync(key_file ?? '', 'utf8')) as { key: string };
    keys.push(key);
    const answer = await fetch(`${url}/approvals`, { headers: { authorization: `Bearer ${key}` } });
    expect(answer.status).toBe(200);
    server.kill(signal);
    const { code } = await server.exited;
    if (signal === 'SIGTERM') {
      expect(code).toBe(0);
      expect(server.stdout).toContain('"serve.stopped"');
    }
  }
  expect(new Set(keys).size).toBe(1);
  expect(keyFiles()).toHaveLength(1);
  // An orderly end removes the server's announcement; a killed process leaves it.
  expect(readdirSync(join(folder, 'http', 'servers'))).toHaveLength(1);
}, 60_000);

describe('on other addresses', () => {
  test('a server that other machines can reach does not start without a key, and leaves no key', async () => {
    const own = await testDatabase();
    await (await prepare({ DATABASE_URL: own.url })).close();
    const { code, stderr } = await cli(['serve', '--port', '0', '--host', '0.0.0.0'], {
      ...env,
      DATABASE_URL: own.url,
    });
    expect(code).toBe(1);
    expect(stderr).toMatch(/bad_config: host: '0\.0\.0\.0' .*boxcar keys create/);
    expect(readdirSync(folder)).toEqual([]);
    await own.close();
  });

  test('a server starts with a key, whatever BOXCAR_ENVIRONMENT says', async () => {
    await json(['keys', 'create', '--scope', 'approvals:read']);
    env = { ...env, BOXCAR_ENVIRONMENT: 'development' };
    await using server = serve('--host', '0.0.0.0');
    expect(await readyOf(server)).toMatchObject({ key_file: null });
    expect(readdirSync(folder)).toEqual([]);
  });
});

test('keys are made, listed, rotated and revoked, and wrong usage is reported', async () => {
  const made = await json([
    'keys',
    'create',
    '--scope',
    'handoffs:read',
    '--expires',
    '30d',
    '--name',
    'old one',
  ]);
  expect(Date.parse(made.expires_at)).toBeGreaterThan(Date.now() + 29 * 86_400_000);
  const next = await json(['keys', 'rotate', made.key_id, '--grace', '60']);
  expect(next).toMatchObject({ scopes: ['handoffs:read'], key: expect.stringMatching(/^boxcar_/) });
  const { stdout } = await cli(['keys', 'ls'], env);
  expect(stdout.match(/old one/g)).toHaveLength(2);
  expect(stdout).not.toContain(next.key);
  await json(['keys', 'revoke', next.key_id]);
  const { keys } = await json(['keys', 'ls', '--all', '--limit', '1']);
  expect(keys).toMatchObject([{ key_id: next.key_id, status: 'revoked' }]);
  for (const args of [
    ['keys', 'create'],
    ['keys', 'create', '--scope', 'everything'],
    ['keys', 'revoke', 'x'],
    ['serve', '--port', '70000'],
    ['approvals', 'ls', '--url', 'ftp://x'],
    ['approvals', 'ls', '--url', 'http://127.0.0.1:1', '--project', 'x'],
  ])
    expect([args, (await cli(args, env)).code]).toEqual([args, 2]);
}, 60_000);

test('the public agents are listed at the start, and their cards have the address for other platforms', async () => {
  const started = await prepare({ DATABASE_URL: database.url });
  const shared = { instructions: '', model: 'scripted', script: [{ say: 'x' }] };
  await started.runtime.applyProfile({ ...shared, name: 'desk clerk', public: true });
  await started.runtime.applyProfile({ ...shared, name: 'inner', public: false });
  await started.close();
  await using server = serve('--public-url', 'https://agents.example');
  const { key } = await json(['keys', 'create', '--scope', 'a2a:call']);
  const { url, public_agents } = (await readyOf(server)) as Ready & {
    public_agents: { path: string }[];
  };
  expect(public_agents).toEqual([{ project: 'default', name: 'desk clerk', path: '/a2a/desk%20clerk' }]);
  await using plain = startCli(['serve', '--port', '0'], env);
  await waitFor(
    async () => plain.stderr.includes('public agent desk clerk of default: /a2a/desk%20clerk') || undefined,
    {
      message: 'the agent to be named',
    },
  );
  const headers = { authorization: `Bearer ${key}` };
  const card = await fetch(`${url}${public_agents[0]?.path}/.well-known/agent-card.json`, { headers });
  expect(await card.json()).toMatchObject({ url: 'https://agents.example/a2a/desk%20clerk' });
  const wrong = await cli(['serve', '--port', '0', '--public-url', 'agents.example', '--json'], env);
  expect([wrong.code === 0, wrong.stderr.includes('bad_config')]).toEqual([false, true]);
});
