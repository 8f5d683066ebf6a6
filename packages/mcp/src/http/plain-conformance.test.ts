/** The scenarios of the official suite that need no fixtures, against plain `boxcar mcp --http`. */
import { createKey } from '@boxcar/runtime';
import { spawnNode, testDatabase } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { keyProxy, runConformance } from '../testing/conformance.js';

const CLI = new URL('../../../cli/src/main.ts', import.meta.url);

const WITHOUT_FIXTURES = [
  'server-initialize',
  'ping',
  'tools-list',
  'resources-list',
  'prompts-list',
  'server-sse-multiple-streams',
  'dns-rebinding-protection',
];

test('every scenario without fixtures passes', async () => {
  await using database = await testDatabase();
  const env = { DATABASE_URL: database.url };
  await using migrated = spawnNode(CLI, ['migrate'], env);
  expect((await migrated.exited).code).toBe(0);
  const { key } = await createKey(database.pool, {
    scopes: ['mcp:call', 'handoffs:read', 'handoffs:write', 'tapes:read', 'tapes:write'],
  });
  await using proxy = await keyProxy();
  await using child = spawnNode(
    CLI,
    ['mcp', '--http', '--json', '--port', '0', '--allow-origin', proxy.origin],
    env,
  );
  const { url } = JSON.parse(await child.line(/"mcp\.ready"/)) as { readonly url: string };
  proxy.passTo(`${url}/mcp`, key);
  for (const scenario of WITHOUT_FIXTURES) {
    const { code, output } = await runConformance(proxy.url, scenario);
    expect([scenario, code], output).toEqual([scenario, 0]);
  }
}, 180_000);
