/**
 * Finds the lines of an assistant's text that are not its own words: code, quotations, and text between tags. In doubt,
 * a line counts as foreign.
 *
 * F1  A code fence ends with its own marks under the same number of `>`, indented no deeper than a code block. A fence
 *     that begins after words on its line also counts.
 * F2  A quotation (`>`) continues without its mark up to a blank line.
 * F3  A code span, a comment and a tag may continue over several lines.
 * F4  A block runs from a tag to the end tag of its name, wherever in their lines these are. Inner blocks of the same
 *     name have their own ends. A tag that begins its line and is never closed makes the rest of the text foreign.
 */

const FENCE = /^((?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(`{3,}(?=[^`]*$)|~{3,})/;
const FENCE_END = /^([ \t>]*)(`{3,}|~{3,})[ \t]*$/;
const QUOTATION = /^ {0,3}>/;
const TAG = /^\s*<([A-Za-z][\w:.-]*)(?:\s[^<>]*)?>/;
/**
 * A code span within its paragraph, a comment, a CDATA section, or a tag: its leading slash, its name, its closing
 * slash.
 */
const TOKEN =
  /(?<!`)(`{1,2})(?!`)(?:(?!\n[ \t]*\n).)*?(?<!`)\1(?!`)|<!--(?:.*?-->|.*)|<!\[CDATA\[(?:.*?\]\]>|.*)|<(\/?)([A-Za-z][\w:.-]*)(?:\s(?:(?!\n[ \t]*\n)[^<>])*?)?(\/?)>/gs;
/** Elements without an end tag. */
const VOID = /^(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)$/i;

const depthOf = (prefix: string): number => prefix.split('>').length - 1;
/** A tab counts as four columns, as wide as the indentation of a code block. */
const widthOf = (prefix: string): number => prefix.replaceAll('\t', '    ').length;

/** The marks of a fence that begins after words on its line. */
function lateFence(line: string): string | undefined {
  const marks = line.match(/`{3,}/g) ?? [];
  const last = marks.at(-1);
  return last !== undefined &&
    marks.length % 2 === 1 &&
    !line.slice(line.lastIndexOf(last) + last.length).includes('`')
    ? last
    : undefined;
}

/**
 * The index of the line that ends the fence which the line `at` opens; the number of lines when no line ends it;
 * undefined when the line opens no fence.
 */
function findFenceEnd(lines: readonly string[], at: number): number | undefined {
  const line = lines[at] ?? '';
  const [, prefix = '', marks = lateFence(line)] = FENCE.exec(line) ?? [];
  if (marks === undefined) return undefined;
  const deepest = Math.max(3, widthOf(prefix));
  for (let end = at + 1; end < lines.length; end += 1) {
    const [, before = '', closing] = FENCE_END.exec(lines[end] ?? '') ?? [];
    if (closing?.startsWith(marks) !== true || depthOf(before) !== depthOf(prefix)) continue;
    if (widthOf(before) <= deepest) return end;
  }
  return lines.length;
}

const isBlank = (line: string | undefined): boolean => line === undefined || line.trim() === '';

function findQuotationEnd(lines: readonly string[], at: number): number | undefined {
  if (!QUOTATION.test(lines[at] ?? '')) return undefined;
  let end = at;
  while (!isBlank(lines[end + 1])) end += 1;
  return end;
}

/** The first and last line of an element: the line that opens it and the line that ends it. */
type Stretch = readonly [first: number, last: number];

/** The elements that run over several lines, in a text without fences and quotations. */
function findStretches(text: string): readonly Stretch[] {
  const found: Stretch[] = [];
  const open: { readonly name: string; readonly line: number; readonly isFirst: boolean }[] = [];
  const counts = new Map<string, number>();
  let line = 0;
  /** True while the line has had no words before `seen`. */
  let isBlankSoFar = true;
  let seen = 0;
  const moveTo = (index: number): number => {
    for (; seen < index; seen += 1) {
      const character = text[seen];
      if (character === '\n') {
        line += 1;
        isBlankSoFar = true;
      } else if (isBlankSoFar) isBlankSoFar = isBlank(character);
    }
    return line;
  };
  for (const { 0: token, 2: slash, 3: tag, 4: endSlash, index } of text.matchAll(TOKEN)) {
    const first = moveTo(index);
    const isFirst = isBlankSoFar;
    const last = moveTo(index + token.length);
    if (last > first) found.push([first, last]);
    if (tag === undefined || endSlash === '/' || VOID.test(tag)) continue;
    const name = tag.toLowerCase();
    const count = counts.get(name) ?? 0;
    if (slash === '') {
      open.push({ name, line: last, isFirst });
      counts.set(name, count + 1);
    } else if (count > 0) {
      // Inner tags that were never closed end here too.
      for (
        let inner = open.pop();
        inner !== undefined;
        inner = inner.name === name ? undefined : open.pop()
      ) {
        counts.set(inner.name, (counts.get(inner.name) ?? 1) - 1);
        found.push([inner.line, first]);
      }
    }
  }
  const rest = open
    .filter(({ isFirst }) => isFirst)
    .map((tag): Stretch => [tag.line, Number.POSITIVE_INFINITY]);
  return [...found, ...rest];
}

/** For each line, whether it is foreign. The line that opens a block is not part of the block. */
export function findForeignLines(lines: readonly string[]): readonly boolean[] {
  /** For each line: the number of stretches that contain it, minus that number for the line before it. */
  const steps = lines.map(() => 0);
  const mark = ([first, last]: Stretch): void => {
    if (first >= last) return;
    for (const [at, by] of [
      [first + 1, 1],
      [last + 1, -1],
    ] as const)
      if (at < steps.length) steps[at] = (steps[at] ?? 0) + by;
  };
  const own = [...lines];
  for (let at = 0; at < lines.length; at += 1) {
    const end = findFenceEnd(lines, at) ?? findQuotationEnd(lines, at);
    if (end === undefined) continue;
    mark([at, end]);
    const isWhole = FENCE.test(lines[at] ?? '') || QUOTATION.test(lines[at] ?? '');
    own.fill('', isWhole ? at : at + 1, end + 1);
    at = end;
  }
  findStretches(own.join('\n')).forEach(mark);
  let depth = 0;
  return steps.map((step) => {
    depth += step;
    return depth > 0;
  });
}

/**
 * True for a line that opens a fence, or a block that it does not close: a command does not continue over such a line.
 */
export function opensForeign(line: string): boolean {
  if (FENCE.test(line)) return true;
  const [tag = '', name] = TAG.exec(line) ?? [];
  return name !== undefined && !VOID.test(name) && !tag.endsWith('/>') && !line.includes(`</${name}>`);
}
