import {
  appendFileSync,
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type NodeChild, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { cliHere, type Env, PLUGIN, PROFILES, startCli } from '../../testing/cli.js';

type Line = Readonly<Record<string, unknown>> & { readonly event: string };

// Each change starts one or two processes.
vi.setConfig({ testTimeout: 120_000, hookTimeout: 120_000 });

let folder: string;
let env: Env;
let dev: NodeChild;
const path = (name: string): string => join(folder, name);
const lines = (): Line[] =>
  dev.stdout
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line));
/** The n-th line with this event. */
const said = (event: string, n = 1): Promise<Line> =>
  waitFor(() => lines().filter((line) => line.event === event)[n - 1], {
    message: `dev says ${event} (${n}): ${dev.stdout}${dev.stderr}`,
    deadlineMs: 60_000,
  });
const edit = (name: string, from: string, to: string): void =>
  writeFileSync(path(name), readFileSync(path(name), 'utf8').replaceAll(from, to));
const isAlive = (pid: unknown): boolean => {
  try {
    return process.kill(Number(pid), 0);
  } catch {
    return false;
  }
};

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-dev-'));
  // The plugin imports packages of the workspace.
  symlinkSync(join(import.meta.dirname, '../../../node_modules'), path('node_modules'));
  cpSync(PROFILES, path('profiles.yaml'));
  cpSync(PLUGIN, path('plugin.mjs'));
  env = { DATABASE_URL: (await testDatabase({ empty: true })).url };
  dev = startCli(['dev', '--json', '--profiles', folder, '--plugin', path('plugin.mjs')], env);
  await said('profiles.applied');
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('boxcar dev', () => {
  it('migrates, starts a worker, applies the profiles, and reports events', async () => {
    expect((await said('profiles.applied')).profiles).toHaveLength(7);
    const result = await cliHere(
      [
        'submit',
        'launch_principal',
        '--arg',
        'profile_name=boss',
        '--arg',
        'instruction=go',
        '--wait',
        '--json',
      ],
      env,
    );
    expect(result.code).toBe(0);
    const turnId = JSON.parse(result.stdout).turn_id;
    const events = await waitFor(
      () => {
        const of = lines().filter((line) => line.turn_id === turnId);
        return of.some((line) => line.event === 'turn.ended') && of;
      },
      { message: 'the end of the turn is told' },
    );
    const told = events.map(({ event, step, name, status }) => [event, step ?? name ?? status ?? '']);
    expect(told[0]).toEqual(['turn.submitted', '']);
    expect(told.at(-1)).toEqual(['turn.ended', 'success']);
    expect(told).toEqual(
      expect.arrayContaining([
        ['step.committed', 1],
        ['call.started', 'ask_expert'],
        ['call.ended', 'nothing'],
        ['step.committed', 2],
      ]),
    );
    // Each event once, although the rows are read repeatedly.
    expect(new Set(events.map((line) => JSON.stringify(line))).size).toBe(events.length);
  });

  it('gives a saved profile a new version; an invalid profile is reported with its line and changes nothing', async () => {
    edit('profiles.yaml', 'You write.', 'You write well.');
    const { profiles } = await said('profiles.applied', 2);
    expect(profiles).toEqual(
      expect.arrayContaining([expect.objectContaining({ name: 'writer', version: 2, changed: true })]),
    );
    edit('profiles.yaml', 'name: writer', 'nome: writer');
    const failed = await said('profiles.failed');
    expect(failed.error).toMatchObject({
      code: 'profile_invalid',
      details: {
        findings: expect.arrayContaining([
          expect.objectContaining({ place: expect.stringMatching(/profiles\.yaml:2:1$/) }),
        ]),
      },
    });
    edit('profiles.yaml', 'nome: writer', 'name: writer');
  });

  it('starts a killed worker again', async () => {
    const { pid } = await said('worker.ready');
    process.kill(Number(pid), 'SIGKILL');
    await said('worker.ended');
    await said('worker.ready', 2);
  });

  it('starts a new worker for a saved plugin; a broken plugin is reported with its line, and the worker continues', async () => {
    const before = await said('worker.ready', 2);
    edit('plugin.mjs', 'Gives back what', 'Returns what');
    const { pid } = await said('worker.ready', 3);
    await waitFor(() => !isAlive(before.pid), { message: 'the worker before has left' });
    appendFileSync(path('plugin.mjs'), 'let x = = 3;\n');
    expect((await said('worker.failed')).error).toMatchObject({ code: 'plugin_failed' });
    expect(await said('plugin.syntax_error')).toMatchObject({
      place: expect.stringMatching(/plugin\.mjs:\d+: SyntaxError/),
    });
    expect(isAlive(pid)).toBe(true);
  });

  it('applies an edit while a worker or a check of profiles hangs and ignores signals', async () => {
    const applied = (): number => lines().filter((line) => line.event === 'profiles.applied').length;
    const [flag, mark] = [path('hang.txt'), path('hangs.txt')];
    const hanging = (): Promise<number> =>
      waitFor(() => Number(readFileSync(mark, { encoding: 'utf8', flag: 'a+' })) || undefined, {
        message: 'the plugin hangs',
        deadlineMs: 60_000,
      });
    const release = (): void => {
      for (const file of [flag, mark]) rmSync(file);
    };
    writeFileSync(flag, '');
    writeFileSync(
      path('plugin.mjs'),
      `import { existsSync, writeFileSync } from 'node:fs';
if (existsSync('${flag}')) {
  process.removeAllListeners('SIGTERM').on('SIGTERM', () => undefined);
  writeFileSync('${mark}', String(process.pid));
  setInterval(() => undefined, 1_000);
  await new Promise(() => undefined);
}
${readFileSync(PLUGIN, 'utf8')}`,
    );
    const worker = await hanging();
    release();
    const before = applied();
    edit('plugin.mjs', '1_000', '2_000');
    await said('worker.ready', 4);
    await said('profiles.applied', before + 1);
    writeFileSync(flag, '');
    edit('profiles.yaml', 'You write well.', 'You write better.');
    const check = await hanging();
    release();
    edit('profiles.yaml', 'You write better.', 'You write best.');
    await said('profiles.applied', before + 2);
    expect([worker, check].filter(isAlive)).toEqual([]);
  });

  it('stops its worker when it is asked to stop, and exits with 0', async () => {
    const { pid } = await said('worker.ready', 4);
    await dev.kill('SIGINT');
    expect(await dev.exited).toEqual({ code: 0, signal: null });
    expect(lines().at(-1)?.event).toBe('dev.stopped');
    expect(isAlive(pid)).toBe(false);
  });
});

it('boxcar dev in an empty folder applies the profiles that are added later', async () => {
  const empty = path('empty');
  mkdirSync(empty);
  await using later = startCli(['dev'], env, { cwd: empty });
  const hears = (words: string): Promise<unknown> =>
    waitFor(() => later.stderr.includes(words), { message: `dev says ${words}`, deadlineMs: 60_000 });
  await hears('worker ready');
  expect(later.stderr).toContain('profiles (none yet; profiles.yaml will do)');
  writeFileSync(
    join(empty, 'profiles.yaml'),
    'name: late\ninstructions: x\nmodel: scripted\nscript: [{ say: x }]\n---\nname: hot\ninstructions: x\nmodel: openai:gpt-5\nmodel_settings: { temperature: 1.2 }\n',
  );
  await hears('new: late@1');
  await hears('hot: temperature 1.2 is not sent: temperature is not supported for reasoning models');
});

it('boxcar dev whose stdout has lost its reader stops as at Ctrl-C, and its worker has left when it exits', async () => {
  const empty = mkdtempSync(join(tmpdir(), 'boxcar-dev-'));
  const database = await testDatabase({ empty: true });
  const here = { DATABASE_URL: database.url };
  await using alone = startCli(['dev', '--profiles', PROFILES], here, { cwd: empty });
  await waitFor(() => alone.stderr.includes('profiles from 1 file'), {
    message: 'dev has applied the profiles',
    deadlineMs: 60_000,
  });
  alone.stopReading('stdout');
  const submit = ['submit', 'launch_principal', '--arg', 'profile_name=writer', '--arg', 'instruction=go'];
  expect((await cliHere(submit, here)).code).toBe(0);
  expect(await alone.exited, alone.stderr).toEqual({ code: 0, signal: null });
  expect(alone.stderr).toMatch(/^boxcar: stopping$/m);
  expect((await database.pool.query('select from boxcar.workers')).rowCount).toBe(0);
  rmSync(empty, { recursive: true, force: true });
});

describe('boxcar dev refuses', () => {
  it.each([
    [
      '--reset of a server that is not its own',
      ['--reset', '--yes'],
      { DATABASE_URL: 'postgres://h/d' },
      /DATABASE_URL names another server/,
    ],
    ['--reset without a terminal for the confirmation', ['--reset'], {}, /pass --yes/],
    [
      'profiles that do not exist',
      ['--profiles', 'nowhere.yaml'],
      {},
      /--profiles nowhere\.yaml: the file or folder does not exist/,
    ],
    [
      'a plugin that does not exist',
      ['--plugin', 'nowhere.js'],
      {},
      /--plugin nowhere\.js: the file or folder does not exist/,
    ],
  ])('%s', async (_what, flags, settings, words) => {
    const { code, stderr } = await cliHere(['dev', ...flags], { ...settings, BOXCAR_DATA_DIR: tmpdir() });
    // Without a terminal, the command line must confirm the reset.
    expect(code).toBe(flags.join() === '--reset' ? 2 : 1);
    expect(stderr).toMatch(words);
  });
});
