import { describe, expect, it } from 'vitest';
import { findLongSql } from './sql-lines.mjs';

const linesOf = (text: string): readonly number[] => findLongSql('a.ts', text).map(({ line }) => line);
const fill = (text: string, columns: number): string =>
  text.padEnd(columns, ' and a.id = b.id').slice(0, columns);

describe('a line of SQL', () => {
  it('is found by its line and its columns when it has more than 120 columns', () => {
    const text = `const A = \`\n${fill('  select a.id from boxcar.agents a where true', 121)}\n  limit 1\`;`;
    expect(findLongSql('a.ts', text)).toEqual([{ line: 2, columns: 121 }]);
  });

  it('is not found when it has 120 columns', () => {
    const text = `const A = \`\n${fill('  select a.id from boxcar.agents a where true', 120)}\n  limit 1\`;`;
    expect(linesOf(text)).toEqual([]);
  });

  it.each([
    ['a string', `'${fill('select a.id from boxcar.agents a where true', 130)}'`],
    ['a condition', `\`${fill('a.id = b.id', 130)}\``],
    ['a list of columns', `'${'a.id as agent_id, a.name, '.repeat(6)}a.id'`],
    ['a list of typed columns', `'${'id uuid, name text, '.repeat(8)}n int'`],
    ['assignments', `\`${"status = 'expired', error = null, ".repeat(5)}n = 1\``],
    ['a template within a template', `\`\${of(\`${fill('select a.id from boxcar.agents a', 130)}\`)}\``],
  ])('is found in %s', (_kind, literal) => {
    expect(linesOf(`const A =\n  ${literal};`)).toEqual([2]);
  });

  it('is found in a statement whose tables are expressions', () => {
    expect(linesOf(`const A = \`select \${C} from \${T} where \${${'x'.repeat(99)}}\`;`)).toEqual([1]);
  });
});

it.each([
  `'The run has no budget as a whole. Name one of its tasks, from the list that the command shows; ${'x'.repeat(60)}'`,
  `\`Set \${NAME} to a folder that can be written, where the server keeps its data: \${folder}, ${'x'.repeat(60)}\``,
  `'and more than that, from the words of a sentence which is long enough to fill the line, ${'y'.repeat(60)}'`,
])('a long line of prose is not SQL: %#', (literal) => {
  expect(linesOf(`const A =\n  ${literal};`)).toEqual([]);
});
