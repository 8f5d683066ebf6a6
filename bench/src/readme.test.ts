import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { CASES, labelOf } from './catalogue.js';
import { hasBlock, parseBlock, replaceBlock } from './readme.js';
import { judge, skip } from './report.js';

const EMPTY = 'a\n<!-- bench:begin -->\n<!-- bench:end -->\nb\n';
const machine = 'Some CPU, 2 cores, 8 GiB; node 20.19.0; postgres 18.4 (embedded, fsync on); redis 7.0';

describe('the block in the README', () => {
  it('says what it was written from, judged, unjudged and skipped cases alike', () => {
    const cases = CASES.flatMap((spec, index) => [
      judge(spec, { value: (index + 1) * 7.123, floor: index % 3 === 0 ? 0 : 5.5 }),
      skip(spec, 'no redis-server on the PATH'),
    ]);
    const table = { machine, date: '2025-02-28', cases };
    const text = replaceBlock(EMPTY, table);
    expect(parseBlock(text)).toEqual(table);
    expect(text.startsWith('a\n')).toBe(true);
    expect(text.endsWith('\nb\n')).toBe(true);
    // Written over itself it is one block, and the same.
    expect(replaceBlock(text, table)).toBe(text);
  });

  it('is refused when it is not there, or not what was written', () => {
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
    const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8');
    const table = parseBlock(readme);
    expect(table.machine).toMatch(/cores, \d+ GiB; node \d+\.\d+\.\d+; postgres \d+.*; redis \d+/);
    expect(table.cases.map(({ suite, case: of, unit, goal }) => ({ suite, case: of, unit, goal }))).toEqual(
      CASES.map((spec) => ({ suite: spec.suite, case: labelOf(spec), unit: spec.unit, goal: spec.goal })),
    );
    for (const of of table.cases) expect(of.value, `${of.suite} ${of.case}`).not.toBeNull();
    expect(replaceBlock(readme, table)).toBe(readme);
  });
});

describe('a figure', () => {
  const [turns] = CASES.filter((spec) => spec.suite === 'turns' && spec.queue === 'redis');
  const [idle] = CASES.filter((spec) => spec.suite === 'idle' && spec.goal === 8);
  const [rate] = CASES.filter((spec) => spec.suite === 'drain' && spec.goal === null);

  it('of turns must reach its goal and its share of the floor; of anything else, less is better', () => {
    if (turns === undefined || idle === undefined || rate === undefined) throw new Error('no such cases');
    expect(judge(turns, { value: 900, floor: 1_200 })).toMatchObject({ ratio: 0.75, ok: true });
    expect(judge(turns, { value: 900, floor: 1_300 })).toMatchObject({ ratio: 0.692, ok: false });
    expect(judge(turns, { value: 899, floor: 900 })).toMatchObject({ ok: false });
    expect(judge(idle, { value: 8, floor: 2 })).toMatchObject({ ratio: 4, ok: true });
    expect(judge(idle, { value: 8.01, floor: 8 })).toMatchObject({ ok: false });
    expect(judge(rate, { value: 1, floor: 2 })).toMatchObject({ ok: null });
    expect(judge(idle, { value: 1, floor: 0 })).toMatchObject({ ratio: null, ok: true });
  });
});
