/**
 * Comma commands: `,handoff name=phase-1 summary="Setup done"`. This is only the grammar: the caller decides which
 * names exist.
 */

import type { JsonValue } from '../base/index.js';
import { KernelError, parseRelaxedJson } from '../base/index.js';
import { CommandLexer, type CommandWord } from './words.js';

export interface CommaCommand {
  /** The command as written, without blanks around it. */
  readonly raw: string;
  /** The first word: `handoff`, `tape.reset`. */
  readonly name: string;
  readonly positional: readonly string[];
  /**
   * `key=value` and `--key value` as strings, `--flag` as true, `key={…}` as the object it spells. The last of several
   * equal keys wins.
   */
  readonly named: Readonly<Record<string, JsonValue>>;
}

/** True for a text that begins with a comma. */
export const isCommaCommand = (text: string): boolean => text.trimStart().startsWith(',');

/**
 * Begins to read a command. While the lexer's `open` is not null, the next line also belongs to the command and must be
 * fed with the line end before it.
 */
export function beginCommand(text: string): CommandLexer {
  const lexer = new CommandLexer();
  lexer.feed(text.trimStart().slice(1));
  return lexer;
}

const OPEN = {
  quote: 'a quote is not closed',
  brace: 'a brace is not closed',
  backslash: 'nothing follows the last backslash',
} as const;

interface Arguments {
  readonly positional: string[];
  readonly named: [string, JsonValue][];
}

/** Reads the argument at `at`; returns the index after it. */
function readArgument(
  words: readonly CommandWord[],
  at: number,
  { positional, named }: Arguments,
  refuse: (why: string) => never,
): number {
  const word = words[at];
  if (word === undefined) return at + 1;
  const isFlag = word.text.startsWith('--');
  const text = isFlag ? word.text.slice(2) : word.text;
  const equals = text.indexOf('=');
  const key = equals === -1 ? text : text.slice(0, equals);
  if (!isFlag && equals === -1) {
    if (named.length > 0) refuse(`positional argument '${text}' cannot appear after keyword arguments`);
    positional.push(text);
    return at + 1;
  }
  if (key === '') refuse(`'${word.text}' names no argument`);
  if (word.braces !== null) named.push([key, parseRelaxedJson(word.braces)]);
  else if (equals !== -1) named.push([key, text.slice(equals + 1)]);
  else {
    const next = words[at + 1];
    const hasValue = next !== undefined && !next.text.startsWith('--');
    named.push([key, hasValue ? `${next.text}${next.braces ?? ''}` : true]);
    return hasValue ? at + 2 : at + 1;
  }
  return at + 1;
}

/**
 * Reads a whole text as one command; line ends count as blanks.
 *
 * @throws KernelError `bad_request` for a text that cannot be read as a command.
 */
export function parseCommaCommand(text: string): CommaCommand {
  const raw = text.trim();
  const refuse = (why: string): never => {
    throw new KernelError('bad_request', {
      message: `Command: ${why}.`,
      details: { field: 'command', command: raw.slice(0, 500) },
    });
  };
  if (!isCommaCommand(raw)) return refuse('does not begin with a comma');
  const lexer = beginCommand(raw);
  const { open } = lexer;
  const { words, fault } = lexer.end();
  if (open !== null) return refuse(OPEN[open]);
  if (fault !== null) return refuse(fault);
  const [first, ...rest] = words;
  if (first === undefined || first.text === '') return refuse('a name is missing after the comma');
  if (first.braces !== null) return refuse('begins with an argument, not with a name');
  const found: Arguments = { positional: [], named: [] };
  for (let at = 0; at < rest.length; ) at = readArgument(rest, at, found, refuse);
  return { raw, name: first.text, positional: found.positional, named: Object.fromEntries(found.named) };
}
