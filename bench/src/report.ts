import { type CaseSpec, labelOf, type SuiteName, type Unit } from './catalogue.js';

/** A measured figure with its floor, as `--json` prints it. */
export interface Case {
  readonly suite: SuiteName;
  readonly case: string;
  readonly value: number | null;
  readonly unit: Unit;
  /** The bare loop, or the plain statements, measured in the same run. */
  readonly floor: number | null;
  /** Value ÷ floor: for rates the reached share of the floor, for other figures the multiple of it. Null when the floor is 0. */
  readonly ratio: number | null;
  /** The figure for the same rows with every useful batching, when it is better than the floor. Null: the floor has no least floor. */
  readonly least: number | null;
  /** Value ÷ least. */
  readonly leastRatio: number | null;
  /** In the row's unit; null when there is no goal, or the goal is a ratio. */
  readonly goal: number | null;
  /** As value ÷ floor. */
  readonly goalRatio: number | null;
  /** Null without a goal, or when no figure was measured. */
  readonly ok: boolean | null;
  /** The reason when no figure was measured. */
  readonly skipped?: string;
}

/** The figures of a suite for one case. */
export interface Figure {
  readonly value: number;
  readonly floor: number;
  /** The least floor, for cases that have one. */
  readonly least?: number | undefined;
}

/** A case that could not be measured on this machine. */
export interface Unmeasured {
  readonly missing: string;
}

const DIGITS: Readonly<Record<Unit, number>> = {
  'turns/s': 1,
  ms: 2,
  KB: 2,
  MiB: 1,
  times: 2,
  'statements/s': 2,
  '% CPU': 2,
  'max ÷ min': 2,
};

const round = (value: number, digits: number): number => Number(value.toFixed(digits));

/** Null when there is no divisor. */
const divide = (value: number, by: number | undefined): number | null =>
  by === undefined || by === 0 ? null : value / by;

const rounded = (value: number | null, digits: number): number | null =>
  value === null ? null : round(value, digits);

/** The two fields of a goal in a line. */
export const goalOf = ({ goal }: Pick<CaseSpec, 'goal'>): Pick<Case, 'goal' | 'goalRatio'> =>
  goal === null || typeof goal === 'number'
    ? { goal, goalRatio: null }
    : { goal: null, goalRatio: goal.ofFloor };

/** Rates of turns must reach their goal; every other figure must not exceed its goal. */
export function judge(spec: CaseSpec, { value, floor, least }: Figure): Case {
  const { suite, unit } = spec;
  const { goal, goalRatio } = goalOf(spec);
  const ratio = divide(value, floor);
  const [reached, wanted] = goal === null ? [ratio, goalRatio] : [value, goal];
  return {
    suite,
    case: labelOf(spec),
    value: round(value, DIGITS[unit]),
    unit,
    floor: round(floor, DIGITS[unit]),
    ratio: rounded(ratio, 3),
    least: rounded(least ?? null, DIGITS[unit]),
    leastRatio: rounded(divide(value, least), 3),
    goal,
    goalRatio,
    ok:
      reached === null || wanted === null ? null : unit === 'turns/s' ? reached >= wanted : reached <= wanted,
  };
}

export const skip = (spec: CaseSpec, why: string): Case => ({
  suite: spec.suite,
  case: labelOf(spec),
  value: null,
  unit: spec.unit,
  floor: null,
  ratio: null,
  least: null,
  leastRatio: null,
  ...goalOf(spec),
  ok: null,
  skipped: why,
});

/** The text of a goal in a table. */
export const goalText = ({ goal, goalRatio }: Pick<Case, 'goal' | 'goalRatio'>): string =>
  goalRatio === null ? String(goal ?? '') : `${goalRatio} ×`;

/** The median; for an even number, the mean of the two middle values. */
export function median(values: readonly number[]): number {
  return (quantile(values, 0.5, Math.floor) + quantile(values, 0.5, Math.ceil)) / 2;
}

/** The value below which a share `of` of the values is. @param pick - Selects the neighbor between two values. */
export function quantile(values: readonly number[], of: number, pick = Math.round): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, pick((sorted.length - 1) * of))] ?? Number.NaN;
}

const COLUMNS = ['case', 'value', 'floor', 'ratio', 'least', '÷ least', 'goal', 'ok'] as const;

/** The cases as a table for people. */
export function formatTable(cases: readonly Case[]): string {
  const rows = cases.map(
    (of): Record<(typeof COLUMNS)[number], string> => ({
      case: `${of.suite} ${of.case}`,
      value: of.value === null ? 'skipped' : `${of.value} ${of.unit}`,
      floor: String(of.floor ?? ''),
      ratio: String(of.ratio ?? ''),
      least: String(of.least ?? ''),
      '÷ least': String(of.leastRatio ?? ''),
      goal: goalText(of),
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
