/** `boxcar mcp`, as a client starts it. The tests of the server itself are in @boxcar/mcp. */
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cli, type Env, prepare, startCli } from '../../testing/cli.js';

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

test('an unknown group is wrong usage, and an unknown agent is an error', async () => {
  expect(await cli(['mcp', '--tools', 'all'], env)).toMatchObject({ code: 2, stdout: '' });
  const { code, stderr } = await cli(['mcp', '--agent', 'nobody', '--json'], env);
  expect([code, JSON.parse(stderr.trimEnd().split('\n').at(-1) ?? '')]).toMatchObject([
    1,
    { error: { code: 'not_found' } },
  ]);
});
