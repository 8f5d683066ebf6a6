import {
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
import { type NodeChild, spawnNode } from '@boxcar/testkit';
import { afterAll, expect, it } from 'vitest';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-scripts-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function run(script: string, ...args: string[]): Promise<{ code: number | null; child: NodeChild }> {
  const child = spawnNode(new URL(script, import.meta.url), args);
  return { code: (await child.exited).code, child };
}

const SCRIPTS = [
  'ci.mjs',
  'db-dump.ts',
  'db-open.ts',
  'install-adk.mjs',
  'isolation-tests.mjs',
  'tarballs.mjs',
  'test.mjs',
  'verify.mjs',
  '../tools/api-docs/api-docs.mjs',
];

it.each(SCRIPTS)('%s explains itself, and does nothing else', async (script) => {
  const { code, child } = await run(script, '--help');
  expect(child.stdout).toMatch(/^Usage: /);
  expect(child.stderr).toBe('');
  expect(code).toBe(0);
});

// The test script passes unknown arguments on to vitest.
it.each(SCRIPTS.filter((script) => script !== 'test.mjs'))(
  '%s refuses in one line arguments that it does not understand',
  async (script) => {
    const { code, child } = await run(script, '--frobnicate');
    expect(child.stdout).toBe('');
    expect(child.stderr).toMatch(/^.*--frobnicate.*; see --help\n$/);
    expect(code).toBe(2);
  },
);

it('a mistyped folder is refused, and stays unchanged', async () => {
  const missing = join(folder, 'missing');
  const empty = join(folder, 'empty');
  mkdirSync(empty);
  for (const path of [missing, empty]) {
    const { code, child } = await run('db-open.ts', path);
    expect(child.stderr).toContain('holds no data');
    expect(code).toBe(2);
  }
  expect(existsSync(missing)).toBe(false);
  expect(readdirSync(empty)).toEqual([]);
});

it('a Postgres that is not installed is reported, with the way to install it', async () => {
  const script = join(folder, 'start.mjs');
  const { href } = new URL('debian-postgres.mjs', import.meta.url);
  writeFileSync(script, `import { startDebianPostgres } from '${href}'; await startDebianPostgres(1);`);
  const child = spawnNode(script);
  expect(await child.exited).toMatchObject({ code: 1 });
  expect(child.stderr).toContain('Postgres 1 is not installed: apt-get install postgresql-1');
});

it.each(readdirSync(new URL('../packages', import.meta.url)))(
  'the shipped parts of %s have the entries of its sources',
  (name) => {
    const file = new URL(`../packages/${name}/package.json`, import.meta.url);
    const { exports, publishConfig } = JSON.parse(readFileSync(file, 'utf8')) as {
      exports: Record<string, string | Record<string, string>>;
      publishConfig?: { exports: unknown };
    };
    if (publishConfig === undefined) return;
    const shipped = Object.entries(exports).flatMap(([entry, target]) => {
      if (typeof target === 'string') return [[entry, target]];
      const { '@boxcar/source': _source, ...rest } = target;
      return Object.keys(rest).length === 0 ? [] : [[entry, rest]];
    });
    expect(publishConfig.exports).toEqual(Object.fromEntries(shipped));
  },
);
