import { execFileSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join, relative } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { hashedStem, tapeName } from '@boxcar/kernel';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';
import { writeTapeFolder } from './write-folder.js';

const SESSION = join(import.meta.dirname, '../../fixtures/session');

let database: TestDatabase;
let env: Env;
let folder: string;
let stack: Stack;
let n = 0;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-tape-'));
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
});

afterAll(async () => {
  await stack.close();
  rmSync(folder, { recursive: true, force: true });
});

const fresh = (): string => `tape-${++n}`;
const tape = (...args: string[]) => cliHere(['tape', ...args], env);
const read = (...path: string[]): string => readFileSync(join(...path), 'utf8');

async function answer(...args: string[]): Promise<Record<string, unknown>> {
  const { code, stdout, stderr } = await tape(...args, '--json');
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return JSON.parse(stdout);
}

/** The error of a refused import; afterwards no such tape exists. */
async function refusal(path: string, ...args: string[]): Promise<string> {
  const name = fresh();
  const { code, stdout, stderr } = await tape('import', path, name, ...args);
  expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
  await expect(stack.runtime.tape(name, { create: false })).rejects.toMatchObject({ code: 'not_found' });
  return stderr;
}

/** A copy of the fixture for changes. */
function session(change: (folder: string) => void = () => undefined): string {
  const path = join(folder, `session-${++n}`);
  cpSync(SESSION, path, { recursive: true });
  change(path);
  return path;
}

describe('a tape folder', () => {
  it('is imported with archived tapes and session graph, and is exported byte for byte', async () => {
    expect(await answer('import', SESSION, 'bike')).toMatchObject({
      tape: 'bike',
      first: 1,
      last: 14,
      lines: 12,
      archived: 1,
    });
    const to = join(folder, 'out/bike');
    expect(await answer('export', 'bike', '--to', to)).toEqual({ tape: 'bike', to, lines: 12, archived: 1 });
    expect(readdirSync(to).sort()).toEqual(['session_graph.jsonl', 'tape']);
    expect(read(to, 'session_graph.jsonl')).toBe(read(SESSION, 'session_graph.jsonl'));
    expect(read(to, 'tape/main.jsonl')).toBe(read(SESSION, 'tape/main.jsonl'));
    const manifest = JSON.parse(read(to, 'tape/manifest.json'));
    expect(manifest).toEqual({
      version: 1,
      tapes: [
        {
          id: 'bike',
          file: 'main.jsonl',
          head_id: 102,
          parent: null,
          anchors: { 'session/start': 1, 'phase/réparation': 99 },
          archived: false,
        },
        {
          id: 'bike',
          file: 'archived/main_2026-02-20_a.jsonl',
          head_id: 3,
          parent: null,
          anchors: { 'session/start': 1 },
          archived: true,
        },
      ],
    });
    expect(read(to, 'tape', manifest.tapes[1].file)).toBe(
      read(SESSION, 'tape/archived/main_2026-02-20_a.jsonl'),
    );
    const writtenAt = (path: string): number =>
      statSync(join(path, 'tape', manifest.tapes[1].file)).mtime.getTime();
    expect(writtenAt(to)).toBe(writtenAt(SESSION));
    // The second round uses the manifest.
    const again = join(folder, 'out/again');
    expect(await answer('import', to, 'copy')).toMatchObject({ lines: 12, archived: 1 });
    await answer('export', 'copy', '--to', again);
    expect(read(again, 'tape/main.jsonl')).toBe(read(to, 'tape/main.jsonl'));
    expect(writtenAt(again)).toBe(writtenAt(SESSION));
    // The lines of the folder's sessions, and the line of the copy.
    expect(read(again, 'session_graph.jsonl').split('\n').slice(0, 3).join('\n')).toBe(
      read(to, 'session_graph.jsonl').trimEnd(),
    );
    expect(JSON.parse(read(again, 'tape/manifest.json')).tapes[0]).toEqual({
      ...manifest.tapes[0],
      id: 'copy',
    });
  });

  it('of an agent gives a tape to another installation, and does not overwrite another folder', async () => {
    const { agent_id: agent } = (await stack.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'there',
    })) as { agent_id: string };
    const to = join(folder, 'out/agent');
    const made = await tape('export', agent, '--to', to);
    expect(made).toMatchObject({ code: 0, stderr: '' });
    expect(made.stdout).toMatch(/^2 lines of [0-9a-f-]{36} to /);
    expect(await tape('export', agent, '--to', to)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('session_graph.jsonl already'),
    });
    const copy = fresh();
    expect(await tape('import', to, copy)).toMatchObject({
      code: 0,
      stdout: `2 lines to ${copy}, positions 1–2\n`,
    });
    const lines = (ref: Parameters<Stack['runtime']['tape']>[0]) =>
      stack.runtime.tape(ref).then((found) => found.messages({ anchor: null }));
    expect(await lines(copy)).toEqual(await lines({ agent }));
  });

  it.each<[string, (path: string) => void, string]>([
    [
      'with a broken line in an archived tape',
      (path) => writeFileSync(join(path, 'tape/archived/z.jsonl'), `${read(SESSION, 'tape/main.jsonl')}\n{`),
      'archived/z.jsonl: Line 14 is not valid JSON.',
    ],
    [
      'with a broken session graph',
      (path) => writeFileSync(join(path, 'session_graph.jsonl'), '{"session_id": "a"}\n{}\n'),
      'session_graph.jsonl: Line 2 has no `session_id`.',
    ],
    [
      'with a session graph that is not UTF-8',
      (path) => writeFileSync(join(path, 'session_graph.jsonl'), Buffer.from([0x22, 0xff])),
      'session_graph.jsonl is not UTF-8 text.',
    ],
    [
      'whose manifest is not valid',
      (path) => writeFileSync(join(path, 'tape/manifest.json'), '{"version": 2}'),
      'manifest.json has another form: it has version 2. This build reads version 1',
    ],
    [
      'whose manifest names a file elsewhere',
      (path) => manifest(path, { file: '../session_graph.jsonl' }),
      '../session_graph.jsonl does not lie in its folder.',
    ],
    [
      'whose manifest names a link to a file elsewhere',
      (path) => {
        symlinkSync(join(SESSION, 'tape/main.jsonl'), join(path, 'tape/link.jsonl'));
        manifest(path, { file: 'link.jsonl' });
      },
      'link.jsonl does not lie in its folder.',
    ],
    ...(
      ['tape', 'tape/manifest.json', 'tape/main.jsonl', 'tape/archived', 'session_graph.jsonl'] as const
    ).map((name): [string, (path: string) => void, string] => [
      `whose ${name} is a link to somewhere else`,
      (path) => {
        const elsewhere = `${path}-elsewhere`;
        cpSync(path, elsewhere, { recursive: true });
        if (name === 'tape/manifest.json') manifest(elsewhere, {});
        mkdirSync(join(elsewhere, 'tape/archived'), { recursive: true });
        // Without a manifest, the archived files are the files in the archive folder.
        if (name !== 'tape/manifest.json') rmSync(join(path, 'tape/manifest.json'), { force: true });
        rmSync(join(path, name), { recursive: true, force: true });
        symlinkSync(join(elsewhere, name), join(path, name));
      },
      `${basename(name)} does not lie in its folder.`,
    ]),
    [
      'whose manifest has entries that its file lacks',
      (path) => manifest(path, { head_id: 120 }),
      'main.jsonl: The lines end with id 102; by the manifest there are some up to 120.',
    ],
    ...(['tape/manifest.json', 'session_graph.jsonl'] as const).map(
      (name): [string, (path: string) => void, string] => [
        `whose ${name} has more than 64 MiB`,
        (path) => {
          writeFileSync(join(path, name), '');
          truncateSync(join(path, name), 64 * 1024 * 1024 + 1);
        },
        `${basename(name)} is larger than 64 MiB.`,
      ],
    ),
    ...(
      ['tape/manifest.json', 'tape/main.jsonl', 'tape/archived/z.jsonl', 'session_graph.jsonl'] as const
    ).map((name): [string, (path: string) => void, string] => [
      `whose ${name} is a pipe`,
      (path) => {
        rmSync(join(path, name), { force: true });
        execFileSync('mkfifo', [join(path, name)]);
      },
      `${basename(name)} is not a regular file.`,
    ]),
    ['without a tape', (path) => rmSync(join(path, 'tape/main.jsonl')), 'main.jsonl'],
  ])('%s is refused, and nothing is imported', async (_what, change, message) => {
    expect(await refusal(session(change))).toContain(message);
  });

  it('may itself be a link, and may have links to files in it', async () => {
    const path = session((copy) => {
      renameSync(join(copy, 'tape/main.jsonl'), join(copy, 'tape/first.jsonl'));
      symlinkSync('first.jsonl', join(copy, 'tape/main.jsonl'));
    });
    symlinkSync(path, `${path}-link`);
    expect(await answer('import', `${path}-link`, fresh())).toMatchObject({ lines: 12 });
  });

  it('may have a byte order mark, and files whose names begin with dots', async () => {
    const path = session((copy) => {
      renameSync(join(copy, 'tape/main.jsonl'), join(copy, 'tape/..main.jsonl'));
      manifest(copy, { id: 'dotted', file: '..main.jsonl' });
      const text = read(copy, 'tape/manifest.json');
      writeFileSync(join(copy, 'tape/manifest.json'), `\uFEFF${text}`);
    });
    expect(await answer('import', path)).toMatchObject({ tape: 'dotted', lines: 12 });
  });

  it('whose manifest names the tape by an id is imported under a given name', async () => {
    const path = session((copy) => manifest(copy, { id: '01a20448-c6f9-77ee-8ceb-85ed428c7727' }));
    expect(await tape('import', path)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('give its name'),
    });
  });

  it('has the tape as it was when the export began, whatever is reset meanwhile', async () => {
    const name = fresh();
    await answer('import', SESSION, name);
    const found = await stack.runtime.tape(name);
    let isReset = false;
    // The export asks for the archived tape after it has begun.
    const runtime: Stack['runtime'] = Object.assign(Object.create(stack.runtime), {
      tape: async (...args: Parameters<Stack['runtime']['tape']>) => {
        if (!isReset) await (await stack.runtime.tape(name)).reset();
        isReset = true;
        return stack.runtime.tape(...args);
      },
    });
    const to = join(folder, 'out', name);
    const onLine = (): void => undefined;
    expect(await writeTapeFolder(runtime, [found], { to, onLine })).toEqual([
      { id: name, lines: 12, archived: 1 },
    ]);
    expect(isReset).toBe(true);
    expect(read(to, 'tape/main.jsonl')).toBe(read(SESSION, 'tape/main.jsonl'));
  });

  it('may have a file with the name of the folder for archived tapes, and that name is not kept', async () => {
    const from = join(folder, 'called-archived');
    mkdirSync(from);
    for (const file of ['main.jsonl', 'archived']) cpSync(join(SESSION, 'tape/main.jsonl'), join(from, file));
    const entry = { id: 'x', head_id: 0, parent: null, anchors: {} };
    const tapes = [
      { ...entry, file: 'main.jsonl', archived: false },
      { ...entry, file: 'archived', archived: true },
    ];
    writeFileSync(join(from, 'manifest.json'), JSON.stringify({ version: 1, tapes }));
    const name = fresh();
    await answer('import', from, name);
    for (const archived of [1, 2]) {
      const to = join(folder, `called-archived-${archived}`);
      expect(await answer('export', name, '--to', to)).toMatchObject({ archived });
      expect(readdirSync(join(to, 'tape/archived'))).toHaveLength(archived);
      if (archived === 1) await answer('reset', name, '--archive', '--yes');
    }
  });

  it('that does not exist is reported with its path', async () => {
    expect(await refusal(join(folder, 'nowhere'))).toMatch(/^boxcar: bad_request: ENOENT: .*nowhere/);
  });
});

describe('a folder of several tapes', () => {
  /** The content of every file of a folder, and the modification times of archived files. */
  const filesOf = (path: string): Record<string, unknown> =>
    Object.fromEntries(
      readdirSync(path, { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => {
          const at = join(entry.parentPath, entry.name);
          const writtenAt = at.includes('/archived/') ? statSync(at).mtime.getTime() : 0;
          return [relative(path, at), [readFileSync(at, 'utf8'), writtenAt]];
        }),
    );

  it('has all sessions of a workspace, and is exported elsewhere byte for byte', async () => {
    const workspace = mkdtempSync(join(folder, 'workspace-'));
    const [main, side] = ['main', 'side'].map((name) => tapeName(realpathSync(workspace), name));
    for (const name of ['main', 'side'])
      await answer(
        'handoff',
        'phase',
        '--summary',
        name,
        '--create',
        '--workspace',
        workspace,
        '--session',
        name,
      );
    await answer('reset', main ?? '', '--archive', '--yes');
    await (await stack.runtime.tape(side ?? '')).forkSession('child-of-side', { profile: 'writer' });
    const to = join(folder, 'several');
    const written = await answer('export', '--workspace', workspace, '--to', to);
    expect(written).toMatchObject({
      to,
      tapes: [
        { tape: side, archived: 0 },
        { tape: main, archived: 1 },
        { tape: 'child-of-side', archived: 0 },
      ],
    });
    expect(readdirSync(join(to, 'tape')).sort()).toEqual(
      ['archived', 'manifest.json', 'child-of-side.jsonl', `${main}.jsonl`, `${side}.jsonl`].sort(),
    );
    const graph = read(to, 'session_graph.jsonl').trimEnd().split('\n');
    expect(graph.map((line) => JSON.parse(line).session_id).sort()).toEqual(
      [main, side, 'child-of-side'].sort(),
    );

    await using other = await testDatabase();
    const there = { DATABASE_URL: other.url };
    const elsewhere = await prepare(there);
    try {
      const run = (...args: string[]) => cliHere(['tape', ...args], there);
      expect(await run('import', to, '--key', 'all')).toMatchObject({ code: 0 });
      const again = await run('import', to, '--key', 'all', '--json');
      expect(JSON.parse(again.stdout).tapes.map((one: { is_repeated: boolean }) => one.is_repeated)).toEqual(
        Array(3).fill(true),
      );
      expect(await run('import', to)).toMatchObject({
        code: 1,
        stderr: expect.stringContaining('nothing was imported'),
      });
      // Each tape except the first keeps only the lines of its own lineage.
      const graph = (await (await elsewhere.runtime.tape(main ?? '')).folder()).sessionGraph;
      expect(graph).toContain(main);
      expect(graph).not.toContain('child-of-side');
      const back = join(folder, 'several-back');
      expect(await run('export', '--workspace', workspace, '--to', back)).toMatchObject({ code: 0 });
      expect(filesOf(back)).toEqual(filesOf(to));
    } finally {
      await elsewhere.close();
    }
  });

  it('has distinct names for tapes and files, whatever the tapes are called, and keeps names that are free', async () => {
    const names = ['Clash', 'clash', '../up', '.hidden', `${'long/'.repeat(90)}`];
    for (const name of names) await answer('import', SESSION, name);
    const to = join(folder, 'apart');
    await answer('export', ...names, 'clash', '--to', to);
    const { tapes } = JSON.parse(read(to, 'tape/manifest.json')) as { tapes: { id: string; file: string }[] };
    expect(tapes.filter(({ file }) => !file.includes('/')).map(({ id }) => id)).toEqual(names);
    const files = tapes.map(({ file }) => file);
    expect(new Set(files.map((file) => file.toLowerCase())).size).toBe(10);
    for (const file of files)
      expect(read(to, 'tape', file)).toBe(
        read(SESSION, 'tape', file.includes('/') ? 'archived/main_2026-02-20_a.jsonl' : 'main.jsonl'),
      );
    expect(files.filter((file) => file === 'archived/main_2026-02-20_a.jsonl')).toHaveLength(1);
    // One of the tapes alone, under its own or another name.
    expect(await answer('import', to, '../up', '--append')).toMatchObject({ tape: '../up', lines: 12 });
  });

  it('gives each tape a file of its own, also when a tape’s name is the file name of another', async () => {
    const names = [hashedStem('CLASH-2'), 'clash-2', 'CLASH-2'];
    for (const name of names) await answer('import', join(SESSION, 'tape/main.jsonl'), name);
    const to = join(folder, 'apart-too');
    await answer('export', ...names, '--to', to);
    const { tapes } = JSON.parse(read(to, 'tape/manifest.json')) as { tapes: { id: string; file: string }[] };
    expect(tapes.map(({ id }) => id)).toEqual(names);
    expect(new Set(tapes.map(({ file }) => file.toLowerCase())).size).toBe(3);
  });

  it('has no two tapes with one name, because it could not be imported', async () => {
    const name = fresh();
    await answer('import', SESSION, name);
    const { boxId } = await stack.runtime.tape(name, { create: false });
    await answer('reset', name, '--archive', '--yes');
    const to = join(folder, 'one-name');
    const { code, stderr } = await tape('export', name, boxId, '--to', to);
    expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringContaining(`two tapes '${name}'`) });
    expect(existsSync(join(to, 'tape'))).toBe(false);
    expect(await answer('export', boxId, '--to', to)).toMatchObject({ tape: name });
  });

  it('is written completely or not at all', async () => {
    const names = [fresh(), fresh()];
    for (const name of names) await answer('import', SESSION, name);
    const tapes = await Promise.all(names.map((name) => stack.runtime.tape(name)));
    const to = join(folder, 'half');
    let lines = 0;
    const onLine = (): void => {
      lines += 1;
      if (lines === 20) throw new Error('the disk is full');
    };
    await expect(writeTapeFolder(stack.runtime, tapes, { to, onLine })).rejects.toThrow('the disk is full');
    expect(readdirSync(to)).toEqual([]);
  });

  it.each<[string, readonly Readonly<Record<string, unknown>>[], string]>([
    [
      'the same file twice',
      [{ id: 'x' }, { id: 'y', file: './main.jsonl' }],
      'manifest.json names main.jsonl twice',
    ],
    [
      'the same tape twice',
      [{ id: 'x' }, { id: 'x', file: 'y.jsonl' }],
      "two tapes 'x' that are not archived",
    ],
    [
      'a file outside the folder in one of them',
      [{ id: 'x' }, { id: 'y', file: '../../y.jsonl' }],
      '../../y.jsonl does not lie in its folder',
    ],
    [
      'a tape named by an id',
      [{ id: 'x' }, { id: '01a20448-c6f9-77ee-8ceb-85ed428c7727', file: 'y.jsonl' }],
      'names a tape by an id',
    ],
  ])('is refused with %s', async (_what, tapes, message) => {
    const path = session((copy) => manifest(copy, ...tapes));
    const { code, stderr } = await tape('import', path);
    expect({ code, stderr }).toEqual({ code: 1, stderr: expect.stringContaining(message) });
  });

  it('needs tapes or a workspace, not both; a workspace needs a session in it', async () => {
    const refused = async (code: number, message: string, ...args: string[]): Promise<void> =>
      expect(await tape('export', '--to', join(folder, 'refused'), ...args)).toMatchObject({
        code,
        stderr: expect.stringContaining(message),
      });
    await refused(2, 'say which tape');
    await refused(2, 'name tapes, or give --workspace', 'bike', '--workspace', folder);
    await refused(1, 'No session of workspace', '--workspace', join(folder, 'empty'));
  });
});

function manifest(path: string, ...changes: readonly Readonly<Record<string, unknown>>[]): void {
  const tapeOf = { id: 'x', file: 'main.jsonl', head_id: 102, parent: null, anchors: {}, archived: false };
  writeFileSync(
    join(path, 'tape/manifest.json'),
    JSON.stringify({ version: 1, tapes: changes.map((change) => ({ ...tapeOf, ...change })) }),
  );
}

describe('a tape file', () => {
  const file = (text: string | Buffer): string => {
    mkdirSync(folder, { recursive: true });
    const path = join(folder, `${++n}.jsonl`);
    writeFileSync(path, text);
    return path;
  };
  const message = (id: number): string =>
    `{"id": ${id}, "kind": "message", "payload": {"role": "user", "content": "a\u2028b\\r"}, "meta": {}}`;

  it('needs a name, and is appended to a tape only on request', async () => {
    const path = file(`${message(1)}\r\n\n${message(2)}`);
    expect(await tape('import', path)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('does not name the tape'),
    });
    const name = fresh();
    expect(await answer('import', path, name, '--append')).toMatchObject({ first: 1, last: 2, lines: 2 });
    expect(await tape('import', path, name)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining(`There is a tape '${name}'`),
    });
    expect(await answer('import', path, name, '--append')).toMatchObject({ first: 3, last: 4, lines: 2 });
    const to = join(folder, 'out', name);
    await answer('export', name, '--to', to);
    // Lines stay unchanged, whatever their content. Blank lines are dropped, and each line has a line end.
    const once = `${message(1)}\r\n${message(2)}\n`;
    expect(read(to, 'tape/main.jsonl')).toBe(`${once}${once}`);
  });

  it('is imported once with the same key', async () => {
    const path = file(`${message(1)}\n`);
    const name = fresh();
    const args = ['import', path, name, '--append', '--key', `once ${name}`];
    const first = await answer(...args);
    expect(first).toMatchObject({ first: 1, last: 1, is_repeated: false });
    expect(await answer(...args)).toEqual({ ...first, is_repeated: true });
    expect((await tape(...args)).stderr).toContain('nothing was imported again');
  });

  it('with a line that is not UTF-8 is refused with the number of the line', async () => {
    const path = file(
      Buffer.concat([Buffer.from(`${message(1)}\n"`), Buffer.from([0xff]), Buffer.from('"\n')]),
    );
    expect(await refusal(path)).toContain('.jsonl: Line 2 is not UTF-8 text.');
  });
});
