/** The cost of each operation, in counts on a real server: a change that makes an operation more expensive fails here on any machine. */
import { readFileSync } from 'node:fs';
import { createPool } from '@boxcar/store';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { differences, renderTable, sumRows } from '../testing/costs/compare.js';
import { EXPECTED, SAME_ROWS } from '../testing/costs/expected.js';
import { type Cost, Meter } from '../testing/costs/meter.js';
import { FORKS, measureOperations } from '../testing/costs/operations.js';
import { Stage } from '../testing/costs/stage.js';

let meter: Meter;
beforeAll(async () => {
  meter = await Meter.open();
});
afterAll(() => meter[Symbol.asyncDispose]());

describe('the cost meter', () => {
  test('counts rows, flushing commits, and statements that share a round trip', async () => {
    const pool = createPool({ connectionString: meter.url, max: 1 });
    const client = await pool.connect();
    try {
      const add = (...names: string[]) =>
        client.query('insert into boxcar.providers (name) select unnest($1::text[])', [names]);
      const one = await meter.costOf(() => add('one'));
      expect(one).toMatchObject({ statements: 1, roundTrips: 1, commits: 1, rows: { providers: '+1' } });
      expect(one.walBytes).toBeGreaterThan(100);
      expect(await meter.costOf(() => Promise.all([add('two', 'three'), add('four')]))).toMatchObject({
        statements: 2,
        roundTrips: 1,
        commits: 2,
        rows: { providers: '+3' },
      });
      expect(await meter.costOf(() => client.query("select pg_notify('nobody', '')"))).toMatchObject({
        statements: 1,
        commits: 0,
        rows: {},
      });
      await meter.costOf(() => client.query('create table scraps (id int primary key, n int)'));
      await meter.costOf(() => client.query('insert into scraps values (1, 1)'));
      const set = (column: string) => meter.costOf(() => client.query(`update scraps set ${column} = 2`));
      expect(await set('n')).toMatchObject({ coldUpdates: {} });
      expect(await set('id')).toMatchObject({ coldUpdates: { scraps: 1 } });
      expect(await meter.costOf(() => client.query('select 1'))).toMatchObject({ walBytes: 0, commits: 0 });
      const change =
        "with gone as (delete from boxcar.providers where name = 'one') update boxcar.providers set failures = 1 where name <> 'one'";
      expect(await meter.costOf(() => client.query(change))).toMatchObject({ rows: { providers: '~3 -1' } });
    } finally {
      client.release();
      await pool.end();
    }
  });
});

describe('a measured operation', () => {
  let costs: Readonly<Record<string, Cost>>;
  let labels: (name: string) => string;
  beforeAll(async () => {
    await using stage = new Stage(meter);
    await measureOperations(stage);
    costs = Object.fromEntries(stage.costs());
    labels = (name) => `${name}: ${stage.labelsOf(name).join(', ')}`;
  });

  test('has the expected costs', () => {
    const { [`fork of ${FORKS[1]}`]: _larger, ...found } = costs;
    const lines = differences(found, EXPECTED);
    const changed = [...new Set(lines.map((line) => line.split(': ')[0] ?? ''))];
    if (lines.length > 0)
      throw new Error(
        [
          'Operations cost other than expected.ts says:',
          ...lines,
          'Their statements:',
          ...changed.map(labels),
          'If it is meant, the table is now:',
          renderTable(found, EXPECTED),
        ].join('\n'),
      );
  });

  test('takes the same statements for a fork of any size, and rows in proportion to its children', () => {
    const [small, large] = FORKS.map((children) => costs[`fork of ${children}`]);
    expect(large).toMatchObject({ statements: small?.statements, commits: small?.commits });
    expect(large?.rows.turns).toBe(small?.rows.turns?.replace(`+${FORKS[0]}`, `+${FORKS[1]}`));
  });
});

describe('docs/reference/rows.md', () => {
  const page = readFileSync(new URL('../../../../docs/reference/rows.md', import.meta.url), 'utf8');
  const told = [...page.matchAll(/^\| ([\w ]+) \| `(\w+)` \| ([+~\d -]+) \| \S/gm)].map(
    ([, operation, table, change]) => `${operation} | ${table} | ${change}`,
  );

  test('gives a reason for each row that an operation writes', () => {
    const written = Object.entries(EXPECTED)
      .filter(([name]) => !(name in SAME_ROWS))
      .flatMap(([name, { rows }]) =>
        Object.entries(rows).map(([table, change]) => `${name} | ${table} | ${change}`),
      );
    expect([...told].sort()).toEqual(written.sort());
  });

  test.each(Object.entries(SAME_ROWS))('can leave out %s, which writes the rows of %j', (name, parts) => {
    expect(EXPECTED[name]?.rows).toEqual(sumRows(parts.map((part) => EXPECTED[part]?.rows ?? {})));
  });
});
