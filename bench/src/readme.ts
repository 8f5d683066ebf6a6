/** The block of docs/reference/benchmarks.md with the table of all suites: written from a run, and read by the tests. */
import { SUITES, UNITS } from './catalogue.js';
import { type Case, goalText } from './report.js';

const BEGIN = '<!-- bench:begin -->';
const END = '<!-- bench:end -->';

export interface Table {
  /** The machine of the measurement, in one line. */
  readonly machine: string;
  /** The day of the run, as YYYY-MM-DD. */
  readonly date: string;
  readonly cases: readonly Case[];
}

export const hasBlock = (text: string): boolean => findBlock(text) !== undefined;

function findBlock(text: string): { readonly from: number; readonly to: number } | undefined {
  const from = text.indexOf(BEGIN);
  const to = text.indexOf(END, from);
  return from < 0 || to < 0 ? undefined : { from, to: to + END.length };
}

/** @throws when the text has no block. */
export function replaceBlock(text: string, table: Table): string {
  const block = findBlock(text);
  if (block === undefined) throw new Error('there is no block between the bench markers');
  return `${text.slice(0, block.from)}${renderBlock(table)}${text.slice(block.to)}`;
}

const HEADER = [
  'suite',
  'case',
  'value',
  'unit',
  'goal',
  'floor',
  'ratio',
  'least',
  '÷ least',
  'ok',
] as const;
const measuredOn = ({ date, machine }: Pick<Table, 'date' | 'machine'>): string =>
  `Measured on ${date}: ${machine}.`;

function renderBlock(table: Table): string {
  return [
    BEGIN,
    '<!-- Written by `npm run bench -- --readme docs/reference/benchmarks.md`; do not edit. -->',
    '',
    measuredOn(table),
    '',
    row(HEADER),
    row(HEADER.map(() => '---')),
    ...table.cases.map((of) => row(cellsOf(of))),
    END,
  ].join('\n');
}

const row = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;

const SKIPPED = 'skipped: ';

const cellsOf = (of: Case): string[] => [
  of.suite,
  of.case,
  of.skipped === undefined ? numberCell(of.value) : `${SKIPPED}${of.skipped.replaceAll('|', '/')}`,
  of.unit,
  goalText(of),
  numberCell(of.floor),
  numberCell(of.ratio),
  numberCell(of.least),
  numberCell(of.leastRatio),
  of.ok === null ? '' : of.ok ? 'yes' : 'no',
];

const numberCell = (value: number | null): string => (value === null ? '' : String(value));

/** Parses a block. @throws when it was not written by `replaceBlock`. */
export function parseBlock(text: string): Table {
  const block = findBlock(text);
  if (block === undefined) throw new Error('there is no block between the bench markers');
  const lines = text.slice(block.from, block.to).split('\n');
  const [, date, machine] =
    lines.map((line) => /^Measured on (\d{4}-\d\d-\d\d): (.+)\.$/.exec(line)).find(Boolean) ?? [];
  if (date === undefined || machine === undefined)
    throw new Error('the block does not say what it was measured on');
  const rows = lines.filter((line) => line.startsWith('|')).map(readRow);
  const [header = []] = rows;
  if (header.join() !== HEADER.join()) throw new Error('the block has another header');
  return { date, machine, cases: rows.slice(2).map(toCase) };
}

const readRow = (line: string): string[] =>
  line
    .split('|')
    .slice(1, -1)
    .map((cell) => cell.trim());

function toCase(cells: readonly string[]): Case {
  const [suiteName, name = '', value = '', unitName, goal = '', floor = '', ratio = '', ...last] = cells;
  const [least = '', leastRatio = '', ok = ''] = last;
  const suite = SUITES.find((known) => known === suiteName);
  const unit = UNITS.find((known) => known === unitName);
  if (cells.length !== HEADER.length || suite === undefined || unit === undefined)
    throw new Error(`no row of a bench: ${row(cells)}`);
  const isSkipped = value.startsWith(SKIPPED);
  return {
    suite,
    case: name,
    value: isSkipped ? null : readNumber(value),
    unit,
    floor: readNumber(floor),
    ratio: readNumber(ratio),
    least: readNumber(least),
    leastRatio: readNumber(leastRatio),
    ...readGoal(goal),
    ok: ok === '' ? null : ok === 'yes',
    ...(isSkipped ? { skipped: value.slice(SKIPPED.length) } : {}),
  };
}

function readGoal(cell: string): Pick<Case, 'goal' | 'goalRatio'> {
  const [, ratio] = /^(\S+) ×$/.exec(cell) ?? [];
  return ratio === undefined
    ? { goal: readNumber(cell), goalRatio: null }
    : { goal: null, goalRatio: readNumber(ratio) };
}

function readNumber(cell: string): number | null {
  if (cell === '') return null;
  const value = Number(cell);
  if (Number.isNaN(value)) throw new Error(`'${cell}' is no number`);
  return value;
}
