import { type CaseSpec, labelOf, type SuiteName, type Unit } from './catalogue.js';

/** One measured figure beside its floor, as `--json` prints it. */
export interface Case {
  readonly suite: SuiteName;
  readonly case: string;
  readonly value: number | null;
  readonly unit: Unit;
  /** The bare loop, or the plain statements, measured in the same run. */
  readonly floor: number | null;
  /**
   * Value ÷ floor: for rates the share of the floor that is reached, for the rest how many times as much. Null where the
   * floor is 0.
   */
  readonly ratio: number | null;
  readonly goal: number | null;
  /** Null without a goal, or when nothing was measured. */
  readonly ok: boolean | null;
  /** Why nothing was measured. */
  readonly skipped?: string;
}

/** What a suite measured of one case. */
export interface Figure {
  readonly value: number;
  readonly floor: number;
}

const DIGITS: Readonly<Record<Unit, number>> = {
  'turns/s': 1,
  ms: 2,
  MiB: 1,
  times: 2,
  'statements/s': 2,
  '% CPU': 2,
  'max ÷ min': 2,
};

const round = (value: number, digits: number): number => Number(value.toFixed(digits));

/** Rates of turns must reach their goal; of everything else, less is better. */
export function judge(spec: CaseSpec, { value, floor }: Figure): Case {
  const { suite, unit, goal, minRatio = 0 } = spec;
  const ratio = floor === 0 ? null : value / floor;
  const isReached =
    goal === null
      ? null
      : unit === 'turns/s'
        ? value >= goal && (ratio ?? Number.POSITIVE_INFINITY) >= minRatio
        : value <= goal;
  return {
    suite,
    case: labelOf(spec),
    value: round(value, DIGITS[unit]),
    unit,
    floor: round(floor, DIGITS[unit]),
    ratio: ratio === null ? null : round(ratio, 3),
    goal,
    ok: isReached,
  };
}

export const skip = (spec: CaseSpec, why: string): Case => ({
  suite: spec.suite,
  case: labelOf(spec),
  value: null,
  unit: spec.unit,
  floor: null,
  ratio: null,
  goal: spec.goal,
  ok: null,
  skipped: why,
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
