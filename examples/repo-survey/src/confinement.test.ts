import { symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { toErrorBody } from '@boxcar/kernel';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { confine } from './confinement.js';
import { registerSurvey } from './index.js';
import { noneSkipped, readSources } from './source-files.js';
import { copyFixture, openTestRuntime, SECRET, type TestTree } from './testing/survey-harness.js';

/** Paths to places where no tool may go, and the error that the model receives. */
const ESCAPES = (tree: TestTree): readonly (readonly [string, RegExp])[] => [
  ['..', /leads upwards/],
  ['../tree-outside/secret.ts', /leads upwards/],
  ['src/../../tree-outside/secret.ts', /leads upwards/],
  ['..\\tree-outside\\secret.ts', /leads upwards/],
  [join(tree.outside, 'secret.ts'), /is absolute/],
  [join(tree.root, 'src/index.ts'), /is absolute/],
  ['C:\\secret.ts', /is absolute/],
  ['C:secret.ts', /is absolute/],
  ['\\\\server\\share', /is absolute/],
  ['link-to-folder', /is a link that leads out/],
  ['link-to-folder/secret.ts', /is a link that leads out/],
  ['src/link-to-file.ts', /is a link that leads out/],
  ['.git/index.js', /is not part of the survey/],
  ['src/dist', /is not part of the survey/],
  ['no/such/file.ts', /does not exist/],
  ['nul\0.ts', /NUL/],
];

describe('a path', () => {
  test('inside the root is its real path, and links within the root are followed', async () => {
    await using tree = await copyFixture();
    const { root } = tree;
    const inside = async (path: string) => (await confine(root, path)).path;
    expect(await inside('.')).toBe('.');
    expect(await inside('./src/')).toBe('src');
    expect(await inside('src//deep/./size.mjs')).toBe('src/deep/size.mjs');
    expect(await inside('link-inside/notes.txt')).toBe('docs/notes.txt');
    expect(await inside('src/deep/loop/src')).toBe('src');
    expect(await confine(root, 'docs')).toEqual({ absolute: join(root, 'docs'), path: 'docs' });
    await writeFile(join(root, '..rc'), '');
    expect(await inside('..rc')).toBe('..rc');
  });

  test('that leads elsewhere is refused without information about the target', async () => {
    await using tree = await copyFixture();
    for (const [path, why] of ESCAPES(tree)) {
      const error = await confine(tree.root, path).then(
        (found) => ({ code: 'found', message: found.absolute }),
        (thrown: unknown) => toErrorBody(thrown),
      );
      expect([path, error.code, error.message]).toEqual([path, 'bad_request', expect.stringMatching(why)]);
      expect(error.message.replace(path, '')).not.toContain(tree.outside);
    }
  });
});

test('a folder that becomes a link while it is read is not followed', async () => {
  await using tree = await copyFixture();
  const skipped = noneSkipped();
  const seen: string[] = [];
  // The walk's entry for `docs`, which was a folder when it was listed and is a link when it is visited.
  const swapped = { absolute: join(tree.root, 'link-to-folder'), path: 'docs' };
  for await (const file of readSources(swapped, {
    scope: 'tree',
    signal: AbortSignal.timeout(5_000),
    skipped,
  }))
    seen.push(file.path);
  expect([seen, skipped.unreadable]).toEqual([[], 1]);
});

test('files beyond the limit are counted, and not read', async () => {
  await using tree = await copyFixture();
  const skipped = noneSkipped();
  const seen: string[] = [];
  const folder = await confine(tree.root, 'src');
  const signal = AbortSignal.timeout(5_000);
  for await (const file of readSources(folder, { scope: 'tree', signal, skipped, maxFiles: 2 }))
    seen.push(file.path);
  expect(seen).toEqual(['src/broken.ts', 'src/index.ts']);
  expect(skipped).toMatchObject({ over_limit: 4, links: 2, ignored_folders: 1 });
});

const failuresSchema = z.array(
  z.object({ status: z.literal('failed'), error: z.object({ code: z.string(), message: z.string() }) }),
);

test('an agent that tries to leave the root reads nothing and gets the reason', async () => {
  await using tree = await copyFixture();
  await symlink('/etc', join(tree.root, 'etc'));
  await using h = await openTestRuntime();
  const { runtime } = h;
  await registerSurvey(runtime, { root: tree.root });
  const tools = ['read_file', 'list_files', 'list_folders', 'measure_files', 'measure_code', 'find_todos'];
  const escapes = [...ESCAPES(tree).filter(([path]) => !path.includes('\0')), ['etc', /is a link/] as const];
  const attempts = escapes.flatMap(([path, why]) => tools.map((tool) => ({ tool, path, why })));
  await runtime.applyProfile({
    name: 'intruder',
    instructions: 'You try to get out.',
    model: 'scripted',
    tools,
    script: [
      { calls: attempts.map(({ tool, path }) => ({ tool, arguments: { path } })) },
      { calls: [{ tool: 'read_file', raw: '{"path":"nul\\u0000.ts"}' }] },
      { calls: [{ tool: 'read_file', arguments: { path: '', from_line: 0 } }] },
      {
        calls: [
          {
            tool: 'submit_result',
            arguments: { result: tools.map((tool) => `{{results/${tool}/*}}`) },
          },
        ],
      },
    ],
    must_end_with: ['submit_result'],
  });
  const end = await runtime.submit('launch_principal', {
    profile_name: 'intruder',
    instruction: 'go',
    wait: true,
  });
  const { result } = z.object({ status: z.literal('success'), result: z.array(failuresSchema) }).parse(end);
  for (const [index, tool] of tools.entries()) {
    const expected = attempts.filter((attempt) => attempt.tool === tool);
    const failures = result[index] ?? [];
    expect(failures.slice(0, expected.length).map(({ error }) => error.message)).toEqual(
      expected.map(({ why }) => expect.stringMatching(why)),
    );
  }
  expect(result[0]?.slice(-2).map(({ error }) => error.code)).toEqual([
    'bad_request',
    'tool_arguments_invalid',
  ]);
  const leaks = await runtime.pool.query('select id from boxcar.cards where content::text like any ($1)', [
    [`%${SECRET}%`, '%root:x:%'],
  ]);
  expect(leaks.rows).toEqual([]);
});
