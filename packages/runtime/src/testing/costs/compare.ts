/** Finds differences between measured and expected costs, and prints a new table. */
import type { Cost, Rows } from './meter.js';

type Costs = Readonly<Record<string, Cost>>;

/** The margin above the measured value, because pages split at different moments. */
const WAL_MARGIN = 1.15;
const WAL_UNIT = 50;
const SIGNS = ['+', '~', '-'] as const;

/** One line for each difference. For bytes of the log, only an increase is a difference. */
export function differences(found: Costs, expected: Costs): readonly string[] {
  const names = new Set([...Object.keys(expected), ...Object.keys(found)]);
  return [...names].flatMap((name) => {
    const [cost, wanted] = [found[name], expected[name]];
    if (cost === undefined) return [`${name}: expected, but not measured`];
    if (wanted === undefined) return [`${name}: measured, but not expected`];
    return differencesOf(cost, wanted).map((line) => `${name}: ${line}`);
  });
}

function differencesOf(cost: Cost, wanted: Cost): readonly string[] {
  const counts = (['statements', 'roundTrips', 'commits'] as const).flatMap((count) =>
    cost[count] === wanted[count] ? [] : [`${count} ${cost[count]}, expected ${wanted[count]}`],
  );
  const wal =
    cost.walBytes <= wanted.walBytes ? [] : [`walBytes ${cost.walBytes}, at most ${wanted.walBytes}`];
  const tables = new Set([...Object.keys(cost.rows), ...Object.keys(wanted.rows)]);
  const rows = [...tables].flatMap((table) =>
    cost.rows[table] === wanted.rows[table]
      ? []
      : [`rows of ${table} ${cost.rows[table] ?? 'none'}, expected ${wanted.rows[table] ?? 'none'}`],
  );
  const updated = new Set([...Object.keys(cost.coldUpdates), ...Object.keys(wanted.coldUpdates)]);
  const cold = [...updated].flatMap((table) => {
    const [is, was] = [cost.coldUpdates[table] ?? 0, wanted.coldUpdates[table] ?? 0];
    return is === was ? [] : [`cold updates of ${table} ${is}, expected ${was}`];
  });
  return [...counts, ...wal, ...rows, ...cold];
}

/** Renders the table of `expected.ts`, in its order. Existing bounds of the log stay if they still fit. */
export function renderTable(found: Costs, expected: Costs): string {
  const names = [...new Set([...Object.keys(expected), ...Object.keys(found)])];
  const lines = names.flatMap((name) => {
    const cost = found[name];
    if (cost === undefined) return [];
    const rows = Object.entries(cost.rows).map(([table, change]) => `${table}: '${change}'`);
    const cold = Object.entries(cost.coldUpdates).map(([table, updates]) => `${table}: ${updates}`);
    const key = /^\w+$/.test(name) ? name : `'${name}'`;
    return [
      `  ${key}: {`,
      `    statements: ${cost.statements},`,
      `    roundTrips: ${cost.roundTrips},`,
      `    commits: ${cost.commits},`,
      `    walBytes: ${boundOf(cost.walBytes, expected[name]?.walBytes)},`,
      `    rows: { ${rows.join(', ')} },`,
      `    coldUpdates: {${cold.length === 0 ? '' : ` ${cold.join(', ')} `}},`,
      '  },',
    ].join('\n');
  });
  return `{\n${lines.join('\n')}\n};`;
}

function boundOf(walBytes: number, old = 0): number {
  const bound = Math.ceil((walBytes * WAL_MARGIN) / WAL_UNIT) * WAL_UNIT;
  // A bound that is slightly high may stay. A bound that is far too high after an improvement would detect nothing.
  return old >= walBytes && old <= bound * WAL_MARGIN ? old : bound;
}

/** The sum of the rows of several operations. */
export function sumRows(all: readonly Rows[]): Rows {
  const sums = new Map<string, Map<string, number>>();
  for (const [table, change] of all.flatMap((rows) => Object.entries(rows))) {
    const sum = sums.get(table) ?? new Map<string, number>();
    for (const part of change.split(' '))
      sum.set(part.charAt(0), (sum.get(part.charAt(0)) ?? 0) + Number(part.slice(1)));
    sums.set(table, sum);
  }
  return Object.fromEntries(
    [...sums].map(([table, sum]) => [
      table,
      SIGNS.flatMap((sign) => (sum.has(sign) ? [`${sign}${sum.get(sign)}`] : [])).join(' '),
    ]),
  );
}
