import type { SuiteName } from './options.js';

/** One measured figure beside its floor, as `--json` prints it. */
export interface Case {
  readonly suite: SuiteName;
  readonly case: string;
  readonly value: number | null;
  readonly unit: 'turns/s' | 'ms';
  /** The bare loop, measured in the same run. */
  readonly floor: number | null;
  /** Value ÷ floor: for rates the share of the floor that is reached, for times how many times as long. */
  readonly ratio: number | null;
  readonly goal: number | null;
  /** Null without a goal, or when nothing was measured. */
  readonly ok: boolean | null;
  /** Why nothing was measured. */
  readonly skipped?: string;
}

/** A figure to judge: rates must reach their goal, times must stay below it. */
export interface Figure {
  readonly suite: SuiteName;
  readonly case: string;
  readonly unit: Case['unit'];
  readonly value: number;
  readonly floor: number;
  readonly goal: number | null;
  /** Share of the floor that must be reached as well. */
  readonly minRatio?: number;
}

const round = (value: number, digits: number): number => Number(value.toFixed(digits));

export function judge(figure: Figure): Case {
  const { value, floor, goal, unit, minRatio = 0 } = figure;
  const ratio = value / floor;
  const digits = unit === 'ms' ? 2 : 1;
  return {
    suite: figure.suite,
    case: figure.case,
    value: round(value, digits),
    unit,
    floor: round(floor, digits),
    ratio: round(ratio, 3),
    goal,
    ok: goal === null ? null : unit === 'ms' ? value <= goal : value >= goal && ratio >= minRatio,
  };
}

export const skip = (
  suite: SuiteName,
  of: string,
  options: { readonly unit: Case['unit']; readonly goal: number | null; readonly why: string },
): Case => ({
  suite,
  case: of,
  value: null,
  unit: options.unit,
  floor: null,
  ratio: null,
  goal: options.goal,
  ok: null,
  skipped: options.why,
});

/** The middle value; of an even number the mean of the two in the middle. */
export function median(values: readonly number[]): number {
  return (quantile(values, 0.5, Math.floor) + quantile(values, 0.5, Math.ceil)) / 2;
}

/** The value below which a share `of` of the values lies. @param pick - Which neighbour to take between two values. */
export function quantile(values: readonly number[], of: number, pick = Math.round): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, pick((sorted.length - 1) * of))] ?? Number.NaN;
}

const COLUMNS = ['case', 'value', 'floor', 'ratio', 'goal', 'ok'] as const;

/** The cases as a table for people. */
export function formatTable(cases: readonly Case[]): string {
  const rows = cases.map(
    (of): Record<(typeof COLUMNS)[number], string> => ({
      case: `${of.suite} ${of.case}`,
      value: of.value === null ? 'skipped' : `${of.value} ${of.unit}`,
      floor: String(of.floor ?? ''),
      ratio: String(of.ratio ?? ''),
      goal: String(of.goal ?? ''),
      ok: of.skipped ?? (of.ok === null ? '' : of.ok ? 'yes' : 'no'),
    }),
  );
  const header = Object.fromEntries(COLUMNS.map((column) => [column, column]));
  const widths = COLUMNS.map((column) => Math.max(column.length, ...rows.map((row) => row[column].length)));
  return [header, ...rows]
    .map((row) =>
      COLUMNS.map((column, index) => (row[column] ?? '').padEnd(widths[index] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}
