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

const plain = (text: string): string => text.replaceAll('’', "'").replaceAll("\\'", "'").replace(/\s+/g, ' ');

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
const rowsOf = (page: string): readonly string[] =>
  readFileSync(join(root, page), 'utf8')
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

describe.each([
  ['docs/explanation/guarantees.md', 40],
  ['docs/explanation/testing.md', 25],
])('%s', (page, least) => {
  const rows = rowsOf(page);
  it('has its rows', () => expect(rows.length).toBeGreaterThan(least));

  it.each(rows)('points to tests that are there: %s', (cell) => {
    const found = pointers(cell);
    expect(found.length).toBeGreaterThan(0);
    for (const { file, titles } of found) {
      const sources = find(file).map((path) => plain(readFileSync(join(root, path), 'utf8')));
      expect(sources.length, file).toBeGreaterThan(0);
      for (const title of titles)
        expect(
          sources.some((source) => names(source, plain(title))),
          `${file}: ${title}`,
        ).toBe(true);
    }
  });
});
