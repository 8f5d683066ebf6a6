/**
 * The survey of this repository, compared with an independent count: no parser and no walk of the example, but regular expressions that
 * rely on the formatting of this repository.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { registerSurvey, reportSchema, runSurvey, type SurveyReport } from './index.js';
import { openTestRuntime } from './testing/survey-harness.js';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const IGNORED =
  /^(\.cache|\.git|\.hg|\.jj|\.next|\.nuxt|\.svn|\.turbo|\.venv|__pycache__|bower_components|coverage|dist|node_modules)$/;
const CODE = /\.([cm]?[jt]s|[jt]sx)$/;
/** Fixtures that regular expressions cannot count correctly. */
const BY_HAND: Readonly<Record<string, number>> = {
  'examples/repo-survey/fixtures/small-tree/src/broken.ts': 0,
  'examples/repo-survey/fixtures/small-tree/src/shapes.ts': 10,
};
const MARKER = /^(TODO|FIXME)\b/;

interface Counted {
  readonly file: string;
  readonly lines: number;
  readonly exports: number;
  readonly todos: number;
  /** Functions declared at the left margin, by name, with their lines. */
  readonly functions: ReadonlyMap<string, number>;
}

function countExports(text: string): number {
  const names = new Set<string>();
  let stars = 0;
  for (const [, list = ''] of text.matchAll(/^export (?:type )?\{([^}]*)\}/gm)) {
    const items = list.replaceAll(/\/\/.*/g, '').split(',');
    for (const item of items) names.add(item.trim().split(/\s+/).at(-1) ?? '');
  }
  for (const [, rest = ''] of text.matchAll(/^export (?!(?:type )?\{)(.*)/gm)) {
    const star = /^(?:type )?\*(?: as ([\w$]+))?/.exec(rest);
    const name =
      /^(?:declare |abstract |async |const (?=enum))*(?:const|let|function\*?|class|interface|type|enum|namespace) ([\w$]+)/.exec(
        rest,
      )?.[1];
    if (star !== null && star[1] === undefined) stars += 1;
    else names.add(star?.[1] ?? name ?? (/^default\b/.test(rest) ? 'default' : `unforeseen: ${rest}`));
  }
  names.delete('');
  return names.size + stars;
}

function countTodos(file: string, text: string): number {
  const isMarked = (line: string): boolean => {
    const body = line.replace(/^[\s*>-]*(\[ \]\s*)?/, '');
    if (MARKER.test(body)) return !CODE.test(file) || /^\s*\*/.test(line);
    for (const { 0: leader, index } of line.matchAll(
      /(^|[\s;,{}()])(\/\/+|\/\*+|#+|--+|<!--)\s*(\[ \]\s*)?/g,
    )) {
      const isQuoted = (line.slice(0, index).match(/['"`]/g) ?? []).length % 2 === 1;
      if (isQuoted || (CODE.test(file) && !leader.includes('/'))) continue;
      if (MARKER.test(line.slice(index + leader.length))) return true;
    }
    return false;
  };
  return text.split('\n').filter(isMarked).length;
}

function findFunctions(text: string): ReadonlyMap<string, number> {
  const found = new Map<string, number>();
  const lines = text.split('\n');
  for (const [index, line] of lines.entries()) {
    const name = /^(?:export )?(?:async )?function\*? ([\w$]+)/.exec(line)?.[1];
    if (name === undefined || / \{.*\}$/.test(line)) continue;
    const length = lines.slice(index).findIndex((below) => below.startsWith('}')) + 1;
    if (length > 0) found.set(`${name}:${index + 1}`, length);
  }
  return found;
}

function listFiles(folder: string): readonly string[] {
  return readdirSync(ROOT + folder, { withFileTypes: true }).flatMap((entry) => {
    if (entry.isDirectory()) return IGNORED.test(entry.name) ? [] : listFiles(`${folder}${entry.name}/`);
    return entry.isFile() ? [folder + entry.name] : [];
  });
}

const countRepository = (): readonly Counted[] =>
  listFiles('').flatMap((file): Counted[] => {
    const bytes = readFileSync(ROOT + file);
    if (bytes.includes(0) || bytes.length > 2_097_152) return [];
    const text = bytes.toString();
    const isCode = CODE.test(file);
    return [
      {
        file,
        lines: (text.match(/[^\n]*\n|[^\n]+$/g) ?? []).length,
        exports: isCode ? (BY_HAND[file] ?? countExports(text)) : 0,
        todos: countTodos(file, text),
        functions: isCode ? findFunctions(text) : new Map(),
      },
    ];
  });

const sum = (files: readonly Counted[], of: (file: Counted) => number): number =>
  files.reduce((total, file) => total + of(file), 0);

const folderOf = (file: string): string => (file.includes('/') ? (file.split('/')[0] ?? '') : '.');

function figuresOf(files: readonly Counted[]) {
  return {
    files: files.length,
    lines: sum(files, (file) => file.lines),
    exports: sum(files, (file) => file.exports),
    todos: sum(files, (file) => file.todos),
  };
}

function figuresByFolder(files: readonly Counted[]) {
  const folders = [...new Set(files.map(({ file }) => folderOf(file)))].sort();
  return folders.map((folder) => ({
    folder,
    ...figuresOf(files.filter(({ file }) => folderOf(file) === folder)),
  }));
}

/** Surveys and counts until the tree did not change in between. */
async function surveyRepository(): Promise<{ report: SurveyReport; counted: readonly Counted[] }> {
  await using h = await openTestRuntime();
  await registerSurvey(h.runtime, { root: ROOT });
  for (let attempt = 1; ; attempt += 1) {
    const counted = countRepository();
    const run = await runSurvey({ runtime: h.runtime, timeoutMs: 60_000 });
    expect(run.status).toBe('success');
    const isCalm =
      JSON.stringify(figuresByFolder(counted)) === JSON.stringify(figuresByFolder(countRepository()));
    if (isCalm || attempt === 5) return { report: reportSchema.parse(run.deliverable), counted };
  }
}

test('the survey of this repository agrees with an independent count', { timeout: 120_000 }, async () => {
  const { report, counted } = await surveyRepository();
  const { files, lines, exports, todos, by_folder, by_language, longest_functions, unanswered } = report;
  expect(
    by_folder
      .map(({ functions: _functions, ...row }) => row)
      // Folders that contain only ignored folders are areas too.
      .filter((row) => row.files > 0),
  ).toEqual(figuresByFolder(counted));
  expect({ files, lines, exports, todos }).toEqual(figuresOf(counted));
  expect(by_language.reduce((total, language) => total + language.lines, 0)).toBe(lines);
  expect(unanswered).toEqual([]);
  expect(files).toBeGreaterThan(150);
  expect(exports).toBeGreaterThan(500);

  const shortest = longest_functions.at(-1)?.lines ?? 0;
  const declared = counted.flatMap(({ file, functions }) =>
    [...functions].map(([name, length]) => ({ at: `${file} ${name}`, lines: length })),
  );
  const named = new Map(
    longest_functions.map(({ file, name, line, lines }) => [`${file} ${name}:${line}`, lines]),
  );
  expect(longest_functions).toHaveLength(10);
  expect(declared.filter((found) => found.lines > shortest && named.get(found.at) !== found.lines)).toEqual(
    [],
  );
});
