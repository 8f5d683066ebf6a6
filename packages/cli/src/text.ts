/** Text for terminals: nothing that models or tools wrote may move the cursor, ring or recolour. */

/** Terminals of 80 columns are the narrowest anyone uses. */
const WIDTH = 80;

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is to be kept out.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/g;

/** Keeps line breaks and tabs, and shows every other control character as a space. */
export const toPlain = (text: string): string => text.replaceAll('\r\n', '\n').replace(CONTROL, ' ');

/** One line without runs of white space. */
export const toLine = (text: string): string => toPlain(text).replace(/\s+/g, ' ').trim();

/** Cut to `width` characters. */
function cut(text: string, width: number): string {
  const characters = [...text];
  return characters.length <= width ? text : `${characters.slice(0, Math.max(width - 1, 0)).join('')}…`;
}

const widthOf = (text: string): number => [...text].length;

export interface Column {
  readonly title: string;
  readonly align?: 'left' | 'right';
  /** Longer cells are cut. */
  readonly max?: number;
}

/**
 * Aligned columns, titles first. A line longer than the width is cut, so the last column takes what room is left.
 *
 * @param options.indent - Spaces before each line.
 */
export function formatTable(
  columns: readonly Column[],
  rows: readonly (readonly string[])[],
  options: { readonly indent?: number; readonly width?: number } = {},
): string {
  const indent = ' '.repeat(options.indent ?? 0);
  const lines = [
    columns.map((column) => column.title),
    ...rows.map((row) => row.map((cell, index) => cut(toLine(cell), columns[index]?.max ?? Infinity))),
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
    for (; rest.length > width; rest = rest.slice(width)) lines.push(rest.slice(0, width).join(''));
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

/** A whole number with thin groups: `12,345`. */
export const formatCount = (value: number): string => value.toLocaleString('en-US');

/** Noun with its number: `1 card`, `2 cards`. */
export const countOf = (value: number, noun: string): string =>
  `${formatCount(value)} ${noun}${value === 1 ? '' : 's'}`;
