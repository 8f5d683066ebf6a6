/** Follows docs/tutorial.md from the first profile to the killed worker, with the files and commands of the page. */
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type NodeChild, testDatabase, waitFor } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { cli, type Env, startCli } from '../packages/cli/src/testing/cli.js';
import { type Command, readCommands, readSnippets } from './snippets.js';

const PAGE = 'docs/tutorial.md';
const root = fileURLToPath(new URL('..', import.meta.url));
const blocks = readSnippets().filter(({ file }) => file === PAGE);
const [report] = blocks.filter(({ code }) => code.startsWith('A report: '));

/** The first line of a block with a file names the file. */
const nameOf = (code: string): string => /^(?:#|\/\/) (\S+)\n/.exec(code)?.[1] ?? '';

const settingsOf = ({ settings }: Command): Env =>
  Object.fromEntries(settings.map((setting) => setting.split('=') as [string, string]));

test('the tutorial works as written: a team works, its texts have origins, and it survives a kill -9', {
  timeout: 300_000,
}, async () => {
  await using database = await testDatabase();
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-tutorial-'));
  // The plugin finds the packages of the command line.
  symlinkSync(join(root, 'packages/cli/node_modules'), join(folder, 'node_modules'));
  cpSync(join(root, 'packages/cli/package.json'), join(folder, 'package.json'));
  const files: string[] = [];
  for (const { code, language } of blocks)
    if (['yaml', 'js'].includes(language)) {
      files.push(nameOf(code));
      writeFileSync(join(folder, nameOf(code)), code);
    }
  const env: Env = { DATABASE_URL: database.url };
  // An embedded Postgres is migrated by the first command; this one is given.
  await cli(['migrate'], env);
  const inFolder = (word: string): string =>
    files.includes(word.replace(/^\.\//, '')) ? join(folder, word) : word;
  const latest = async (text: string): Promise<string> =>
    (await database.pool.query<{ id: string }>(text)).rows[0]?.id ?? '';
  const made: Readonly<Record<string, () => Promise<string>>> = {
    '<run>': () => latest('select id from boxcar.runs order by created_at desc limit 1'),
    '<turn>': () =>
      latest(
        "select t.id from boxcar.turns t join boxcar.profiles p on p.id = t.profile_id where p.name = 'writer'",
      ),
  };
  const startWorker = async (args: readonly string[], settings: Env): Promise<NodeChild> => {
    const child = startCli(args, { ...env, ...settings });
    await waitFor(() => child.stderr.includes(' is ready '), { message: 'the worker is ready' });
    return child;
  };

  /** In the terminal that is left alone. */
  let worker: NodeChild | undefined;
  /** `$!` of the other terminal. */
  let background: NodeChild | undefined;
  const outputs: string[] = [];
  const untilToolsRun = () =>
    waitFor(
      async () =>
        (
          await database.pool.query(
            "select from boxcar.tool_calls where name = 'look_up' and ended_at is null",
          )
        ).rowCount === 2,
      { message: 'both researchers wait for their tool' },
    );
  const runCommand = async (command: Command): Promise<void> => {
    const [program, ...rest] = command.words;
    // scripts/outside.test.ts packs and installs.
    if (program === 'npm') return;
    if (program === 'kill') {
      expect(rest).toEqual(['-9', '$!']);
      background?.kill('SIGKILL');
      await background?.exited;
      background = undefined;
      return;
    }
    const isDirect = program === 'node' && rest[0] === 'node_modules/.bin/boxcar';
    expect(isDirect ? 'boxcar' : program).toBe('boxcar');
    const words = isDirect ? rest.slice(1) : rest;
    const args = await Promise.all(words.map(async (word) => (await made[word]?.()) ?? inFolder(word)));
    if (args[0] === 'worker') {
      worker?.kill('SIGTERM');
      await worker?.exited;
      worker = undefined;
      const started = await startWorker(args, settingsOf(command));
      if (isDirect) background = started;
      else worker = started;
      return;
    }
    // A reader repeats the command of the page until the tree shows this.
    if (args[0] === 'tree' && background !== undefined) await untilToolsRun();
    const { code, stdout, stderr } = await cli(args, env);
    expect(code, `${args.join(' ')}: ${stderr}`).toBe(0);
    outputs.push(stdout);
  };

  try {
    for (const { code, language } of blocks) {
      if (language !== 'sh') continue;
      for (const command of readCommands(code)) await runCommand(command);
    }
    const [applied, answered, tree, turns, origin, accepted, waiting, watched, changed] = outputs;
    expect(outputs).toHaveLength(9);
    expect(applied).not.toContain('warning');
    expect(applied).toMatch(/lead.*\n.*researcher.*\n.*writer/);
    expect(answered).toContain(report?.code);
    expect(tree).toMatch(
      /fork_join: 2 of 2 done, success[\s\S]*researcher[\s\S]*researcher[\s\S]*ask_expert/,
    );
    expect(turns).toContain('success');
    expect(origin).toMatch(/card [\s\S]*author [\s\S]*packing +pack_arguments of 'instruction'/);
    expect(accepted).toMatch(/status +accepted/);
    expect(waiting?.match(/researcher\S* · fork_join +running/g)).toHaveLength(2);
    expect(changed).toMatch(/writer +2 +changed/);
    expect(watched).toMatch(/4 × success(?![\s\S]*running)/);
    expect(worker?.stderr).toContain('sweep.taken_over');
    // No step was repeated, and the two turns whose worker died have been claimed once more.
    const { rows } = await database.pool.query(
      'select p.name, t.status, t.step_count, t.epoch from boxcar.turns t join boxcar.profiles p on p.id = t.profile_id where t.run_id = $1 order by p.name',
      [await made['<run>']?.()],
    );
    expect(rows).toEqual([
      { name: 'lead', status: 'success', step_count: 3, epoch: expect.any(Number) },
      { name: 'researcher', status: 'success', step_count: 2, epoch: 2 },
      { name: 'researcher', status: 'success', step_count: 2, epoch: 2 },
      { name: 'writer', status: 'success', step_count: 1, epoch: 1 },
    ]);
  } finally {
    for (const child of [worker, background]) child?.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
});
