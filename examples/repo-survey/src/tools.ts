/** The tools of the survey: read-only, and confined to one folder. All figures are counted here. */

import { opendir } from 'node:fs/promises';
import { KernelError } from '@boxcar/kernel';
import type { Tool, ToolContext } from '@boxcar/runtime';
import { z } from 'zod';
import { measureCode, parseCode } from './code.js';
import { type Confined, confine, confineFolder, IGNORED_FOLDERS } from './confinement.js';
import {
  addLanguages,
  answerSchema,
  type CodeFinding,
  combineFindings,
  longest,
  MAX_TODOS,
  type StructureFinding,
  type TodoFinding,
} from './findings.js';
import { isCode, languageOf } from './languages.js';
import { countLines, noneSkipped, readSources, readText, SCOPES, type Scope } from './source-files.js';
import { findTodos } from './todos.js';

/** A folder with more subfolders than this, or with a subfolder whose name contains a line break, is surveyed in one piece. */
export const MAX_AREAS = 32;
const MAX_LISTED = 500;
const MAX_READ_LINES = 400;
const MAX_READ_CHARACTERS = 64 * 1024;
const MAX_NAME = 120;

const path = z.string().min(1).max(4_096).describe('Relative to the surveyed folder; "." is all of it.');
const folderSchema = z.strictObject({
  path: path.default('.'),
  scope: z
    .enum(SCOPES)
    .default('tree')
    .describe('tree: the folder and all below it; files: only the files directly in it.'),
});

/** Checks the type of a tool's arguments at its definition. */
const defineTool = <I>(tool: Omit<Tool<I>, 'isReadOnly'>): Tool<I> => ({ ...tool, isReadOnly: true });

interface Area {
  readonly path: string;
  readonly scope: Scope;
}

/** Parts that together cover the folder exactly once: the files directly in it, and each subfolder. */
async function findAreas(folder: Confined): Promise<readonly Area[]> {
  const names: string[] = [];
  for await (const entry of await opendir(folder.absolute)) {
    if (!entry.isDirectory() || IGNORED_FOLDERS.has(entry.name)) continue;
    names.push(entry.name);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what a line must not hold
    if (names.length > MAX_AREAS || /[\u0000-\u001f\u007f\u2028\u2029]|^\s|\s$/.test(entry.name))
      return [{ path: folder.path, scope: 'tree' }];
  }
  const paths = names.sort().map((name) => (folder.path === '.' ? name : `${folder.path}/${name}`));
  return [
    { path: folder.path, scope: 'files' },
    ...paths.map((below): Area => ({ path: below, scope: 'tree' })),
  ];
}

async function measureFiles(
  folder: Confined,
  scope: Scope,
  { signal }: Pick<ToolContext, 'signal'>,
): Promise<StructureFinding> {
  const skipped = noneSkipped();
  const found: { language: string; files: number; lines: number }[] = [];
  for await (const file of readSources(folder, { scope, signal, skipped })) {
    found.push({ language: languageOf(file.path), files: 1, lines: countLines(file.text) });
  }
  const by_language = addLanguages(found);
  const lines = found.reduce((total, file) => total + file.lines, 0);
  return { folder: folder.path, files: found.length, lines, by_language, skipped };
}

async function measureFolderCode(
  folder: Confined,
  scope: Scope,
  { signal }: Pick<ToolContext, 'signal'>,
): Promise<CodeFinding> {
  const totals = { code_files: 0, unparsed: 0, exports: 0, functions: 0 };
  let best: CodeFinding['longest_functions'] = [];
  for await (const file of readSources(folder, { scope, signal })) {
    if (!isCode(file.path)) continue;
    totals.code_files += 1;
    const parsed = await parseCode(file.path, file.text);
    if (parsed === undefined) {
      totals.unparsed += 1;
      continue;
    }
    const code = measureCode(parsed, file.text);
    totals.exports += code.exports;
    totals.functions += code.functions.length;
    const named = code.functions.map(({ name, line, lines }) => ({
      name: name.slice(0, MAX_NAME).toWellFormed(),
      file: file.path,
      line,
      lines,
    }));
    best = longest([...best, ...named]);
  }
  return { folder: folder.path, ...totals, longest_functions: best };
}

async function findFolderTodos(
  folder: Confined,
  scope: Scope,
  { signal }: Pick<ToolContext, 'signal'>,
): Promise<TodoFinding> {
  let todos = 0;
  const first_todos: TodoFinding['first_todos'] = [];
  for await (const file of readSources(folder, { scope, signal })) {
    const parsed = isCode(file.path) ? await parseCode(file.path, file.text) : undefined;
    const found = findTodos(file.text, parsed);
    todos += found.length;
    for (const todo of found.slice(0, Math.max(MAX_TODOS - first_todos.length, 0)))
      first_todos.push({ file: file.path, ...todo });
  }
  return { folder: folder.path, todos, first_todos };
}

const UNREADABLE = {
  binary: 'is a binary file',
  too_large: 'is too large',
  unreadable: 'is no file to read',
};

/** All tools that the principal and its experts may call in addition to the kernel's primitives. */
export function createSurveyTools(root: string) {
  return {
    list_folders: defineTool({
      name: 'list_folders',
      description:
        'Divide a folder into areas that cover it once: the files directly in it, and each folder in it.',
      input: z.strictObject({ path: path.default('.') }),
      run: async (input) => ({ areas: await findAreas(await confineFolder(root, input.path)) }),
    }),
    list_files: defineTool({
      name: 'list_files',
      description: `List the text files of a folder by path, ${MAX_LISTED} at a time.`,
      input: folderSchema.extend({
        after: z.string().optional().describe('The last path of the page before.'),
      }),
      run: async (input, { signal }) => {
        const folder = await confineFolder(root, input.path);
        const files: { path: string; language: string; lines: number }[] = [];
        let isPassed = input.after === undefined;
        for await (const file of readSources(folder, { scope: input.scope, signal })) {
          if (isPassed && files.length === MAX_LISTED) return { files, has_more: true };
          if (isPassed)
            files.push({ path: file.path, language: languageOf(file.path), lines: countLines(file.text) });
          isPassed ||= file.path === input.after;
        }
        return { files, has_more: false };
      },
    }),
    read_file: defineTool({
      name: 'read_file',
      description: `Read lines of a text file, ${MAX_READ_LINES} at most.`,
      input: z.strictObject({
        path,
        from_line: z.number().int().positive().default(1),
        max_lines: z.number().int().positive().max(MAX_READ_LINES).default(MAX_READ_LINES),
      }),
      run: async (input) => {
        const file = await confine(root, input.path);
        const read = await readText(file.absolute);
        if (read.outcome !== 'text') {
          throw new KernelError('bad_request', {
            message: `path: '${input.path}' ${UNREADABLE[read.outcome]}.`,
            details: { path: input.path },
          });
        }
        const first = input.from_line - 1;
        const lines = read.text.split('\n').slice(first, first + input.max_lines);
        const text = lines.join('\n').slice(0, MAX_READ_CHARACTERS).toWellFormed();
        return { path: file.path, from_line: input.from_line, total_lines: countLines(read.text), text };
      },
    }),
    measure_files: defineTool({
      name: 'measure_files',
      description: 'Count the files and lines of a folder, in all and by language, and what was skipped.',
      input: folderSchema,
      run: async (input, context) =>
        measureFiles(await confineFolder(root, input.path), input.scope, context),
    }),
    measure_code: defineTool({
      name: 'measure_code',
      description:
        'Parse the TypeScript and JavaScript of a folder: exports, named functions, and the longest of these.',
      input: folderSchema,
      run: async (input, context) =>
        measureFolderCode(await confineFolder(root, input.path), input.scope, context),
    }),
    find_todos: defineTool({
      name: 'find_todos',
      description: 'Find the comments and lines of a folder that begin with TODO or FIXME.',
      input: folderSchema,
      run: async (input, context) =>
        findFolderTodos(await confineFolder(root, input.path), input.scope, context),
    }),
    combine_findings: defineTool({
      name: 'combine_findings',
      description: 'Add up the answers of all experts, given as they came, to the figures of the report.',
      input: z.strictObject({ answers: z.array(answerSchema).max(MAX_AREAS + 1) }),
      run: (input) => combineFindings(input.answers),
    }),
  };
}
