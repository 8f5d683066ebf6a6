/** Text for terminals: tables, fields, figures. Text from models or tools must not move the cursor, ring or recolor. */
import { cut, toLine, widthOf } from '@boxcar/host/base';

/** The narrowest terminals in use have 80 columns. */
const WIDTH = 80;

export interface Column {
  readonly title: string;
  readonly align?: 'left' | 'right';
  /** Longer cells are cut. */
  readonly max?: number;
}

/**
 * Aligned columns with a header. A line longer than the width is cut, so the last column gets the remaining room.
 *
 * @param options.indent - Spaces before each line.
 * @param options.keepSpace - The cells are complete lines whose spaces must be kept.
 */
export function formatTable(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  options: { readonly indent?: number; readonly width?: number; readonly keepSpace?: boolean } = {},
): string {
  const indent = ' '.repeat(options.indent ?? 0);
  const lines = [
    columns.map((column) => column.title),
    ...rows.map((row) =>
      row.map((cell, index) =>
        cut(options.keepSpace === true ? cell : toLine(cell), columns[index]?.max ?? Infinity),
      ),
    ),
  ];
  const widths = columns.map((_column, index) =>
    Math.max(...lines.map((line) => widthOf(line[index] ?? ''))),
  );
  return lines
    .map((line) => {
      const cells = line.map((cell, index) => {
        const padding = ' '.repeat(Math.max((widths[index] ?? 0) - widthOf(cell), 0));
        return columns[index]?.align === 'right' ? padding + cell : cell + padding;
      });
      return cut((indent + cells.join('  ')).trimEnd(), options.width ?? WIDTH);
    })
    .join('\n');
}

/** Lines of at most `width` characters; a longer word is broken. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of toLine(text).split(' ')) {
    let rest = [...word];
    if (line !== '' && widthOf(line) + 1 + rest.length > width) {
      lines.push(line);
      line = '';
    }
    let from = 0;
    for (; rest.length - from > width; from += width) lines.push(rest.slice(from, from + width).join(''));
    if (from > 0) rest = rest.slice(from);
    line = line === '' ? rest.join('') : `${line} ${rest.join('')}`;
  }
  return [...lines, line];
}

/** `name  value` lines, the values aligned and wrapped. */
export function formatFields(fields: readonly (readonly [string, string])[]): string {
  const indent = Math.max(...fields.map(([name]) => name.length)) + 2;
  return fields
    .flatMap(([name, value]) =>
      wrap(value, WIDTH - indent).map((line, index) => (index === 0 ? name : '').padEnd(indent) + line),
    )
    .map((line) => line.trimEnd())
    .join('\n');
}

export function formatDuration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${seconds % 60} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A duration in at most six columns: `820ms`, `2.3s`, `14m`, `3h`, `12d`. */
export function formatShortDuration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)}ms`;
  if (ms < 99_950) return `${(ms / 1_000).toFixed(1)}s`;
  const minutes = Math.round(ms / 60_000);
  if (minutes < 100) return `${minutes}m`;
  const hours = Math.round(ms / 3_600_000);
  return hours < 100 ? `${hours}h` : `${Math.round(ms / 86_400_000)}d`;
}

/** A number in at most five columns: `830`, `1.2k`, `340k`, `5.1M`. */
export function formatShortCount(value: number): string {
  if (value < 1_000) return String(value);
  const [unit, size] = value < 999_500 ? ['k', 1_000] : ['M', 1_000_000];
  const scaled = value / size;
  return `${scaled < 9.95 ? scaled.toFixed(1) : Math.round(scaled)}${unit}`;
}

/** A whole number with thin groups: `12,345`. */
export const formatCount = (value: number): string => value.toLocaleString('en-US');

/** A noun with its number: `1 card`, `2 cards`. */
export const countOf = (value: number, noun: string): string =>
  `${formatCount(value)} ${noun}${value === 1 ? '' : 's'}`;
