import { describe, expect, it } from 'vitest';
import { findLongLines, isPage } from './long-lines.mjs';

const long = 'x'.repeat(201);
const linesIn = (...lines: readonly string[]): readonly number[] =>
  findLongLines(lines.join('\n')).map(({ line }) => line);

describe('long lines', () => {
  it('are found in prose and in rows of tables, with their number and length', () => {
    expect(findLongLines(`One.\n${long}\n| ${long} |\n`)).toEqual([
      { line: 2, length: 201 },
      { line: 3, length: 205 },
    ]);
  });

  it('have more than 200 characters, however many bytes these take', () => {
    expect(linesIn('…'.repeat(200), '😀'.repeat(200), '…'.repeat(201))).toEqual([3]);
  });

  it('are allowed in fenced blocks, also inside a list, and found again after the block', () => {
    expect(linesIn('```ts', long, '```', long)).toEqual([4]);
    expect(linesIn('- item', '  ~~~', long, '  ~~~', long)).toEqual([5]);
  });

  it('are allowed until the fence of the block, not a shorter or another one', () => {
    expect(linesIn('````', '```', long, '~~~~', long, '````sh', long, '````', long)).toEqual([9]);
  });

  it.each([
    ['README.md', true],
    ['packages/store/README.md', true],
    ['docs/reference/fixtures.md', true],
    ['examples/repo-survey/fixtures/small-tree/README.md', false],
    ['fixtures/page.md', false],
    ['scripts/long-lines.mjs', false],
  ])('are searched in %s: %s', (path, isSearched) => {
    expect(isPage(path)).toBe(isSearched);
  });
});
