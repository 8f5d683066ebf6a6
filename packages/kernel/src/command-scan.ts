/**
 * Which lines of an assistant's text are commands. In doubt a line is none: what is not run stays readable.
 *
 * C1  A command begins a line, indented by less than a code block is, with a comma and a name directly behind it.
 * C2  Nothing in a code fence, a quotation (`>`), or between the tags of a block (`<document>` … `</document>`) is one.
 * C3  The next line belongs to it while a quote or brace is open or a backslash ends the line, and when it is indented and
 *     begins with `key=`. No command goes on over a blank line, a fence or a tag.
 */
import { CommandLexer } from './command-words.js';

/** What is left of an assistant's text without its commands, and these as they were written. */
export interface CommandScan {
  readonly visible: string;
  readonly commands: readonly string[];
}

const COMMAND = /^ {0,3},[A-Za-z_][\w.-]*(?=\s|$)/;
const FENCE = /^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}(?=[^`]*$)|~{3,})/;
const CLOSING_FENCE = /^[ \t>]*(`{3,}|~{3,})[ \t]*$/;
const TAG = /^\s*<([A-Za-z][\w:-]*)(?:\s[^<>]*)?>/;
const QUOTATION = /^ {0,3}>/;
const NAMED_ARGUMENT = /^[ \t]+(?:--)?[A-Za-z_][\w.-]*=/;
/** Elements that have no end. */
const VOID = /^(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)$/i;
const MAX_COMMAND_LINES = 200;

const isBlank = (line: string | undefined): boolean => line === undefined || line.trim() === '';

/** The tag that a line opens and does not close. */
function openedTag(line: string): string | undefined {
  const found = TAG.exec(line);
  const [tag = '', name] = found ?? [];
  if (name === undefined || VOID.test(name) || tag.endsWith('/>')) return undefined;
  return line.includes(`</${name}>`) ? undefined : name;
}

/** The index of the line behind the code, quotation or block that begins at `at`; `at` itself when none does. */
function skipForeign(lines: readonly string[], at: number): number {
  const line = lines[at] ?? '';
  const untilLine = (isLast: (next: string) => boolean): number => {
    let end = at + 1;
    while (end < lines.length && !isLast(lines[end] ?? '')) end += 1;
    return end + 1;
  };
  const fence = FENCE.exec(line)?.[1];
  if (fence !== undefined)
    return untilLine((next) => CLOSING_FENCE.exec(next)?.[1]?.startsWith(fence) ?? false);
  const tag = openedTag(line);
  if (tag !== undefined) return untilLine((next) => next.includes(`</${tag}>`));
  if (!QUOTATION.test(line)) return at;
  // A paragraph of a quotation goes on without its mark, up to a blank line.
  let end = at + 1;
  while (!isBlank(lines[end])) end += 1;
  return end;
}

/** The index of the line behind the command that begins at `at`. */
function findCommandEnd(lines: readonly string[], at: number): number {
  const lexer = new CommandLexer();
  lexer.feed((lines[at] ?? '').trimStart().slice(1));
  let end = at + 1;
  for (; end < at + MAX_COMMAND_LINES; end += 1) {
    const next = lines[end];
    if (next === undefined || isBlank(next) || FENCE.test(next) || openedTag(next) !== undefined) break;
    if (lexer.open === null && !NAMED_ARGUMENT.test(next)) break;
    lexer.feed(`\n${next}`);
  }
  // What is never closed would take the rest of the text with it.
  return lexer.open === null ? end : at + 1;
}

/** The commands of an assistant's text, each to be read by `parseCommaCommand`. */
export function scanCommands(text: string): CommandScan {
  const lines = text.split(/\r?\n/);
  const commands: string[] = [];
  const visible: string[] = [];
  for (let at = 0; at < lines.length; ) {
    const foreignEnd = skipForeign(lines, at);
    if (foreignEnd > at) {
      visible.push(...lines.slice(at, foreignEnd));
      at = foreignEnd;
    } else if (COMMAND.test(lines[at] ?? '')) {
      const end = findCommandEnd(lines, at);
      commands.push(lines.slice(at, end).join('\n').trim());
      at = end;
    } else {
      visible.push(lines[at] ?? '');
      at += 1;
    }
  }
  return commands.length === 0
    ? { visible: text, commands }
    : { visible: visible.join('\n').trim(), commands };
}
