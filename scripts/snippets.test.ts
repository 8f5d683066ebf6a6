/** Every command line of README and docs is run as written, in this process on one database, or listed with a reason. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { type Boxcar, startBoxcar } from '@boxcar/cli';
import { tapeName } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { cliHere } from '../packages/cli/src/testing/cli.js';
import { type Command, kindOf, pages, readCommands, readSession, readSnippets } from './snippets.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const snippets = readSnippets();
const SHELL = ['sh', 'bash'];

/** Commands that are not run here: their beginning, and the test that runs them or the reason why none does. */
const NOT_RUN: readonly (readonly [beginning: string, why: string])[] = [
  ['npm start', 'scripts/start.test.ts runs it'],
  ['npm test', 'runs this test'],
  ['npm run test:long', 'runs other tests'],
  ['npm run tarballs', 'scripts/outside.test.ts runs it'],
  ['npm init', 'scripts/outside.test.ts makes a project by it'],
  ['npm pkg set', 'scripts/outside.test.ts makes a project by it'],
  ['npm install ', 'scripts/outside.test.ts installs the same, in the versions of the workspace'],
  ['npm run bench', 'bench/src has its tests; a run takes minutes'],
  ['npm run soak', 'takes minutes; its parts have tests in packages/runtime'],
  ['npm run test:isolation', 'runs a part of the tests at other isolation levels'],
  ['npx vitest run', 'runs tests'],
  ['npx tsc', 'scripts/outside.test.ts compiles the same file'],
  ['node scripts/bootstrap.mjs', 'every checkout begins with it'],
  ['npm run verify', 'what CI runs'],
  ['.ci/run', 'what CI runs'],
  ['export ', 'the settings of a host'],
  [
    'boxcar why 01a2013c',
    'shows ids of one database; packages/cli/src/commands/turn/explain.test.ts has its form',
  ],
  ...['show', 'approve', 'deny'].map(
    (verb) =>
      [
        `boxcar approvals ${verb}`,
        'takes the id of a ticket of one database; packages/cli/src/commands/admin/approvals.test.ts runs it',
      ] as const,
  ),
  ...['show', 'retry'].map(
    (verb) =>
      [
        `boxcar webhooks ${verb}`,
        'takes the id of a delivery of one database; packages/cli/src/commands/admin/webhooks.test.ts runs it',
      ] as const,
  ),
  ['boxcar submit handoff', 'needs the feature on; packages/cli/src/commands/admin/handoffs.test.ts runs it'],
  [
    'boxcar handoffs show',
    'takes the id of a handoff of one database; packages/cli/src/commands/admin/handoffs.test.ts runs it',
  ],
  ['boxcar serve', 'answers until it is stopped; packages/cli/src/commands/serve/serve.test.ts starts it'],
  ['boxcar mcp', 'serves until it is stopped; packages/cli/src/commands/serve/mcp.test.ts starts it'],
  ['boxcar approvals ls --url', 'asks a server; packages/cli/src/commands/serve/serve.test.ts runs it'],
  ...['rotate', 'revoke'].map(
    (verb) =>
      [
        `boxcar keys ${verb}`,
        'takes the id of a key of one database; packages/cli/src/commands/serve/serve.test.ts runs it',
      ] as const,
  ),
  ['curl ', 'asks a server; packages/http/src/approvals/approval-routes.test.ts sends the same'],
  ['boxcar worker', 'works until it is stopped; scripts/outside.test.ts starts it with a plugin'],
  ['pip install ', 'asks another registry than that of npm'],
  ['python3 ', 'needs the package bullmq of Python; this test checks the syntax of the file'],
  ['boxcar submit triage', 'needs the compiled handler of its page'],
  [
    'boxcar submit launch_principal --arg profile_name=analyst',
    'needs the tool worker in Python; examples/tool-worker has a test with one in JavaScript',
  ],
];

/** Blocks that are neither programs nor commands here: their description, and the test that checks them, if any. */
const NOT_CODE: Readonly<Record<string, string>> = {
  '': 'printed text, diagrams and grammars',
  mermaid: 'a diagram; scripts/mermaid.test.ts parses it',
  ini: 'a unit of systemd',
  toml: 'the configuration of an MCP client',
  jsonl: 'the lines of a tape file; commands of the page import it',
  python: 'a program that needs a package of Python; this test checks its syntax',
};

const textOf = ({ words }: Command): string => words.join(' ');
const ruleOf = (command: Command) =>
  NOT_RUN.find(([beginning]) => `${textOf(command)} `.startsWith(beginning));

const commands = snippets.flatMap(({ file, language, code }) => {
  const found: readonly { readonly command: Command; readonly output?: string }[] = SHELL.includes(language)
    ? readCommands(code).map((command) => ({ command }))
    : language === 'console'
      ? readSession(code)
      : [];
  return found.map((one) => ({ file, ...one }));
});
/** Its commands need its files and processes; scripts/tutorial.test.ts runs them. */
const FOLLOWED = 'docs/tutorial.md';
const unlisted = commands.filter(({ file, command }) => file !== FOLLOWED && ruleOf(command) === undefined);

it('each block is a program, commands, data or of a listed kind', () => {
  const known = [...SHELL, 'console', ...Object.keys(NOT_CODE), 'ts', 'js', 'yaml', 'json'];
  expect(snippets.filter(({ language }) => !known.includes(language))).toEqual([]);
  expect(known.filter((language) => !snippets.some((one) => one.language === language))).toEqual([]);
  expect(snippets.length).toBeGreaterThan(50);
});

it('every code fence of a page is read, at any indentation', () => {
  const fences = (file: string): number =>
    readFileSync(join(root, file), 'utf8').match(/^[ \t>]*(`{3,}|~{3,})/gm)?.length ?? 0;
  for (const file of pages())
    expect([file, 2 * snippets.filter((one) => one.file === file).length]).toEqual([file, fences(file)]);
  const { code } = snippets.find(({ language }) => language === 'ini') ?? {};
  expect(code).toMatch(/^\[Service\]\nExecStart=\S+\/boxcar worker /);
});

it('each listed command is shown somewhere, and names scripts and files that exist', () => {
  const used = new Set(commands.map(({ command }) => ruleOf(command)));
  expect(NOT_RUN.filter((rule) => !used.has(rule))).toEqual([]);
  const { scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  for (const { command } of commands) {
    const [program, verb, name = ''] = command.words;
    if (program === 'npm' && verb === 'run') expect(Object.keys(scripts)).toContain(name);
    if (program === 'npx' && verb === 'vitest')
      expect(existsSync(join(root, command.words[3] ?? ''))).toBe(true);
  }
});

it('data is valid in its language', () => {
  for (const { language, code } of snippets) {
    if (language === 'json') JSON.parse(code);
    if (language === 'jsonl') for (const line of code.trimEnd().split('\n')) JSON.parse(line);
    if (language === 'yaml') expect(parseAllDocuments(code).flatMap((one) => one.errors)).toEqual([]);
  }
});

const hasPython = spawnSync('python3', ['--version']).status === 0;

it.skipIf(!hasPython)('the blocks of Python compile, and their page runs them by their names', () => {
  const blocks = snippets.filter(({ language }) => language === 'python');
  expect(blocks.length).toBeGreaterThan(0);
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-python-'));
  try {
    for (const { file, code } of blocks) {
      const [, name = ''] = /^# (\S+\.py)\n/.exec(code) ?? [];
      expect(commands.map((one) => [one.file, textOf(one.command)])).toContainEqual([
        file,
        `python3 ${name}`,
      ]);
      writeFileSync(join(folder, name), code);
      const { status, stderr } = spawnSync('python3', ['-m', 'py_compile', name], {
        cwd: folder,
        encoding: 'utf8',
      });
      expect({ file, status, stderr }).toEqual({ file, status: 0, stderr: '' });
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

describe('each of the commands works:', () => {
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-snippets-'));
  const home = process.cwd();
  let boxcar: Boxcar;
  let env: Readonly<Record<string, string>>;
  /** Creates the value of each placeholder, for each command that has the placeholder. */
  let made: Readonly<Record<string, () => string | Promise<string>>>;

  const submit = async (primitive: string, args: object): Promise<Record<string, string>> =>
    (await boxcar.runtime.submit(primitive, args)) as Record<string, string>;

  /** The objects that the pages mention. */
  beforeAll(async () => {
    const database = await testDatabase({ empty: true });
    const never: ScriptedFunction = (_request, { signal }) =>
      new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    boxcar = await startBoxcar({
      databaseUrl: database.url,
      redisUrl: '',
      models: { scripted: { functions: { never } } },
    });
    env = { DATABASE_URL: database.url };
    const { runtime } = boxcar;
    const profile = (name: string, more: object = {}) => ({
      ...{ name, instructions: 'Figures come from tools.', model: 'scripted', script: [{ say: 'Done.' }] },
      ...{ tags: ['code'], ...more },
    });
    writeFileSync(join(folder, 'profiles.yaml'), JSON.stringify(profile('reviewer')));
    writeFileSync(join(folder, 'support.yaml'), JSON.stringify(profile('support')));
    // Their tools are compiled and called elsewhere.
    for (const plugin of ['refunds.js', 'my-tools.mjs'])
      writeFileSync(join(folder, plugin), 'export default () => undefined;\n');
    writeFileSync(
      join(folder, 'rules.yaml'),
      JSON.stringify({
        target_profile_config: { profile_name: 'reviewer' },
        context_packing_config: { pack_arguments: [{ arg_key: 'ticket' }] },
      }),
    );
    const [policy] = snippets.filter(
      ({ file, language }) => file === 'docs/reference/policy.md' && language === 'yaml',
    );
    writeFileSync(join(folder, 'policy.yaml'), policy?.code ?? '');
    const [lines] = snippets.filter(({ language }) => language === 'jsonl');
    writeFileSync(join(folder, `${tapeName('/srv/demo', 'main')}.jsonl`), lines?.code ?? '');
    for (const name of ['analyst.yaml', 'clerk.yaml', 'reviewer.yaml']) {
      const [block] = snippets.filter(({ code }) => code.startsWith(`# ${name}\n`));
      writeFileSync(join(folder, name), block?.code ?? '');
    }
    process.chdir(folder);
    await runtime.applyProfile(profile('reviewer', { instructions: 'The first version.' }));
    for (const name of ['reviewer', 'boss', 'reader', 'writer', 'worker', 'support'])
      await runtime.applyProfile(profile(name, { delegation_policy: { target_profiles: null } }));
    await runtime.applyProfile(profile('waiting', { model: 'scripted:never', script: undefined }));
    for (const name of ['ada', 'clerk-1', 'worker-abc123', 'worker-def456'])
      await submit('provision_agent', {
        action: 'ensure',
        agent_id: name,
        profile_name: 'worker',
        shared: true,
      });
    const notes = await runtime.tape('telegram:123');
    await notes.append(
      Array.from({ length: 50 }, (_, n) => ({ kind: 'message' as const, content: `Message ${n}.` })),
    );
    const ada = await runtime.tape({ agent: 'ada' });
    await ada.handoff('plan', { state: { summary: 'The plan.' } });
    // Each turn of a placeholder stays open and holds a slot.
    await boxcar.startWorker({ graceMs: 0, concurrency: 50 });
    const budget = { tokens: 100_000 };
    const ended = await submit('launch_principal', {
      ...{ profile_name: 'reviewer', instruction: 'Look.', wait: true, budget },
    });
    const open = async () => {
      const args = { profile_name: 'waiting', instruction: 'Wait.', budget };
      return (await submit('launch_principal', args)).turn_id ?? '';
    };
    const box = await submit('create_box', {
      cards: [{ type: 'note', content: { kind: 'text', text: 'A note.' } }],
    });
    for (const mode of ['read', 'append'])
      await submit('grant_box', { box_id: notes.boxId, grantee: 'worker-abc123', mode });
    made = {
      '0198c1f2': () => ended.turn_id ?? '',
      '<turn>': open,
      '<turn/run>': open,
      '<run>': async () => {
        const run = 'select run_id from boxcar.turns where id = $1';
        const { rows } = await database.pool.query<{ run_id: string }>(run, [await open()]);
        return rows[0]?.run_id ?? '';
      },
      '<box>': () => notes.boxId,
      $BOX: () => box.box_id ?? '',
    };
  });

  afterAll(async () => {
    process.chdir(home);
    await boxcar.close();
    rmSync(folder, { recursive: true, force: true });
  });

  const withMade = async (word: string): Promise<string> => {
    const name = Object.keys(made).find((one) => word.endsWith(one));
    return name === undefined ? word : word.replace(name, String(await made[name]?.()));
  };

  it.each(
    unlisted.map((one) => [one.file, textOf(one.command).replace(/\s+/g, ' ').slice(0, 100), one] as const),
  )('%s: %s', async (_file, _title, { command, output }) => {
    const { settings, input } = command;
    const [program, ...args] = await Promise.all(command.words.map(withMade));
    expect({ program, settings }).toEqual({ program: 'boxcar', settings: [] });
    using _stdin = vi
      .spyOn(process, 'stdin', 'get')
      .mockReturnValue(Readable.from([input]) as typeof process.stdin);
    const { code, stdout, stderr } = await cliHere(args, env);
    expect({ code, stderr }).toEqual({ code: 0, stderr: expect.not.stringMatching(/^boxcar: \w+: /m) });
    if (output === undefined) expect(stdout).not.toBe('');
    else expect(stdout).toBe(output);
  });
});

it('programs, modules and parts are distinguished', () => {
  const kinds = snippets.filter(({ language }) => ['ts', 'js'].includes(language)).map(kindOf);
  for (const kind of ['program', 'module', 'part'] as const) expect(kinds).toContain(kind);
});
