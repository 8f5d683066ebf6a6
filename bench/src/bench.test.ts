import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { queueBackends, spawnNode } from '@boxcar/testkit';
import { afterAll, describe, expect, it } from 'vitest';
import { CASES, labelOf, SUITES } from './catalogue.js';
import { parseOptions, UsageError } from './options.js';
import { parseBlock } from './readme.js';
import { goalOf } from './report.js';

const main = new URL('./main.ts', import.meta.url);
const KEYS = [
  'case',
  'floor',
  'goal',
  'goalRatio',
  'least',
  'leastRatio',
  'ok',
  'ratio',
  'suite',
  'unit',
  'value',
];
/** The suites that have a least floor in some of their cases. */
const WITH_LEAST = ['turns', 'idle', 'chain', 'fanout'];

const folder = mkdtempSync(join(tmpdir(), 'boxcar-bench-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function bench(args: readonly string[], env: Record<string, string> = {}) {
  const child = spawnNode(main, args, env);
  const { code } = await child.exited;
  return { code, stdout: child.stdout, stderr: child.stderr };
}

/** The JSON lines on stdout, which must contain nothing else. */
const casesOf = (stdout: string): Record<string, unknown>[] =>
  stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);

const TINY = ['--concurrency', '4', '--seconds', '0.2', '--rounds', '1', '--samples', '2', '--turns', '8'];

describe('the bench', () => {
  const expectMeasured = (of: Record<string, unknown>): void => {
    expect(Object.keys(of).sort()).toEqual(KEYS);
    expect(of).toMatchObject({ value: expect.any(Number), floor: expect.any(Number) });
    expect(typeof of.ok).toBe(of.goal === null && of.goalRatio === null ? 'object' : 'boolean');
    if (of.least !== null) {
      expect(WITH_LEAST).toContain(of.suite);
      expect(of).toMatchObject({ least: expect.any(Number), leastRatio: expect.any(Number) });
    }
    // An idle worker may send nothing in so short a time, and its memory need not grow; every other figure is above zero.
    if (of.suite !== 'quiet' && of.unit !== 'MiB') expect(of).toMatchObject({ ratio: expect.any(Number) });
  };

  // One queue takes a minute of two cores, and both queues run the same suites: each test run uses another queue.
  const queues = queueBackends();
  const queue = queues[Math.floor(Math.random() * queues.length)] ?? 'postgres';

  async function measureOnRedis(): Promise<void> {
    const { code, stdout, stderr } = await bench(['all', '--queue', 'redis', '--json', ...TINY]);

    expect(code, stderr).toBe(0);
    const specs = CASES.filter((spec) => spec.queue !== 'postgres');
    const found = casesOf(stdout);
    expect(found.map((of) => `${of.suite} ${of.case}`).sort()).toEqual(
      specs.map((spec) => `${spec.suite} ${labelOf(spec)}`).sort(),
    );
    for (const of of found) expectMeasured(of);
    const suitesWithLeast = new Set(found.flatMap((of) => (of.least === null ? [] : [of.suite])));
    expect([...suitesWithLeast].sort()).toEqual([...WITH_LEAST].sort());
  }

  /** Without a server for the other queue, whose cases are listed anyway. */
  async function measureAndWrite(): Promise<void> {
    const readme = join(folder, 'README.md');
    writeFileSync(readme, 'before\n\n<!-- bench:begin -->\nold\n<!-- bench:end -->\n\nafter\n');
    const { code, stdout, stderr } = await bench(['--readme', readme, '--json', ...TINY], { PATH: folder });

    expect(code, stderr).toBe(0);
    const table = parseBlock(readFileSync(readme, 'utf8'));
    const { cases } = table;
    const named = (of: Record<string, unknown>): string => `${of.suite} ${of.case}`;
    const lines = new Map(casesOf(stdout).map((of) => [named(of), of]));
    // Cases are printed in the order of measurement, and listed in the order of the catalogue.
    expect(cases.map((of) => lines.get(named({ ...of })))).toEqual(cases);
    expect(lines.size).toBe(cases.length);
    expect(
      cases.map(({ suite, case: of, unit, goal, goalRatio }) => ({ suite, case: of, unit, goal, goalRatio })),
    ).toEqual(
      CASES.map((spec) => ({ suite: spec.suite, case: labelOf(spec), unit: spec.unit, ...goalOf(spec) })),
    );
    for (const [index, of] of cases.entries()) {
      if (CASES[index]?.queue === 'redis')
        expect(of).toMatchObject({
          value: null,
          floor: null,
          ratio: null,
          least: null,
          leastRatio: null,
          ok: null,
          skipped: expect.stringContaining('redis-server'),
        });
      else expectMeasured({ ...of });
    }
    expect(stderr).toMatch(/cores.*node.*postgres.*redis/);
    for (const suite of SUITES) expect(stderr).toMatch(new RegExp(`\\[\\d+\\.\\d min\\] ${suite}\\b`));

    const text = readFileSync(readme, 'utf8');
    expect(text).toMatch(/^before\n\n<!-- bench:begin -->\n.*<!-- bench:end -->\n\nafter\n$/s);
    expect(stderr).toContain(table.machine);
    expect(table.date).toBe(new Date().toISOString().slice(0, 10));
  }

  it(
    'measures every case of a queue next to a floor of the same run, and writes the table for Postgres',
    {
      timeout: 900_000,
    },
    () => (queue === 'redis' ? measureOnRedis() : measureAndWrite()),
  );

  it('skips the cases of a queue without a server, and gives the reason', async () => {
    const { code, stdout, stderr } = await bench(['turns', 'drain', '--queue', 'redis', '--json'], {
      PATH: folder,
    });

    expect(code, stderr).toBe(0);
    const cases = casesOf(stdout);
    expect(cases.map((of) => `${of.suite} ${of.case}`)).toEqual([
      'turns redis',
      'turns redis CPU per turn',
      'turns redis WAL per turn',
      'drain redis rate',
      'drain redis RSS at the end',
      'drain redis RSS at its peak',
    ]);
    for (const of of cases)
      expect(of).toMatchObject({ value: null, ok: null, skipped: expect.stringContaining('redis-server') });
  });

  it('reports in one line a request that it cannot fulfill, and ends with 2', async () => {
    for (const args of [['warp'], []]) {
      const { code, stdout, stderr } = await bench(args);

      expect(code, args.join(' ')).toBe(2);
      expect(stdout).toBe('');
      expect(stderr.trim().split('\n')).toHaveLength(1);
      expect(stderr).toContain(SUITES.join(', '));
    }
    // The same check, without a separate process for each case.
    for (const args of [
      ['turns', 'warp'],
      ['turns', '--queue', 'kafka'],
      ['turns', '--seconds', '0'],
      ['drain', '--turns', '1.5'],
      ['--readme', 'README.md', 'turns'],
      ['--readme', 'README.md', '--queue', 'redis'],
      ['--warp'],
    ])
      expect(() => parseOptions(args)).toThrow(
        expect.objectContaining({
          constructor: UsageError,
          message: expect.stringMatching(args.includes('warp') ? SUITES.join(', ') : /^[^\n]+$/),
        }),
      );
  });

  it('refuses a file without the markers before it measures anything', async () => {
    const file = join(folder, 'plain.md');
    writeFileSync(file, 'no table here\n');
    const { code, stdout, stderr } = await bench(['--readme', file]);

    expect(code).toBe(1);
    expect(stdout).toBe('');
    expect(stderr).toContain('bench markers');
    expect(readFileSync(file, 'utf8')).toBe('no table here\n');
  });

  it('explains itself', async () => {
    const { code, stdout } = await bench(['--help']);

    expect(code).toBe(0);
    expect(stdout).toContain('usage: npm run bench -- <suite>');
    for (const suite of SUITES) expect(stdout).toMatch(new RegExp(`^ {2}${suite} `, 'm'));
  });
});
