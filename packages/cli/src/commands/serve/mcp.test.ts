/** `boxcar mcp`, as a client starts it. The tests of the server itself are in @boxcar/mcp. */
import { fileURLToPath } from 'node:url';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cli, type Env, PLUGIN, prepare, startCli } from '../../testing/cli.js';

/** A plugin that prints to stdout. */
const PRINTS = fileURLToPath(new URL('../../fixtures/printing-plugin.mjs', import.meta.url));

let database: TestDatabase;
let env: Env;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  await (await prepare(env)).close();
});
afterAll(() => database.close());

const initialize = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};

test('the server serves the client that starts it, with the requested groups of tools, and ends at SIGTERM', async () => {
  await using child = startCli(['mcp', '--tools', 'approvals'], env);
  child.writeLine(JSON.stringify(initialize));
  expect(JSON.parse(await child.line(/"id":0/))).toMatchObject({
    result: { serverInfo: { name: 'boxcar' } },
  });
  child.writeLine(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/initialized' }));
  child.writeLine(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }));
  const { result } = JSON.parse(await child.line(/"id":1/));
  expect(result.tools.map(({ name }: { name: string }) => name)).not.toContain('register_session');
  await child.kill('SIGTERM');
  expect(await child.exited).toMatchObject({ code: 0 });
  expect(
    child.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line).jsonrpc),
  ).toEqual(['2.0', '2.0']);
});

test('the primitives of plugins are tools of the group primitives, and what a plugin prints does not reach stdout', async () => {
  await using child = startCli(['mcp', '--tools', 'primitives', '--plugin', PLUGIN, '--plugin', PRINTS], env);
  child.writeLine(JSON.stringify(initialize));
  await child.line(/"id":0/);
  child.writeLine(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/initialized' }));
  const params = { name: 'repeat', arguments: { result: 42, idempotency_key: 'once' } };
  child.writeLine(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params }));
  const { result } = JSON.parse(await child.line(/"id":1/));
  expect(result.structuredContent).toMatchObject({ status: 'done', answer: { repeated: 42 } });
  await child.kill('SIGTERM');
  expect(await child.exited).toMatchObject({ code: 0 });
  expect(
    child.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line).id),
  ).toEqual([0, 1]);
  expect(child.stderr).toContain('printed by a plugin');
});

test('a plugin that fails ends the command with its error', async () => {
  const { code, stdout, stderr } = await cli(['mcp', '--plugin', './nowhere.mjs', '--json'], env);
  expect([code, stdout, JSON.parse(stderr.trimEnd().split('\n').at(-1) ?? '')]).toMatchObject([
    1,
    '',
    { error: { code: 'plugin_failed' } },
  ]);
});

test('an unknown group is wrong usage, and an unknown agent is an error', async () => {
  expect(await cli(['mcp', '--tools', 'all'], env)).toMatchObject({ code: 2, stdout: '' });
  const { code, stderr } = await cli(['mcp', '--agent', 'nobody', '--json'], env);
  expect([code, JSON.parse(stderr.trimEnd().split('\n').at(-1) ?? '')]).toMatchObject([
    1,
    { error: { code: 'not_found' } },
  ]);
});
