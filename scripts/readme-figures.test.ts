/** The figures in the README are those of the table of benchmarks, rounded. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const read = (path: string): string => readFileSync(join(import.meta.dirname, '..', path), 'utf8');

/** Cells of the rows of all tables of a page. */
const rowsOf = (page: string): readonly (readonly string[])[] =>
  page
    .split('\n')
    .filter((line) => line.startsWith('| '))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );

const README = read('README.md');
const BENCHMARKS = rowsOf(read('docs/reference/benchmarks.md'));

const perSecond = (value: number): string => Math.round(value).toLocaleString('en-US');
const ms = (digits: number) => (value: number) => `${value.toFixed(digits)} ms`;
const seconds = (value: number): string => `${(value / 1_000).toFixed(1)} s`;

test.each([
  ['turns per second, 50 at once, one worker', 'turns', 'redis', perSecond, true],
  ['one turn on an idle system, p50', 'idle', 'redis p50', ms(1), true],
  ['a further step of a turn', 'steps', 'redis without a tool', ms(1), true],
  ['`fork_join` of 1,000 children', 'fanout', 'redis 1000 children', seconds, true],
  [
    'a turn continues after `kill -9` of its worker, with another worker alive, p50',
    'recover',
    'redis p50',
    ms(0),
    false,
  ],
] as const)('the README has the measured figure of: %s', (label, suite, name, form, hasFloor) => {
  const measured = BENCHMARKS.find((cells) => cells[0] === suite && cells[1] === name) ?? [];
  const shown = rowsOf(README).find((cells) => cells[0] === label);
  expect(shown).toEqual([label, form(Number(measured[2])), hasFloor ? form(Number(measured[5])) : '–']);
});

test('the README has the day of the measurement', () => {
  const day = /Measured on (\d{4}-\d\d-\d\d)/.exec(read('docs/reference/benchmarks.md'))?.[1];
  expect(README).toContain(`(2 cores, Redis, ${day})`);
});
