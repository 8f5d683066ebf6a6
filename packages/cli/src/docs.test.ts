/** The documentation of the command line agrees with the program: commands, flags, exit codes and variables. */
import { readdirSync, readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { createProgram } from './run-cli.js';
import { cliHere } from './testing/cli.js';

const root = new URL('../../../', import.meta.url);
const read = (path: string): string => readFileSync(new URL(path, root), 'utf8');
const namesIn = (folder: string): readonly string[] => readdirSync(new URL(folder, root));
const pathsBelow = (folder: string): readonly string[] =>
  readdirSync(new URL(folder, root), { recursive: true, encoding: 'utf8' }).map((path) =>
    path.replaceAll('\\', '/'),
  );

const program = await createProgram(async () => undefined);
const leavesOf = (command: Command, path: readonly string[]): [string, Command][] =>
  command.commands.length === 0
    ? [[path.join(' '), command]]
    : command.commands.flatMap((child) => leavesOf(child, [...path, child.name()]));
const leaves = leavesOf(program, []);

/** The history of decisions mentions commands that no longer exist. */
const pages = [
  'README.md',
  ...pathsBelow('docs')
    .filter((path) => path.endsWith('.md') && !path.startsWith('decisions'))
    .map((path) => `docs/${path}`),
  ...['packages', 'examples'].flatMap((folder) =>
    namesIn(folder).map((name) => `${folder}/${name}/README.md`),
  ),
];

const FLAG = /(?<![\w-])--?[a-z][a-z-]*/g;

describe('packages/cli/README.md', () => {
  const rows = read('packages/cli/README.md')
    .split('\n')
    .filter((line) => line.startsWith('| `boxcar '));
  /** Explained once below the table. */
  const COMMON = new Set(['--project', '--plugin', '--workspace', '--session']);

  it.each(leaves)('lists the flags of boxcar %s, and no others', (path, command) => {
    const own = rows.filter((line) => new RegExp(`^\\| \`boxcar ${path}[ \`]`).test(line));
    const listed = new Set(own.join('\n').match(FLAG));
    const has = (name: string | undefined): boolean => name !== undefined && listed.has(name);
    const left = command.options
      .filter(({ long, short }) => !has(long) && !has(short) && !COMMON.has(long ?? ''))
      .map(({ long }) => long);
    const known = new Set([
      ...[...command.options, ...program.options].flatMap(({ long, short }) => [long, short]),
      '--help',
    ]);
    expect({ left, unknown: [...listed].filter((name) => !known.has(name)) }).toEqual({
      left: [],
      unknown: [],
    });
  });
});

/** Command lines in a page: the words after `boxcar`, to the end of the line or of the code. */
const linesIn = (text: string): readonly string[] =>
  [...text.replaceAll('\\\n', ' ').matchAll(/(?<![@/\w-])boxcar ([a-z][^\n`]*)/g)].map(
    ([, line = '']) => line,
  );

/** Words that follow `boxcar` in sentences but are not commands. */
const WORDS = new Set(['processes', 'password']);

it.each(pages)('the command lines of %s have the commands and flags of the program', (page) => {
  const wrong = linesIn(read(page)).flatMap((line) => {
    const [first = '', second = ''] = line.split(/[^a-z-]+/);
    const group = program.commands.find((command) => command.name() === first);
    if (group === undefined) return WORDS.has(first) || /^[a-z]+ role\b/.test(line) ? [] : [line];
    const command =
      group.commands.length === 0 ? group : group.commands.find((child) => child.name() === second);
    // A group may be mentioned without a command.
    if (command === undefined) return second === '' || !/^[a-z-]+ [a-z]/.test(line) ? [] : [line];
    const known = new Set(
      [...command.options, ...program.options].flatMap(({ long, short }) => [long, short]),
    );
    const said = line.replace(/'[^']*'|"[^"]*"/g, '').replace(/[|#&;].*$/, '');
    return (said.match(/(?<=[\s(])--?[a-z][a-z-]*/g) ?? [])
      .filter((name) => name !== '--help' && !known.has(name))
      .map((name) => `${first}: ${name}`);
  });
  expect(wrong).toEqual([]);
});

describe('exit code 3', () => {
  const answersNo = async (path: string): Promise<boolean> =>
    /\n {2}3 {2}/.test((await cliHere([...path.split(' '), '--help'])).stdout);
  /** The table that follows "Code 3". */
  const tableOf = (page: string): string => /\n *Code 3 [^|]*(?:\n *\|.*)+/.exec(read(page))?.[0] ?? '';

  it.each(['docs/reference/cli.md', 'packages/cli/README.md'])(
    'is explained by %s for the commands that return it',
    async (page) => {
      const said = new Set(
        [...tableOf(page).matchAll(/`([a-z -]+)`/g)].map(([, name = '']) => name.replace(/ --.*/, '')),
      );
      const known: string[] = [];
      for (const [path] of leaves) if (await answersNo(path)) known.push(path);
      expect([...said].sort()).toEqual(known.sort());
    },
  );
});

it('the variables that the pages name are the variables that boxcar --help lists', async () => {
  const { stdout } = await cliHere(['--help']);
  const listed = new Set(stdout.match(/\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b|\bPGPASSWORD\b/g));
  const settings = read('packages/host/src/config.ts') + read('packages/llm/src/providers/settings.ts');
  const taken = [...settings.matchAll(/^ {2,4}([A-Z][A-Z0-9]*_[A-Z0-9_]+|PGPASSWORD):/gm)].map(
    ([, name]) => name,
  );
  expect(taken.filter((name) => !listed.has(name ?? ''))).toEqual([]);
  // Variables of tests, of the example, of sample texts and entries, and of compose.
  const OTHERS =
    /^(BOXCAR_(TEST|REQUIRE|FAULTS|KEEP|MODEL$|SURVEY|ADK)|TEST_|POSTGRES_PASSWORD$|LOCK_MS$|(JUDGE|HARBOUR|WRITER)_KEY$)/;
  // The uppercase exports of packages are constants, not variables.
  for (const page of pages.filter((path) => !path.includes('testkit') && path !== 'docs/reference/api.md')) {
    const named = read(page).match(
      /\b(?:[A-Z]+_)+(?:URL|KEY|PASSWORD|MS|SECONDS|BYTES|CARDS)\b|\bBOXCAR_[A-Z_]+[A-Z]\b/g,
    );
    expect([page, (named ?? []).filter((name) => !listed.has(name) && !OTHERS.test(name))]).toEqual([
      page,
      [],
    ]);
  }
});
