/**
 * Finds the lines of an assistant's text that are commands. In doubt, a line is not a command: a command that is not
 * run stays readable.
 *
 * C1  A command begins a line, indented less than a code block, with a comma directly followed by a name.
 * C2  No command begins in code, in a quotation, or between the tags of a block (`<document>` … `</document>`):
 *     foreign-lines.ts.
 * C3  The next line belongs to the command in three cases: a quote or brace is open, a backslash ends the line, or the
 *     next line is indented and begins with `key=`. No command continues over a blank line, a fence or a tag.
 */

import { findForeignLines, opensForeign } from './foreign-lines.js';
import { CommandLexer } from './words.js';

/** An assistant's text without its commands, and the commands as written. */
export interface CommandScan {
  readonly visible: string;
  readonly commands: readonly string[];
}

const COMMAND = /^ {0,3},[A-Za-z_][\w.-]*(?=\s|$)/;
const NAMED_ARGUMENT = /^[ \t]+(?:--)?[A-Za-z_][\w.-]*=/;
const MAX_COMMAND_LINES = 200;
/**
 * Some commands are never closed, so the lines after them were read for nothing. After this many such characters, a
 * command is only its own line.
 */
const MAX_VAIN = 1_000_000;

/**
 * The index of the line after the command that begins at `at`. `vain`: the characters that were read for a command that
 * is never closed.
 */
function findCommandEnd(
  lines: readonly string[],
  at: number,
  maxLines: number,
): { readonly end: number; readonly vain: number } {
  const lexer = new CommandLexer();
  lexer.feed((lines[at] ?? '').trimStart().slice(1));
  let end = at + 1;
  let read = 0;
  for (; end < at + maxLines; end += 1) {
    const next = lines[end];
    if (next === undefined || next.trim() === '' || opensForeign(next)) break;
    if (lexer.open === null && !NAMED_ARGUMENT.test(next)) break;
    lexer.feed(`\n${next}`);
    read += next.length;
  }
  // A command without an end would take the rest of the text with it, so it is only its own line.
  return lexer.open === null ? { end, vain: 0 } : { end: at + 1, vain: read };
}

/** The commands of an assistant's text; `parseCommaCommand` can read each of them. */
export function scanCommands(text: string): CommandScan {
  const lines = text.split(/\r?\n/);
  const foreign = findForeignLines(lines);
  const commands: string[] = [];
  const visible: string[] = [];
  let vainTotal = 0;
  for (let at = 0; at < lines.length; ) {
    if (foreign[at] !== true && COMMAND.test(lines[at] ?? '')) {
      const maxLines = vainTotal < MAX_VAIN ? MAX_COMMAND_LINES : 1;
      const { end, vain } = findCommandEnd(lines, at, maxLines);
      vainTotal += vain;
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
