import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const files = readdirSync(join(root, 'packages')).flatMap((pack) =>
  readdirSync(join(root, 'packages', pack, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.test.ts'))
    .map((path) => `packages/${pack}/src/${path}`),
);
const scripts = readdirSync(join(root, 'scripts')).map((name) => `scripts/${name}`);

/**
 * `tape/fork.test.ts` means a file of any package; `cli/errors.test.ts` and `packages/cli/src/errors.test.ts` mean a file of the named
 * package.
 */
const find = (path: string): readonly string[] => {
  if (path.startsWith('scripts/')) return scripts.filter((file) => file === path);
  const name = path.replace(/^packages\/([^/]+)\/src\//, '$1/');
  const pattern = new RegExp(`^${name.replaceAll('.', '\\.').replaceAll('*', '[^/]*')}$`);
  return files.filter((file) => {
    const [, pack, , ...path] = file.split('/');
    const inside = path.join('/');
    const tails = path.map((_, index) => path.slice(index).join('/'));
    return tails.some((tail) => pattern.test(tail)) || pattern.test(`${pack}/${inside}`);
  });
};

const plain = (text: string): string =>
  text
    .replaceAll('’', "'")
    .replace(/\\(['"`])/g, '$1')
    .replace(/\s+/g, ' ');

const sourcesOf = (file: string): readonly string[] =>
  find(file).map((path) => readFileSync(join(root, path), 'utf8'));

const pageOf = (page: string): string => readFileSync(join(root, page), 'utf8');

describe('docs/explanation/guarantees.md', () => {
  const GROUP = / \(all tests of the group\)$/;
  const VALUE = /%[sdifjoOc]|\$\{[^}]*\}|\$[A-Za-z_][\w.]*/g;

  /** The titles of tests and groups of a source. Pages show `…` where a title has a value. */
  const titlesOf = (source: string): ReadonlySet<string> =>
    new Set(
      [...source.matchAll(/\(\s*(['"`])((?:\\.|(?!\1)[^\\])+)\1\s*[,)]/g)].map(([, , title = '']) =>
        plain(title).replace(VALUE, '…').replace(/[:,]$/, ''),
      ),
    );

  /** Whether words are a title, alone or after the titles of its groups. */
  const isTitle = (titles: ReadonlySet<string>, words: string): boolean =>
    titles.has(words) ||
    [...words.matchAll(/[:,]? /g)].some(
      ({ index, 0: { length } }) =>
        titles.has(words.slice(0, index)) && isTitle(titles, words.slice(index + length)),
    );

  const text = pageOf('docs/explanation/guarantees.md');
  const [, ...promises] = text.split(/^### /m);
  const itemsOf = (promise: string): readonly string[] =>
    [...promise.matchAll(/^- .*(?:\n {2}.*)*/gm)].map(([item]) => item.slice(2).replace(/\n\s+/g, ' '));
  const shown = promises.map((promise) => ({
    promise: promise.split('\n', 1)[0] ?? '',
    tests: itemsOf(promise).filter((item) => item.includes('.test.ts')),
  }));

  it('has its promises, in lines of at most 200 characters', () => {
    expect(promises.length).toBeGreaterThan(150);
    expect(text.split('\n').filter((line) => line.length > 200)).toEqual([]);
  });

  it.each(shown)('names tests that exist: $promise', ({ tests }) => {
    expect(tests.length).toBeGreaterThan(0);
    for (const test of tests) {
      const { file = '', title } = /^`(?<file>[^`]+\.test\.ts)`(?:: (?<title>.+))?$/.exec(test)?.groups ?? {};
      const sources = sourcesOf(file);
      expect(sources.length, test).toBeGreaterThan(0);
      if (title === undefined) continue;
      const words = plain(title).replace(GROUP, '');
      expect(
        sources.some((source) => isTitle(titlesOf(source), words)),
        test,
      ).toBe(true);
    }
  });
});

describe('docs/explanation/testing.md', () => {
  /** Whether a title contains these words, alone or after the title of its group. */
  function names(source: string, title: string): boolean {
    if (source.includes(title)) return true;
    const words = title.split(' ');
    return words.some(
      (_, at) =>
        source.includes(`describe('${words.slice(0, at).join(' ')}'`) &&
        source.includes(words.slice(at).join(' ')),
    );
  }

  /** The last cells of the tables of a page that name tests. */
  const rows = pageOf('docs/explanation/testing.md')
    .split('\n')
    .filter((line) => line.startsWith('| '))
    .map((line) => line.split(' | ').at(-1)?.replace(/ \|$/, '') ?? '')
    .filter((cell) => cell.includes('.test.ts'));

  /** The references in a cell: files, and the parts of titles that refer to the preceding file. */
  const pointers = (cell: string): { readonly file: string; readonly titles: readonly string[] }[] =>
    [...cell.matchAll(/`([^`]+\.test\.ts)`(?:: ([^`;]*))?/g)].map(([, file = '', titles = '']) => ({
      file,
      titles: titles
        .split('…')
        .map((part) => part.replace(/^[\s,]+|[\s,]+$/g, ''))
        .filter((part) => part !== ''),
    }));

  it('has its rows', () => expect(rows.length).toBeGreaterThan(25));

  it.each(rows)('names tests that exist: %s', (cell) => {
    const found = pointers(cell);
    expect(found.length).toBeGreaterThan(0);
    for (const { file, titles } of found) {
      const sources = sourcesOf(file).map(plain);
      expect(sources.length, file).toBeGreaterThan(0);
      for (const title of titles)
        expect(
          sources.some((source) => names(source, plain(title))),
          `${file}: ${title}`,
        ).toBe(true);
    }
  });
});
