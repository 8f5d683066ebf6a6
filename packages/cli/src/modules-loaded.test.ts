/** The cost of a start is the number of loaded modules: a limit on it does not depend on the load of the machine. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, expect, it } from 'vitest';
import type { Env } from './testing/cli.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-modules-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** The packages that run the sources directly, when nothing was built. */
const LOADER = new Set(['tsx', 'esbuild', 'get-tsconfig']);

const MAIN = [join(import.meta.dirname, 'main.ts')];

/** The modules that a command line, or another program, loads, by package. */
function modulesOf(
  args: readonly string[],
  env: Env = {},
  program: readonly string[] = MAIN,
): ReadonlyMap<string, ReadonlySet<string>> {
  const file = join(folder, `${args.join('')}.modules`);
  const { status, stderr } = spawnSync(
    process.execPath,
    [
      ...['--conditions=@boxcar/source', '--import=tsx'],
      `--import=${pathToFileURL(join(import.meta.dirname, 'fixtures/modules-loaded.mjs')).href}`,
      ...program,
      ...args,
    ],
    {
      cwd: import.meta.dirname,
      encoding: 'utf8',
      env: { PATH: process.env.PATH, MODULES_FILE: file, ...env },
    },
  );
  expect(stderr).toBe('');
  expect(status).toBe(env.DATABASE_URL === undefined ? 0 : 1);
  const modules = new Map<string, Set<string>>();
  for (const line of readFileSync(file, 'utf8').split('\n')) {
    const path = line.replace('file://', '').replace(/\?.*/, '');
    const [, name, rest] =
      /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)\/(.*)/.exec(path) ??
      /\/packages\/([^/]+)\/src\/(.*)/.exec(path) ??
      [];
    if (name === undefined || rest === undefined || LOADER.has(name) || path.includes('/fixtures/')) continue;
    modules.set(name, (modules.get(name) ?? new Set()).add(rest));
  }
  return modules;
}

it.each(['--version', '--help'])('%s loads the table of the commands, and no command', (flag) => {
  const modules = modulesOf([flag]);
  expect([...modules.keys()].sort()).toEqual(['cli', 'commander', 'host', 'kernel']);
  expect(modules.get('cli')).toContain('command-table.ts');
  expect([...(modules.get('cli') ?? [])].filter((path) => path.startsWith('commands/'))).toEqual([]);
  expect(modules.get('cli')?.size).toBeLessThan(11);
  expect([...(modules.get('host') ?? [])].sort()).toEqual([
    ...['base.ts', 'environment.ts', 'plain-text.ts', 'stray-calls.ts'],
  ]);
  expect(modules.get('kernel')?.size).toBeLessThan(15);
});

it('health loads the modules for database access, and no others', async () => {
  await using database = await testDatabase();
  const modules = modulesOf(['health'], { DATABASE_URL: database.url });
  const packages = [...modules.keys()];
  expect(packages).toEqual(
    expect.arrayContaining(['cli', 'commander', 'host', 'kernel', 'pg', 'store', 'zod']),
  );
  expect(
    packages.filter(
      (name) => !/^(cli|commander|host|kernel|llm|pg.*|postgres-.*|runtime|store|xtend|zod)$/.test(name),
    ),
  ).toEqual([]);
  expect([...(modules.get('cli') ?? [])].filter((path) => path.startsWith('commands/'))).toEqual([
    'commands/admin/health.ts',
  ]);
  expect([...(modules.get('runtime') ?? [])]).toEqual(['lib/log.ts']);
  expect([...(modules.get('llm') ?? [])]).toEqual(['providers/settings.ts']);
  // The index and `startBoxcar` load the runtime.
  expect(modules.get('host')).not.toContain('index.ts');
  expect(modules.get('host')?.size).toBeLessThan(15);
  expect(modules.get('store')?.size).toBeLessThan(12);
  expect(modules.get('kernel')?.size).toBeLessThan(20);
});

it('the store and its reports load drizzle with the first statement of its builder, and not earlier', () => {
  const program = "await import('@boxcar/store'); await import('@boxcar/store/report')";
  const modules = modulesOf(['store'], {}, ['--input-type=module', '--eval', program]);
  expect(modules.get('store')).toContain('query/query.ts');
  expect(modules.get('store')).not.toContain('query/builder.ts');
  expect([...modules.keys()]).not.toContain('drizzle-orm');
});

it('a start reads targets of handoffs and MCP servers without loading their clients, and without a file not even the readers', () => {
  const targets = join(folder, 'targets.yaml');
  writeFileSync(targets, 'writer: { platform: openai, model: gpt-large }\n');
  const adaptersOf = (name: string, env: Env) => {
    const settings = {
      DATABASE_URL: 'postgres://a@127.0.0.1:1/b',
      BOXCAR_DATABASE_WAIT_SECONDS: '0',
      ...env,
    };
    const program = `const [{ openStack }, { parseConfig }] = [await import('@boxcar/host/open'), await import('@boxcar/host/config')];
      await openStack(parseConfig(${JSON.stringify(settings)})).catch(({ code }) => (process.exitCode = code === 'database_unavailable' ? 0 : 9));`;
    return modulesOf([name], {}, ['--input-type=module', '--eval', program]);
  };
  const on = { BOXCAR_HANDOFF_ENABLED: 'true' };
  expect([...adaptersOf('plain', on).keys()]).not.toContain('adapters');
  const modules = adaptersOf('targets', { ...on, BOXCAR_TARGETS_FILE: targets });
  expect([...(modules.get('adapters') ?? [])].sort()).toEqual(
    ['index', 'parse-targets', 'resolve-target', 'settings-document', 'target'].map(
      (file) => `targets/${file}.ts`,
    ),
  );
  expect([...modules.keys()]).not.toContain('@a2a-js/sdk');
  const servers = join(folder, 'servers.yaml');
  writeFileSync(servers, 'files: { command: mcp-server-filesystem, args: [/srv] }\n');
  const withServers = [...adaptersOf('servers', { BOXCAR_MCP_SERVERS: servers }).keys()];
  expect(withServers).toContain('mcp-client');
  expect(withServers.filter((name) => name.startsWith('@modelcontextprotocol'))).toEqual([]);
});
