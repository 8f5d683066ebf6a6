/**
 * Which lines of an assistant's text are commands. In doubt a line is none: what is not run stays readable.
 *
 * C1  A command begins a line, indented by less than a code block is, with a comma and a name directly behind it.
 * C2  None begins in code, a quotation, or between the tags of a block (`<document>` … `</document>`): foreign-lines.ts.
 * C3  The next line belongs to it while a quote or brace is open or a backslash ends the line, and when it is indented and
 *     begins with `key=`. No command goes on over a blank line, a fence or a tag.
 */
import { CommandLexer } from './command-words.js';
import { findForeignLines, opensForeign } from './foreign-lines.js';

/** What is left of an assistant's text without its commands, and these as they were written. */
export interface CommandScan {
  readonly visible: string;
  readonly commands: readonly string[];
}

const COMMAND = /^ {0,3},[A-Za-z_][\w.-]*(?=\s|$)/;
const NAMED_ARGUMENT = /^[ \t]+(?:--)?[A-Za-z_][\w.-]*=/;
const MAX_COMMAND_LINES = 200;

/** The index of the line behind the command that begins at `at`. */
function findCommandEnd(lines: readonly string[], at: number): number {
  const lexer = new CommandLexer();
  lexer.feed((lines[at] ?? '').trimStart().slice(1));
  let end = at + 1;
  for (; end < at + MAX_COMMAND_LINES; end += 1) {
    const next = lines[end];
    if (next === undefined || next.trim() === '' || opensForeign(next)) break;
    if (lexer.open === null && !NAMED_ARGUMENT.test(next)) break;
    lexer.feed(`\n${next}`);
  }
  // What is never closed would take the rest of the text with it.
  return lexer.open === null ? end : at + 1;
}

/** The commands of an assistant's text, each to be read by `parseCommaCommand`. */
export function scanCommands(text: string): CommandScan {
  const lines = text.split(/\r?\n/);
  const foreign = findForeignLines(lines);
  const commands: string[] = [];
  const visible: string[] = [];
  for (let at = 0; at < lines.length; ) {
    if (foreign[at] !== true && COMMAND.test(lines[at] ?? '')) {
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
