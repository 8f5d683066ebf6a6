/** A project outside the workspace, with the packages installed from their tarballs. */
import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import { readCommands, readSnippets } from './snippets.js';

export const run = promisify(execFile);
export const root = fileURLToPath(new URL('..', import.meta.url));
export const SHIPPED = [
  'kernel',
  'store',
  'runtime',
  'llm',
  'policy',
  'adapters',
  'embedded',
  'mcp-client',
  'host',
  'http',
  'a2a',
  'mcp',
  'cli',
] as const;

/** The fields of a `package.json` that are read here. */
export interface Manifest {
  readonly name: string;
  readonly keywords?: readonly string[];
  readonly exports: Readonly<Record<string, string | Readonly<Record<string, string>>>>;
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
}

export const readManifest = (folder: string): Manifest =>
  JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest;

/** The code blocks of the page that leads from an empty folder to a program. */
const ofLibraryPage = (language: string): string[] =>
  readSnippets().flatMap((one) =>
    one.file === 'docs/reference/library.md' && one.language === language ? [one.code] : [],
  );

/** The commands of the page that create a project, without the commands that install. */
function projectCommands(): (readonly string[])[] {
  const commands = ofLibraryPage('sh').flatMap((code) => readCommands(code).map(({ words }) => words));
  return commands.filter(([program, verb]) => program === 'npm' && (verb === 'init' || verb === 'pkg'));
}

/** The compiler settings on the page. */
export function compilerOptionsOfPage(): Readonly<Record<string, unknown>> {
  const [code] = ofLibraryPage('json');
  if (code === undefined) throw new Error('docs/reference/library.md has no settings of the compiler');
  return (JSON.parse(code) as { compilerOptions: Record<string, unknown> }).compilerOptions;
}

/**
 * Builds and packs with the command of the page, creates a project with its commands, and installs the tarballs and the other
 * dependencies of TypeScript programs.
 */
export async function makeOutsideProject(): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-outside-'));
  const tarballs = join(folder, 'tarballs');
  await run('npm', ['run', 'tarballs', '--', tarballs], { cwd: root });
  const { catalog } = parse(readFileSync(join(root, 'pnpm-workspace.yaml'), 'utf8')) as {
    catalog: Record<string, string>;
  };
  const { devDependencies = {} } = readManifest(root);
  const tools = Object.fromEntries(
    ['typescript', '@types/node'].map((name) => [name, devDependencies[name] ?? '*']),
  );
  // The clients that the programs import directly, in the workspace's versions, so that a test does not ask a registry for newer ones.
  const { devDependencies: ofMcp = {} } = readManifest(join(root, 'packages/mcp'));
  const clients = Object.fromEntries(
    ['bullmq', 'ioredis', 'pg', 'zod', '@modelcontextprotocol/client'].map((name) => [
      name,
      catalog[name] ?? ofMcp[name] ?? '*',
    ]),
  );
  const packages = Object.fromEntries(
    readdirSync(tarballs).map((file) => [
      `@boxcar/${/^boxcar-([a-z0-9-]+?)-\d/.exec(file)?.[1] ?? file}`,
      `file:tarballs/${file}`,
    ]),
  );
  for (const [program = '', ...args] of projectCommands()) await run(program, args, { cwd: folder });
  const dependencies = { ...packages, ...clients };
  writeFileSync(
    join(folder, 'package.json'),
    JSON.stringify({ ...readManifest(folder), dependencies, devDependencies: tools }),
  );
  await run('npm', ['install', '--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error'], {
    cwd: folder,
  });
  return folder;
}

/** The files with type declarations that are reachable from an entry, within its package. */
export function reachableTypes(entry: string): Set<string> {
  const found = new Set<string>();
  const visit = (file: string): void => {
    if (found.has(file)) return;
    found.add(file);
    for (const specifier of importsOf(file).filter((name) => name.startsWith('.')))
      visit(join(dirname(file), specifier.replace(/\.js$/, '.d.ts')));
  };
  visit(entry);
  return found;
}

/** The imports of a file in every form: declarations, re-exports and import types. */
export const importsOf = (file: string): string[] =>
  [...readFileSync(file, 'utf8').matchAll(/(?:\bfrom|\bimport\(|\bimport) ?['"]([\w@.][\w@./:-]*)['"]/g)].map(
    ([, specifier]) => specifier ?? '',
  );

/** The source maps without a file, and the sources without a file, that a folder of compiled code names. */
export function findBrokenMaps(folder: string): string[] {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  return files.flatMap((name) => {
    const file = join(folder, name);
    if (name.endsWith('.map')) {
      const { sources, sourcesContent } = JSON.parse(readFileSync(file, 'utf8')) as {
        sources: string[];
        sourcesContent?: string[];
      };
      if (sourcesContent !== undefined) return [];
      return sources.filter((source) => !existsSync(join(dirname(file), source)));
    }
    if (!/\.(js|ts)$/.test(name)) return [];
    const [, map] = /\/\/# sourceMappingURL=(.+)$/m.exec(readFileSync(file, 'utf8')) ?? [];
    return map === undefined || existsSync(join(dirname(file), map)) ? [] : [`${name}: ${map}`];
  });
}
