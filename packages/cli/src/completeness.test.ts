/** Requirements for every command of the program; a new command is checked automatically. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { describe, expect, it } from 'vitest';
import { SHELLS, writeCompletion } from './commands/admin/completion-script.js';
import { createProgram } from './run-cli.js';
import { cliHere } from './testing/cli.js';

const program = await createProgram(async () => undefined);
/** `boxcar mcp` is a command itself, and also has subcommands. */
const isGroup = ({ commands, options }: Command): boolean => commands.length > 0 && options.length === 0;
const leavesOf = (command: Command, path: readonly string[]): [string, Command][] => [
  ...(path.length === 0 || isGroup(command) ? [] : [[path.join(' '), command] as [string, Command]]),
  ...command.commands.flatMap((child) => leavesOf(child, [...path, child.name()])),
];
const leaves = leavesOf(program, []);
const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const helpOf = async (path: string): Promise<string> =>
  (await cliHere([...path.split(' '), '--help'])).stdout;

const groups = program.commands.filter(isGroup);

it.each(groups.map((group) => [group.name(), group] as const))(
  'boxcar %s, without a subcommand, shows its commands with examples and exit codes',
  async (name, group) => {
    const help = await helpOf(name);
    const examples = /\nExamples:\n((?: {2}.*\n)+)/.exec(help)?.[1]?.trim().split('\n') ?? [];
    // A group may also be a command itself: `boxcar mcp --http`.
    const shown = examples.flatMap((line) => new RegExp(`boxcar ${name} ([a-z]\\S*)`).exec(line)?.[1] ?? []);
    expect(shown.length).toBeGreaterThan(0);
    expect(group.commands.map((command) => command.name())).toEqual(expect.arrayContaining(shown));
    const exits = /\nExit codes:\n((?: {2}.*(?:\n|$))+)/.exec(help)?.[1] ?? '';
    expect(exits.match(/^ {2}\d/gm)?.slice(0, 3)).toEqual(['  0', '  1', '  2']);
    expect(help.split('\n').filter((line) => line.length > 80)).toEqual([]);
    expect(group.description()).toMatch(/^[A-Z].*\.$/);
  },
);

describe.each(leaves)('boxcar %s', (path, command) => {
  it('describes itself, with examples, exit codes and --json, in lines of 80 columns', async () => {
    const help = await helpOf(path);
    expect(help).toMatch(/--json/);
    const examples = /\nExamples:\n((?: {2}.*\n)+)/.exec(help)?.[1];
    expect(examples).toContain(`boxcar ${path}`);
    const exits = /\nExit codes:\n((?: {2}.*(?:\n|$))+)/.exec(help)?.[1] ?? '';
    expect(exits.match(/^ {2}\d/gm)?.slice(0, 3)).toEqual(['  0', '  1', '  2']);
    expect(help.split('\n').filter((line) => line.length > 80)).toEqual([]);
    expect(command.description()).toMatch(/^[A-Z].*\.$/);
  });

  it('is in the table of the README', () => {
    expect(readme).toMatch(new RegExp(`^\\| \`boxcar ${path}[ \`]`, 'm'));
  });

  it('has no unknown option in its examples', async () => {
    const options = [...command.options, ...program.options].flatMap(({ long, short }) => [long, short]);
    const known = new Set([...options, '--help']);
    const examples = /\nExamples:\n([\s\S]*?)\n\n/.exec(await helpOf(path))?.[1] ?? '';
    const own = examples
      .replaceAll('\\\n', ' ')
      .split('\n')
      .filter((line) => line.includes(`boxcar ${path}`))
      .map((line) =>
        line
          .slice(line.indexOf(`boxcar ${path}`))
          .replace(/[|#].*$/, '')
          .replace(/'[^']*'|"[^"]*"/g, ''),
      );
    expect(own.length).toBeGreaterThan(0);
    const used = own.flatMap((line) => line.match(/(?<=\s)--?[a-z][a-z-]*/g) ?? []);
    expect(used.filter((option) => !known.has(option))).toEqual([]);
  });

  it('suggests a similar known option', async () => {
    const args = command.registeredArguments.filter(({ required }) => required).map(() => 'bash');
    const options = command.options
      .filter(({ mandatory }) => mandatory)
      .flatMap(({ long }) => [String(long), 'x']);
    const { code, stderr } = await cliHere([...path.split(' '), ...args, ...options, '--jso']);
    expect(code).toBe(2);
    expect(stderr).toMatch(/^boxcar: bad_request: unknown option '--jso' \(Did you mean --json\?\)/);
  });
});

it('an unknown command is answered with a similar known command, and as JSON on request', async () => {
  expect(await cliHere(['submitt'])).toMatchObject({
    code: 2,
    stdout: '',
    stderr: "boxcar: bad_request: unknown command 'submitt' (Did you mean submit?); see boxcar help\n",
  });
  const { stderr } = await cliHere(['profiles', 'aply', '--json']);
  expect(JSON.parse(stderr)).toMatchObject({
    error: { code: 'bad_request', message: expect.stringContaining('apply') },
  });
});

it('the version is printed, and a missing argument is wrong usage', async () => {
  expect(await cliHere(['--version'])).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/),
  });
  expect(await cliHere(['tree'])).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("'run|turn|batch'"),
  });
});

describe('shell completion', () => {
  const complete = (line: string, script = writeCompletion(program, 'bash')): string[] => {
    const words = line.split(' ');
    const out = execFileSync(
      'bash',
      [
        '--norc',
        '-c',
        `source <(cat); COMP_WORDS=(${words.map((word) => `'${word}'`).join(' ')}); COMP_CWORD=${words.length - 1}; _boxcar; printf '%s\\n' "\${COMPREPLY[@]}"; complete -p boxcar`,
      ],
      { input: script, encoding: 'utf8' },
    );
    expect(out).toContain('complete -o default -F _boxcar boxcar');
    return out
      .split('\n')
      .slice(0, -2)
      .filter((word) => word !== '');
  };

  it('in bash offers commands, subcommands, and their options', () => {
    expect(complete('boxcar ')).toEqual(
      expect.arrayContaining([...program.commands.map((child) => child.name()), '--json']),
    );
    expect(complete('boxcar subm')).toEqual(['submit']);
    expect(complete('boxcar profiles ap')).toEqual(['apply']);
    expect(complete('boxcar --json profiles apply --fi')).toEqual(['--file']);
    expect(complete('boxcar tree 0198c1f2 --no')).toEqual(['--no-watch']);
    for (const line of ['boxcar ', 'boxcar profiles ', 'boxcar tree '])
      expect(complete(line).filter((word) => word === '--help')).toHaveLength(1);
    // Bash itself completes files.
    expect(complete('boxcar profiles apply --file prof')).toEqual([]);
  });

  it.each(SHELLS)(
    'for %s knows every command and option, and is also printed by the command line',
    async (shell) => {
      const { code, stdout } = await cliHere(['completion', shell]);
      expect(code).toBe(0);
      for (const [path, command] of leaves) {
        expect(stdout).toContain(`boxcar ${path}`);
        for (const { long } of command.options)
          expect(stdout).toContain(shell === 'fish' ? String(long).slice(2) : String(long));
      }
      const asJson = await cliHere(['completion', shell, '--json']);
      expect(JSON.parse(asJson.stdout)).toEqual({ shell, script: expect.stringContaining('_boxcar') });
    },
  );

  it('for an unknown shell is refused with the list of shells', async () => {
    expect(await cliHere(['completion', 'tcsh'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('Allowed choices are bash, zsh, fish'),
    });
  });
});

/** No database is reachable at this address, so exit code 2 shows that none was contacted. */
const NOWHERE = { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none', BOXCAR_DATABASE_WAIT_SECONDS: '0' };
/** Values that may be empty: the default pool, texts without content, and an argument with its own error. */
const MAY_BE_EMPTY = new Set([
  ...['worker --target', 'box create --text', 'submit --arg', 'pack --arg', 'tape handoff --summary'],
  ...['tape handoff --next-steps', 'tape fork --next-steps', 'tape fork --context-summary'],
]);

it.each(leaves)(
  'boxcar %s refuses blank arguments and values without asking a database',
  async (path, command) => {
    const words = path.split(' ');
    const flags = command.options.filter((option) => option.required || option.optional);
    const lines = [
      ...command.registeredArguments.map((_, index) => [...Array(index).fill('00000000'), ' ']),
      ...flags
        .filter((option) => !MAY_BE_EMPTY.has(`${path} ${option.long}`))
        .map((option) => [option.long ?? '', ' ']),
    ];
    for (const line of lines) {
      const { code, stderr } = await cliHere([...words, ...line], NOWHERE);
      expect({ line, code, stderr }).toEqual({
        line,
        code: 2,
        stderr: expect.stringContaining('bad_request'),
      });
    }
  },
);

it('with --json a wrong argument is named, as in other errors', async () => {
  for (const [args, field] of [
    [['show', 'xyz'], 'turn'],
    [['runs', 'ls', '--limit', '0'], 'limit'],
    [['profiles', 'apply', '-f', ' '], 'file'],
  ] as const) {
    const { code, stderr } = await cliHere([...args, '--json'], NOWHERE);
    const { error } = JSON.parse(stderr);
    expect([code, error.code, String(error.details?.field).replace('--', '')]).toEqual([
      2,
      'bad_request',
      field,
    ]);
  }
});

it('help for an unknown command is refused, and help for a primitive is shown', async () => {
  expect(await cliHere(['help', 'runs', 'ls', 'nope'], NOWHERE)).toMatchObject({ code: 2, stdout: '' });
  expect(await cliHere(['help', 'runs', 'nope'], NOWHERE)).toMatchObject({ code: 2, stdout: '' });
  expect(await cliHere(['help', 'show', '00000000'], NOWHERE)).toMatchObject({ code: 0 });
  const [help, flag] = [
    await cliHere(['help', 'submit', 'fork_join'], NOWHERE),
    await cliHere(['submit', 'fork_join', '--help'], NOWHERE),
  ];
  expect(help).toEqual(flag);
  expect(help.stdout).toContain('tasks');
});
