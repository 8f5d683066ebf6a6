import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ToolContext } from '@boxcar/runtime';
import { describe, expect, test } from 'vitest';
import { z } from 'zod';
import { readText } from './source-files.js';
import { copyFixture } from './testing/survey-harness.js';
import { createSurveyTools, MAX_AREAS } from './tools.js';

const context = { signal: new AbortController().signal } as ToolContext;

describe('the tools', () => {
  test('have names and schemas that every provider accepts', async () => {
    await using tree = await copyFixture();
    for (const [name, tool] of Object.entries(createSurveyTools(tree.root))) {
      expect(tool.name).toBe(name);
      expect(tool.name).toMatch(/^[a-zA-Z0-9_-]{1,64}$/);
      expect(z.toJSONSchema(tool.input, { io: 'input' })).toMatchObject({
        type: 'object',
        additionalProperties: false,
      });
    }
  });

  test('list_files reads a folder page by page', async () => {
    await using tree = await copyFixture();
    const { list_files } = createSurveyTools(tree.root);
    const after = await list_files.run({ path: 'src', scope: 'tree', after: 'src/index.ts' }, context);
    expect(after).toEqual({
      files: [
        { path: 'src/legacy.cjs', language: 'JavaScript', lines: 5 },
        { path: 'src/shapes.ts', language: 'TypeScript', lines: 53 },
        { path: 'src/view.jsx', language: 'JavaScript', lines: 3 },
        { path: 'src/deep/size.mjs', language: 'JavaScript', lines: 10 },
      ],
      has_more: false,
    });
  });

  test('read_file returns the requested lines', async () => {
    await using tree = await copyFixture();
    const { read_file } = createSurveyTools(tree.root);
    expect(await read_file.run({ path: 'src/view.jsx', from_line: 2, max_lines: 1 }, context)).toEqual({
      path: 'src/view.jsx',
      from_line: 2,
      total_lines: 3,
      text: 'export const View = ({ children }) => <main title="// TODO no">{children}</main>;',
    });
    for (const [path, why] of [
      ['docs/picture.png', /is a binary file/],
      ['docs/huge.txt', /is too large/],
      ['docs', /is no file to read/],
    ] as const) {
      await expect(read_file.run({ path, from_line: 1, max_lines: 1 }, context)).rejects.toThrow(why);
    }
  });

  test('a file is read up to the limit, whatever size it reports', async () => {
    await using tree = await copyFixture();
    const text = 'ab\n'.repeat(100_000);
    await writeFile(join(tree.root, 'long.txt'), text);
    const path = join(tree.root, 'long.txt');
    expect(await readText(path, text.length)).toEqual({ outcome: 'text', text });
    expect(await readText(path, text.length - 1)).toEqual({ outcome: 'too_large' });
    // Linux has files that report size 0 and have content.
    if (!existsSync('/proc/self/status')) return;
    expect(await readText('/proc/self/status')).toMatchObject({
      text: expect.stringMatching(/^Name:[\s\S]*\n$/),
    });
    expect(await readText('/proc/self/status', 100)).toEqual({ outcome: 'too_large' });
  });

  test('list_folders covers a folder once, and in one piece when its folders are too many or have odd names', async () => {
    await using tree = await copyFixture();
    const { list_folders } = createSurveyTools(tree.root);
    const areasOf = async (path: string): Promise<unknown> => list_folders.run({ path }, context);
    expect(await areasOf('.')).toEqual({
      areas: [
        { path: '.', scope: 'files' },
        { path: 'docs', scope: 'tree' },
        { path: 'src', scope: 'tree' },
        { path: 'tools', scope: 'tree' },
      ],
    });
    await mkdir(join(tree.root, 'tools', 'two\nlines'));
    expect(await areasOf('tools')).toEqual({ areas: [{ path: 'tools', scope: 'tree' }] });
    for (let index = 0; index <= MAX_AREAS; index += 1) await mkdir(join(tree.root, 'docs', `d${index}`));
    expect(await areasOf('docs')).toEqual({ areas: [{ path: 'docs', scope: 'tree' }] });
  });

  test('refuse a file in place of a folder', async () => {
    await using tree = await copyFixture();
    const { list_folders, list_files, measure_files, measure_code, find_todos } = createSurveyTools(
      tree.root,
    );
    await expect(list_folders.run({ path: 'data.json' }, context)).rejects.toThrow(
      "'data.json' is no folder",
    );
    for (const tool of [list_files, measure_files, measure_code, find_todos]) {
      const run = tool.run({ path: 'data.json', scope: 'tree' }, context);
      await expect(run).rejects.toThrow("'data.json' is no folder");
    }
  });

  test('stop when their call is over', async () => {
    await using tree = await copyFixture();
    await writeFile(join(tree.root, 'more.ts'), 'export {};\n');
    const over = { signal: AbortSignal.abort(new Error('the call is over')) } as ToolContext;
    const { measure_files, measure_code, find_todos } = createSurveyTools(tree.root);
    for (const tool of [measure_files, measure_code, find_todos]) {
      await expect(tool.run({ path: '.', scope: 'tree' }, over)).rejects.toThrow('the call is over');
    }
  });
});
