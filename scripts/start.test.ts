import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chatWire, inOrder, openProviderServer, SERVER_KEY } from '@boxcar/llm/testing';
import { type NodeChild, spawnNode, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';

let home: string;
let folder: string;

beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'boxcar-start-'));
  chmodSync(home, 0o755);
  folder = join(home, 'tree');
  mkdirSync(folder);
  writeFileSync(join(folder, 'a.ts'), 'export const a = 1;\nexport const b = 2; // TODO: count me\n');
});

afterAll(() => rmSync(home, { recursive: true, force: true }));

async function start(args: readonly string[], databaseUrl?: string): Promise<NodeChild> {
  const child = spawnNode(new URL('start.mjs', import.meta.url), args, {
    DATABASE_URL: databaseUrl,
    DATABASE_DIRECT_URL: undefined,
    REDIS_URL: undefined,
    BOXCAR_LOG_LEVEL: undefined,
    // Do not wait for a server that is away.
    BOXCAR_DATABASE_WAIT_SECONDS: '0',
    BOXCAR_DATA_DIR: join(home, 'data'),
  });
  await child.exited;
  return child;
}

it('with nothing but Node: starts the embedded Postgres, surveys the folder, prints one line of JSON and ends', async () => {
  const child = await start(['--once', '--json', folder]);
  expect(await child.exited, child.stderr).toEqual({ code: 0, signal: null });
  expect(child.stdout.trimEnd().split('\n')).toHaveLength(1);
  const result: Record<string, unknown> = JSON.parse(child.stdout);
  expect(Object.keys(result)).toEqual(['status', 'run_id', 'turns', 'steps', 'deliverable']);
  expect(result).toMatchObject({
    status: 'success',
    run_id: expect.stringMatching(/^[0-9a-f-]{36}$/),
    deliverable: { files: 1, lines: 2, exports: 2, todos: 1 },
  });
  for (const line of child.stderr.trimEnd().split('\n')) expect(line).toMatch(/^boxcar: /);
});

it('on the server of DATABASE_URL: migrates it, twice is as good as once, and without a terminal it ends by itself', async () => {
  await using database = await testDatabase({ empty: true });
  for (const args of [[folder], [folder, '--once']]) {
    const child = await start(args, database.url);
    expect(await child.exited, child.stderr).toEqual({ code: 0, signal: null });
    expect(child.stdout).toMatch(/success/);
    expect(child.stdout).toMatch(/2 lines/);
  }
  const { rows } = await database.pool.query(
    `select from boxcar.turns where status = 'success' and depth = 0`,
  );
  expect(rows).toHaveLength(2);
});

it('asks the model that it is told, at the address in the environment, and says what that answered', async () => {
  await using database = await testDatabase({ empty: true });
  await using provider = await openProviderServer(
    chatWire,
    inOrder({ status: 401, error: { message: 'who are you?' } }),
  );
  const child = spawnNode(
    new URL('start.mjs', import.meta.url),
    ['--once', '--json', folder, '--model', 'openai-compatible:local'],
    {
      DATABASE_URL: database.url,
      DATABASE_DIRECT_URL: undefined,
      REDIS_URL: undefined,
      OPENAI_COMPATIBLE_BASE_URL: provider.baseUrl,
      OPENAI_COMPATIBLE_API_KEY: SERVER_KEY,
    },
  );
  expect(await child.exited, child.stderr).toMatchObject({ code: 1 });
  expect(child.stderr).toContain('with openai-compatible:local');
  expect(JSON.parse(child.stdout)).toMatchObject({
    status: 'failed',
    deliverable: { error: { code: 'model_unauthorized' } },
  });
  expect(provider.requests.map(({ prompt }) => prompt?.model)).toEqual(['local']);
});

it('says in one line what is wrong', async () => {
  const nowhere = await start(['--once', join(home, 'nowhere')], 'postgres://127.0.0.1:1/x');
  expect(nowhere).toMatchObject({
    stdout: '',
    stderr: expect.stringMatching(/^boxcar: database_unavailable: .*\n$/),
  });
  expect(await nowhere.exited).toMatchObject({ code: 1 });
  await using database = await testDatabase({ empty: true });
  const noFolder = await start(['--once', join(home, 'nowhere')], database.url);
  expect(noFolder.stdout).toBe('');
  expect(noFolder.stderr).toMatch(/^boxcar: bad_request: .*nowhere/m);
  expect(await noFolder.exited).toMatchObject({ code: 1 });
  const usage = await start(['--twice']);
  expect(usage.stderr).toMatch(/^boxcar: bad_request: .*--twice.*; see npm start -- --help\n$/);
  expect(await usage.exited).toMatchObject({ code: 2 });
  const help = await start(['--help']);
  expect(help.stdout).toMatch(/^Usage: npm start \[-- \[folder\] \[--once\] \[--json\] \[--model /);
  expect(await help.exited).toMatchObject({ code: 0 });
});
