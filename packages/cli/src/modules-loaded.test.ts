/** What a start costs is what it loads: a bound on the modules, which no busy machine changes. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, expect, it } from 'vitest';
import type { Env } from './testing/cli.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-modules-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** The tool that runs sources, in place of what was built. */
const LOADER = new Set(['tsx', 'esbuild', 'get-tsconfig']);

/** The modules that a command line loads, by their package. */
function modulesOf(args: readonly string[], env: Env = {}): ReadonlyMap<string, ReadonlySet<string>> {
  const file = join(folder, args.join(''));
  const { status, stderr } = spawnSync(
    process.execPath,
    [
      ...['--conditions=@boxcar/source', '--import=tsx'],
      `--import=${pathToFileURL(join(import.meta.dirname, 'fixtures/modules-loaded.mjs')).href}`,
      join(import.meta.dirname, 'main.ts'),
      ...args,
    ],
    { encoding: 'utf8', env: { PATH: process.env.PATH, MODULES_FILE: file, ...env } },
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
  expect([...modules.keys()].sort()).toEqual(['cli', 'commander', 'kernel']);
  expect(modules.get('cli')).toContain('command-table.ts');
  expect([...(modules.get('cli') ?? [])].filter((path) => path.startsWith('commands/'))).toEqual([]);
  expect(modules.get('cli')?.size).toBeLessThan(15);
  expect(modules.get('kernel')?.size).toBeLessThan(15);
});

it('health loads what asks the database, and none of the rest', async () => {
  await using database = await testDatabase();
  const modules = modulesOf(['health'], { DATABASE_URL: database.url });
  const packages = [...modules.keys()];
  expect(packages).toEqual(expect.arrayContaining(['cli', 'commander', 'kernel', 'pg', 'store', 'zod']));
  expect(
    packages.filter(
      (name) => !/^(cli|commander|kernel|llm|pg.*|postgres-.*|runtime|store|xtend|zod)$/.test(name),
    ),
  ).toEqual([]);
  expect([...(modules.get('cli') ?? [])].filter((path) => path.startsWith('commands/'))).toEqual([
    'commands/health.ts',
  ]);
  expect([...(modules.get('runtime') ?? [])]).toEqual(['lib/log.ts']);
  expect([...(modules.get('llm') ?? [])]).toEqual(['providers/settings.ts']);
  expect(modules.get('store')?.size).toBeLessThan(12);
  expect(modules.get('kernel')?.size).toBeLessThan(20);
});
