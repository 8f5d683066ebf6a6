import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chatWire, inOrder, openProviderServer, SERVER_KEY } from '@boxcar/llm/testing';
import { type NodeChild, spawnNode, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

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

const spawnStart = (args: readonly string[], env: Readonly<Record<string, string | undefined>>): NodeChild =>
  spawnNode(new URL('start.mjs', import.meta.url), args, {
    DATABASE_URL: undefined,
    DATABASE_DIRECT_URL: undefined,
    REDIS_URL: undefined,
    BOXCAR_LOG_LEVEL: undefined,
    // Without a wait for an unavailable server.
    BOXCAR_DATABASE_WAIT_SECONDS: '0',
    BOXCAR_DATA_DIR: join(home, 'data'),
    ...env,
  });

async function start(args: readonly string[], databaseUrl?: string): Promise<NodeChild> {
  const child = spawnStart(args, { DATABASE_URL: databaseUrl });
  await child.exited;
  return child;
}

/** Whether a process works in this folder, or has it in its arguments. */
function isOn(pid: string, dataDir: string): boolean {
  if (!/^\d+$/.test(pid)) return false;
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(dataDir);
  } catch {
    return false;
  }
}

it('with nothing but Node, a start runs the embedded Postgres, surveys the folder, prints one line of JSON and ends', async () => {
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
  const lines = child.stderr.trimEnd().split('\n');
  for (const line of lines) expect(line).toMatch(/^boxcar: /);
  expect(lines.at(-1)).toContain(`next: npx boxcar tree ${String(result.run_id)} shows who did what`);
});

it('on the server of DATABASE_URL, a start migrates it, may be repeated, and ends without a terminal', async () => {
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

it('a start asks the given model at the address in the environment, and reports its answer', async () => {
  await using database = await testDatabase({ empty: true });
  await using provider = await openProviderServer(
    chatWire,
    inOrder({ status: 401, error: { message: 'who are you?' } }),
  );
  const child = spawnStart(['--once', '--json', folder, '--model', 'openai-compatible:local'], {
    DATABASE_URL: database.url,
    OPENAI_COMPATIBLE_BASE_URL: provider.baseUrl,
    OPENAI_COMPATIBLE_API_KEY: SERVER_KEY,
  });
  expect(await child.exited, child.stderr).toMatchObject({ code: 1 });
  expect(child.stderr).toContain('with openai-compatible:local');
  expect(JSON.parse(child.stdout)).toMatchObject({
    status: 'failed',
    deliverable: { error: { code: 'model_unauthorized' } },
  });
  expect(provider.requests.map(({ prompt }) => prompt?.model)).toEqual(['local']);
});

it('two starts at once on one database survey their own folders', async () => {
  await using database = await testDatabase({ empty: true });
  const other = join(home, 'other');
  for (const part of ['one', 'two', 'three', 'four']) {
    mkdirSync(join(other, part), { recursive: true });
    writeFileSync(join(other, part, 'b.ts'), 'export const a = 1;\n'.repeat(7));
  }
  await start(['--once', folder], database.url);
  const trees = [folder, other, folder, other];
  const children = await Promise.all(trees.map((tree) => start(['--once', '--json', tree], database.url)));
  const figures = children.map(({ stdout }) => JSON.parse(stdout).deliverable);
  for (const [index, tree] of trees.entries())
    expect(figures[index]).toMatchObject(tree === folder ? { files: 1, lines: 2 } : { files: 4, lines: 28 });
});

describe('Ctrl-C', () => {
  const ended = { code: 130, signal: null };

  it.each([
    ['makes its first cluster', (name: string) => name.startsWith('.cluster-')],
    ['starts its server', (name: string) => name === 'socket'],
  ])('ends a start that %s, and leaves no process on its folder', async (title, isThere) => {
    const dataDir = join(home, title.replaceAll(' ', '-'));
    const folder = join(dataDir, 'postgres-18');
    const child = spawnStart(['--once', folder], { BOXCAR_DATA_DIR: dataDir });
    await waitFor(() => existsSync(folder) && readdirSync(folder).some(isThere), { message: title });
    await child.kill('SIGINT');
    expect(await child.exited).toEqual(ended);
    await waitFor(() => !readdirSync('/proc').some((pid) => isOn(pid, dataDir)), {
      message: 'all its processes have ended',
    });
  });

  it('ends a start that waits for a migration', async () => {
    await using database = await testDatabase({ empty: true });
    const holder = await database.pool.connect();
    try {
      await holder.query('select pg_advisory_lock(7205129001)');
      const child = spawnStart(['--once', folder], { DATABASE_URL: database.url });
      await waitFor(
        async () => {
          const { rows } = await database.pool.query(
            `select from pg_stat_activity where datname = current_database() and query like '%pg_try_advisory_lock%' and pid <> pg_backend_pid()`,
          );
          return rows.length > 0;
        },
        { message: 'it waits for the lock' },
      );
      await child.kill('SIGINT');
      expect(await child.exited).toEqual(ended);
    } finally {
      holder.release(true);
    }
  });

  it('ends a start that waits for a database', async () => {
    const child = spawnStart(['--once', folder], {
      DATABASE_URL: 'postgres://127.0.0.1:1/x',
      BOXCAR_DATABASE_WAIT_SECONDS: '600',
      BOXCAR_LOG_LEVEL: 'info',
    });
    await waitFor(() => child.stderr !== '', { message: 'it says that it waits' });
    await child.kill('SIGINT');
    expect(await child.exited).toEqual(ended);
  });

  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('%s cancels the run of a start that is waiting for the model', async (signal, code) => {
    await using database = await testDatabase({ empty: true });
    await using provider = await openProviderServer(chatWire, () => new Promise(() => {}));
    const child = spawnStart(['--once', '--json', folder, '--model', 'openai-compatible:local'], {
      DATABASE_URL: database.url,
      OPENAI_COMPATIBLE_BASE_URL: provider.baseUrl,
      OPENAI_COMPATIBLE_API_KEY: SERVER_KEY,
    });
    await waitFor(() => provider.requests.length > 0, { message: 'the model is asked' });
    await child.kill(signal);
    expect(await child.exited).toEqual({ code, signal: null });
    expect(child.stdout).toBe('');
    const { rows } = await database.pool.query(
      `select t.status, t.error->>'message' as reason, (select count(*)::int from boxcar.turns) as turns from boxcar.turns t`,
    );
    expect(rows).toEqual([{ status: 'canceled', reason: expect.stringContaining('stopped'), turns: 1 }]);
  });
});

it('a start reports an error in one line', async () => {
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
