import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let env: Env;
let folder: string;
let stack: Stack;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-profiles-'));
  const database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  const base = { name: 'poet', model: 'scripted', script: [{ say: 'x' }], tags: ['verse'] };
  await stack.runtime.applyProfile({ ...base, instructions: 'Rhyme.\nBe brief.\n' });
  await stack.runtime.submit('provision_agent', { action: 'create', profile_name: 'poet' });
  await stack.runtime.applyProfile({
    ...base,
    instructions: 'Rhyme.\nBe long.\n\u001b[31mred\n',
    tags: ['verse', 'a-tag-that-is-long-and-longer-than-any-column'],
  });
  await stack.runtime.applyProfile({
    ...base,
    name: `long-${'x'.repeat(150)}`,
    instructions: 'x',
    tags: [],
  });
});

afterAll(async () => {
  await stack.close();
  rmSync(folder, { recursive: true, force: true });
});

const boxcar = (...args: string[]) => cliHere(args, env);
const json = async (...args: string[]) => JSON.parse((await boxcar(...args, '--json')).stdout);
const file = (name: string, text: string): string => {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
};
const expectNarrow = (text: string): void => {
  for (const line of text.split('\n')) expect([...line].length, line).toBeLessThanOrEqual(80);
};

describe('profiles ls', () => {
  it('lists the current versions in 80 columns, and the number of agents with older versions', async () => {
    const { code, stdout, stderr } = await boxcar('profiles', 'ls');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expectNarrow(stdout);
    expect(stdout).toMatch(/^profile +version +model +tags +agents +applied\n/);
    expect(stdout).toMatch(/^poet +2 +scripted +verse,a-ta… +1 +\d{4}-\d\d-\d\d$/m);
    expect(stdout).toMatch(
      /\n\n1 agent of older versions; provision_agent moves one with profile_version\.\n$/,
    );
  });

  it('--tag filters the list, and --json has everything', async () => {
    const { profiles } = await json('profiles', 'ls', '--tag', 'verse');
    expect(profiles).toMatchObject([
      {
        name: 'poet',
        version: 2,
        model: 'scripted',
        agents: 1,
        agents_behind: 1,
        profile_id: expect.any(String),
      },
    ]);
    expect((await boxcar('profiles', 'ls', '--tag', 'none')).stdout).toBe('no profiles\n');
    expect(await boxcar('profiles', 'ls', '--project', 'nowhere')).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^boxcar: not_found: No project 'nowhere'/),
    });
  });
});

describe('profiles show', () => {
  it.each(['poet', 'poet@1', 'boss', 'sleeper'])(
    '%s --yaml can be applied again and changes nothing',
    async (ref) => {
      const { code, stdout } = await boxcar('profiles', 'show', ref, '--yaml');
      expect(code).toBe(0);
      expect(stdout).not.toContain('\u001b');
      const shown = await json('profiles', 'show', ref);
      const path = file('again.yaml', stdout);
      expect(await boxcar('profiles', 'diff', ref, '-f', path)).toMatchObject({
        code: 0,
        stdout: `${shown.name}@${shown.version} and ${path} are the same.\n`,
      });
      if (!shown.is_current) return;
      expect(await json('profiles', 'apply', '-f', path)).toMatchObject({
        profiles: [{ name: shown.name, version: shown.version, changed: false }],
      });
    },
  );

  it('shows a person which version it is', async () => {
    const { stdout } = await boxcar('profiles', 'show', 'poet@1');
    expect(stdout).toMatch(/^profile +poet@1\nversion +1 \(newest is 2\)\napplied +.+\nbox +[0-9a-f-]{36}\n/);
    expect(stdout).toContain('\n\nname: poet\ninstructions: |\n  Rhyme.\n  Be brief.\n');
    expect((await boxcar('profiles', 'show', 'poet@current')).stdout).toMatch(/\nversion +2 \(current\)\n/);
  });

  it.each([
    [['poet@9'], 'not_found', /No profile 'poet' version 9 in project 'default'/],
    [['nobody'], 'not_found', /No profile 'nobody' in project 'default'/],
    [['poet@0'], 'bad_request', /version: '0' is not a version/],
    [['poet@99999999999'], 'bad_request', /is not a version/],
  ])('%j is refused', async (args, code, message) => {
    const result = await boxcar('profiles', 'show', ...args);
    expect(result).toMatchObject({ code: 1, stdout: '', stderr: expect.stringMatching(message) });
    expect(result.stderr).toContain(`boxcar: ${code}: `);
  });
});

describe('profiles diff', () => {
  it('without arguments compares with the previous version, and exits with 3', async () => {
    const { code, stdout, stderr } = await boxcar('profiles', 'diff', 'poet');
    expect({ code, stderr }).toEqual({ code: 3, stderr: '' });
    expect(stdout).toMatch(/^--- poet@1\n\+\+\+ poet@2\n@@ /);
    expect(stdout).toMatch(/^\+ {2}- a-tag-that-is-long-and-longer-than-any-column$/m);
    expect(stdout).not.toContain('\u001b');
    expect(await json('profiles', 'diff', 'poet@1')).toMatchObject({
      same: false,
      from: 'poet@1',
      to: 'poet@2',
    });
    expect(await json('profiles', 'diff', 'poet@2', 'poet@1')).toMatchObject({
      from: 'poet@2',
      to: 'poet@1',
    });
    expect(await json('profiles', 'diff', 'poet', 'boss')).toMatchObject({ from: 'poet@2', to: 'boss@1' });
  });

  it('of equal content exits with 0', async () => {
    expect(await boxcar('profiles', 'diff', 'poet@2', 'poet')).toMatchObject({
      code: 0,
      stdout: 'poet@2 and poet@2 are the same.\n',
    });
    expect(await json('profiles', 'diff', 'poet@1', 'poet@1')).toEqual({
      same: true,
      from: 'poet@1',
      to: 'poet@1',
      diff: '',
    });
  });

  it('with a file finds the profile of that name in the file', async () => {
    const texts = ['name: other\n', 'name: poet\n'].map(
      (name) => `${name}instructions: x\nmodel: scripted\nscript: [{ say: x }]\n`,
    );
    const path = file('two.yaml', texts.join('---\n'));
    const { code, stdout } = await boxcar('profiles', 'diff', 'poet', '-f', path);
    expect(code).toBe(3);
    expect(stdout).toContain(`--- poet@2\n+++ ${path}\n`);
    expect(stdout).toMatch(/^\+instructions: x$/m);
    expect(await boxcar('profiles', 'diff', 'boss', '-f', path)).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/not_found: .* holds no profile 'boss'/),
    });
  });

  it.each([
    [['boss'], /Profile 'boss' has only version 1; name what to compare it with/],
    [['nobody'], /No profile 'nobody'/],
    [['poet', 'poet@7'], /version 7/],
    [['poet', 'boss', '-f', 'x.yaml'], /not both/],
    [['poet', '-f', tmpdir()], /is a folder; name the files in it/],
  ])('%j is refused', async (args, message) => {
    expect(await boxcar('profiles', 'diff', ...args)).toMatchObject({
      code: args.length > 3 ? 2 : 1,
      stdout: '',
      stderr: expect.stringMatching(message),
    });
  });
});

describe('profiles apply --dry-run', () => {
  it('shows what would change, with the difference, and changes nothing', async () => {
    const path = file(
      'plan.yaml',
      [
        'name: newcomer\ninstructions: x\nmodel: scripted\nscript: [{ say: x }]\n',
        'name: writer\ninstructions: You write well.\nmodel: scripted\nscript: [{ say: "Hello {{instruction}}" }]\n',
        (await boxcar('profiles', 'show', 'poet', '--yaml')).stdout,
      ].join('---\n'),
    );
    const before = await json('profiles', 'ls');
    const { code, stdout, stderr } = await boxcar('profiles', 'apply', '-f', path, '--dry-run');
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout).toMatch(
      /^profile +version +would be\nnewcomer +1 +new\nwriter +2 +changed\npoet +2 +unchanged\n\n--- writer@1\n/,
    );
    expect(stdout).toContain('\n-instructions: You write.\n+instructions: You write well.\n');
    expect(await json('profiles', 'apply', '-f', path, '--dry-run')).toMatchObject({
      dry_run: true,
      profiles: [
        { name: 'newcomer', change: 'new', current_version: null, version: 1 },
        { name: 'writer', change: 'changed', current_version: 1, version: 2 },
        { name: 'poet', change: 'unchanged', current_version: 2, version: 2, diff: '' },
      ],
    });
    expect(await json('profiles', 'ls')).toEqual(before);
    // The result matches the preview.
    expect((await boxcar('profiles', 'apply', '-f', path)).stdout).toMatch(
      /^profile +version\nnewcomer +1 +new\nwriter +2 +changed\npoet +2 +unchanged\n$/,
    );
    expect(await json('profiles', 'apply', '-f', path)).toMatchObject({
      profiles: [
        { name: 'newcomer', version: 1, changed: false, change: 'unchanged' },
        { name: 'writer', version: 2, changed: false, change: 'unchanged' },
        { name: 'poet', version: 2, changed: false, change: 'unchanged' },
      ],
    });
  });

  it('reports the same findings as applying', async () => {
    const path = file('bad.yaml', 'name: a\ninstruction: x\nmodel: scripted\nscript: [{ say: x }]\n');
    const { code, stderr } = await boxcar('profiles', 'apply', '-f', path, '--dry-run');
    expect(code).toBe(1);
    expect(stderr).toContain(`${path}:2:1: unknown key 'instruction'; did you mean 'instructions'?`);
  });
});

describe('profiles apply', () => {
  const named = (name: string, rest = '') =>
    `name: ${name}\ninstructions: x\nmodel: scripted\nscript: [{ say: x }]\n${rest}`;

  it('names the file, the line and the profile that cannot be applied, and applies none', async () => {
    const before = await json('profiles', 'ls');
    const taken =
      'tools:\n  - name: delegate_async\n    description: x\n    target: here\n    parameters: { type: object }\n';
    const [good, bad] = [
      file('good.yaml', named('good')),
      file('declared.yaml', [named('fine'), named('clash', taken)].join('---\n')),
    ];
    for (const more of [[], ['--dry-run']]) {
      const { code, stderr } = await boxcar('profiles', 'apply', '-f', good, bad, ...more);
      expect(code).toBe(1);
      expect(stderr).toMatch(
        new RegExp(`^boxcar: profile_invalid: ${bad}:11:5: profile 'clash': tools.0.name: .*delegate_async`),
      );
    }
    const large = file(
      'large.yaml',
      [named('fine'), named(`large`, `description: ${'x'.repeat(1_100_000)}\n`)].join('---\n'),
    );
    const refused = await boxcar('profiles', 'apply', '-f', good, large);
    expect(refused.stderr).toContain(`${large}:6:1: profile 'large': The content of a sys.profile card has`);
    expect(await json('profiles', 'ls')).toEqual(before);
  });

  it('writes all profiles of all files in one transaction, or none', async () => {
    const before = await json('profiles', 'ls');
    await stack.runtime.pool.query(`
      create function boxcar.refuse_last() returns trigger language plpgsql as $$
      begin if new.name = 'last' then raise exception 'no room'; end if; return new; end $$;
      create trigger refuse_last before insert on boxcar.profiles for each row execute function boxcar.refuse_last()`);
    const files = [file('one.yaml', named('first')), file('two.yaml', named('last'))];
    const { code } = await boxcar('profiles', 'apply', '-f', ...files);
    await stack.runtime.pool.query(
      'drop trigger refuse_last on boxcar.profiles; drop function boxcar.refuse_last()',
    );
    expect(code).toBe(1);
    expect(await json('profiles', 'ls')).toEqual(before);
    expect((await json('profiles', 'apply', '-f', ...files)).profiles).toMatchObject([
      { name: 'first', change: 'new' },
      { name: 'last', change: 'new' },
    ]);
  });
});

it('the command line makes an agent and moves it between versions', async () => {
  const provision = (...args: string[]) =>
    json('submit', 'provision_agent', '--arg', 'action=ensure', '--arg', 'agent_id=poet-1', ...args);
  expect(await provision('--arg', 'profile_name=poet', '--arg', 'profile_version:=1')).toMatchObject({
    outcome: 'created',
    name: 'poet-1',
    profile_version: 1,
  });
  expect(await provision('--arg', 'profile_name=poet')).toMatchObject({
    outcome: 'unchanged',
    profile_version: 1,
  });
  expect(await provision('--arg', 'profile_version=current')).toMatchObject({
    outcome: 'updated',
    profile_version: 2,
  });
  expect(await boxcar('submit', 'provision_agent', '--arg', 'action=ensure')).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/agent_id: is required with action ensure/),
  });
});

describe('settings that are not sent as they are written', () => {
  const text =
    'name: hot\ninstructions: Be warm.\nmodel: openai:gpt-5\nmodel_settings: { temperature: 1.2 }\n';
  const line = 'warning: hot: temperature 1.2 is not sent: temperature is not supported for reasoning models';
  it.each([
    ['apply', []],
    ['apply --dry-run', ['--dry-run']],
  ] as const)('are named by %s, which succeeds', async (_name, flags) => {
    const path = file('hot.yaml', text);
    const { code, stdout } = await boxcar('profiles', 'apply', '-f', path, ...flags);
    expect([code, stdout.trimEnd().split('\n').at(-1)]).toEqual([0, line]);
    expect((await json('profiles', 'apply', '-f', path, ...flags)).profiles).toMatchObject([
      { name: 'hot', findings: [{ setting: 'temperature', sent: null }] },
    ]);
  });
});
