import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { CASES, labelOf } from './catalogue.js';
import { hasBlock, parseBlock, replaceBlock } from './readme.js';
import { formatTable, goalOf, judge, skip } from './report.js';

const EMPTY = 'a\n<!-- bench:begin -->\n<!-- bench:end -->\nb\n';
const machine = 'Some CPU, 2 cores, 8 GiB; node 20.19.0; postgres 18.4 (embedded, fsync on); redis 7.0';

describe('the block of a page', () => {
  it('states its source, and includes judged, unjudged and skipped cases', () => {
    const cases = CASES.flatMap((spec, index) => [
      judge(spec, {
        value: (index + 1) * 7.123,
        floor: index % 3 === 0 ? 0 : 5.5,
        least: index % 2 === 0 ? 4.5 : undefined,
      }),
      skip(spec, 'no redis-server on the PATH'),
    ]);
    const table = { machine, date: '2025-02-28', cases };
    const text = replaceBlock(EMPTY, table);
    expect(parseBlock(text)).toEqual(table);
    expect(text.startsWith('a\n')).toBe(true);
    expect(text.endsWith('\nb\n')).toBe(true);
    // Written a second time, the block is still there once, and unchanged.
    expect(replaceBlock(text, table)).toBe(text);
  });

  it('is refused when it is missing or was changed', () => {
    const good = replaceBlock(EMPTY, {
      machine,
      date: '2025-02-28',
      cases: CASES.slice(0, 2).map((spec) => judge(spec, { value: 1, floor: 2 })),
    });
    expect(hasBlock('<!-- bench:end --><!-- bench:begin -->')).toBe(false);
    expect(() => parseBlock('nothing')).toThrow('markers');
    expect(() => replaceBlock('nothing', { machine, date: '2025-02-28', cases: [] })).toThrow('markers');
    expect(() => parseBlock(EMPTY)).toThrow('measured on');
    expect(() => parseBlock(good.replace('| ratio |', '| quotient |'))).toThrow('header');
    expect(() => parseBlock(good.replace('turns/s', 'furlongs'))).toThrow('no row');
    expect(() => parseBlock(good.replace('| 0.5 |', '| half |'))).toThrow('no number');
    expect(() => parseBlock(good.replace('| turns |', '| warp |'))).toThrow('no row');
  });

  it('of this repository was written by the bench, and has every case with its goal', () => {
    const readme = readFileSync(new URL('../../docs/reference/benchmarks.md', import.meta.url), 'utf8');
    const table = parseBlock(readme);
    expect(table.machine).toMatch(/cores, \d+ GiB; node \d+\.\d+\.\d+; postgres \d+.*; redis \d+/);
    expect(
      table.cases.map(({ suite, case: of, unit, goal, goalRatio }) => ({
        suite,
        case: of,
        unit,
        goal,
        goalRatio,
      })),
    ).toEqual(
      CASES.map((spec) => ({ suite: spec.suite, case: labelOf(spec), unit: spec.unit, ...goalOf(spec) })),
    );
    for (const of of table.cases) expect(of.value, `${of.suite} ${of.case}`).not.toBeNull();
    expect(replaceBlock(readme, table)).toBe(readme);
  });
});

describe('a measured value', () => {
  const specOf = (suite: string, label: string) => {
    const spec = CASES.find((of) => of.suite === suite && labelOf(of) === label);
    if (spec === undefined) throw new Error(`no case ${suite} ${label}`);
    return spec;
  };

  it('is judged by its goal, in its unit or as a ratio: more is better for turns, less is better for everything else', () => {
    const turns = specOf('turns', 'redis');
    expect(judge(turns, { value: 600, floor: 1_200 })).toMatchObject({
      ratio: 0.5,
      goalRatio: 0.5,
      ok: true,
    });
    expect(judge(turns, { value: 599, floor: 1_200 })).toMatchObject({ goal: null, ok: false });
    expect(judge(specOf('turns', 'postgres'), { value: 399, floor: 1 })).toMatchObject({
      goal: 400,
      ok: false,
    });
    const idle = specOf('idle', 'redis p50');
    expect(judge(idle, { value: 9, floor: 5 })).toMatchObject({ ratio: 1.8, ok: true });
    expect(judge(idle, { value: 9.1, floor: 5 })).toMatchObject({ ok: false });
    expect(judge(idle, { value: 1, floor: 0 })).toMatchObject({ ratio: null, ok: null });
    const wal = specOf('turns', 'redis WAL per turn');
    expect(judge(wal, { value: 5, floor: 2 })).toMatchObject({ goal: 5, goalRatio: null, ok: true });
    expect(judge(wal, { value: 5.1, floor: 5 })).toMatchObject({ ok: false });
    expect(judge(specOf('drain', 'redis rate'), { value: 1, floor: 2 })).toMatchObject({ ok: null });
  });

  it('has its smallest floor next to it when there is one', () => {
    const hop = specOf('chain', 'redis hop');
    const withLeast = judge(hop, { value: 6, floor: 3, least: 1.5 });
    expect(withLeast).toMatchObject({ ratio: 2, least: 1.5, leastRatio: 4, ok: false });
    expect(judge(hop, { value: 6, floor: 3 })).toMatchObject({ least: null, leastRatio: null });
    expect(
      formatTable([withLeast])
        .split('\n')
        .map((line) => line.split(/ {2,}/)),
    ).toEqual([
      ['case', 'value', 'floor', 'ratio', 'least', '÷ least', 'goal', 'ok'],
      ['chain redis hop', '6 ms', '3', '2', '1.5', '4', '1.5 ×', 'no'],
    ]);
  });
});
