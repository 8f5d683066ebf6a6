import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cliHere } from '../../testing/cli.js';

let database: TestDatabase;
const run = (...args: string[]) => cliHere(args, { DATABASE_URL: database.url });

beforeAll(async () => {
  database = await testDatabase();
});
afterAll(() => database.close());

it('the limits of a provider are set one by one, removed by name, and listed', async () => {
  expect((await run('providers', 'ls')).stdout).toBe('no provider has limits or failures\n');
  await run('providers', 'set', 'openai', '--max-concurrent', '20', '--requests-per-minute', '500');
  const set = await run('providers', 'set', 'openai', '--requests-per-minute', 'none', '--json');
  expect(set).toMatchObject({ code: 0, stderr: '' });
  expect(JSON.parse(set.stdout)).toMatchObject({
    providers: [{ name: 'openai', max_concurrent: 20, requests_per_minute: null, in_use: 0, waiting: 0 }],
  });
  expect((await run('providers', 'ls')).stdout).toBe(
    [
      'provider  at once  per minute  calls  waiting  state',
      'openai         20        none      0        0  works\n',
    ].join('\n'),
  );
});

it.each([
  [['openai', '--max-concurrent', '0'], /max-concurrent.*from 1 to 1000000, or 'none'/],
  [['openai', '--requests-per-minute', '-5'], /whole number from 1/],
  [['openai', '--breaker-after', 'soon'], /from 0 to 1000000, or 'default'/],
  [['openai:gpt', '--max-concurrent', '1'], /before ':'/],
])('%j is refused, and nothing is written', async (args, message) => {
  const { code, stderr } = await run('providers', 'set', ...args);
  expect(code).toBe(2);
  expect(stderr).toMatch(message);
  expect((await run('providers', 'ls')).stdout).not.toContain(':');
});

it('set without a limit lists the possible limits, and prints no providers', async () => {
  const { code, stderr } = await run('providers', 'set', 'mistral');
  expect(code).toBe(2);
  expect(stderr).toMatch(/--max-concurrent, --requests-per-minute or --breaker-after/);
  expect((await run('providers', 'ls')).stdout).not.toContain('mistral');
});

it('limits of an API that counts for another provider are refused with the name of that provider', async () => {
  const { code, stderr } = await run('providers', 'set', 'openai-chat', '--max-concurrent', '1');
  expect(code).toBe(1);
  expect(stderr).toMatch(/calls of openai-chat count as calls of openai: set the limits of openai/);
  expect((await run('providers', 'ls')).stdout).not.toContain('openai-chat');
});
