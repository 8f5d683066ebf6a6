/** Comma commands: `,handoff name=phase-1 summary="Setup done"`. Grammar only: which names exist is the caller's business. */
import type { JsonValue } from './json.js';

export interface CommaCommand {
  /** As it was written. */
  readonly raw: string;
  /** The first word: `handoff`, `tape.reset`. */
  readonly name: string;
  readonly positional: readonly string[];
  /** `key=value` and `--key value` as strings, `--flag` as true, `key={…}` as the object it spells. */
  readonly named: Readonly<Record<string, JsonValue>>;
}

/** What is left of an assistant's text without its commands, and these as they were written. */
export interface CommandScan {
  readonly visible: string;
  readonly commands: readonly string[];
}

/** True for a text that begins with a comma. */
export function isCommaCommand(_text: string): boolean {
  throw new Error('not yet');
}

/** True when a quote or brace is open, or the last line ends in a backslash: another line belongs to it. */
export function isCommandOpen(_text: string): boolean {
  throw new Error('not yet');
}

/** @throws KernelError `bad_request` for what cannot be read as a command. */
export function parseCommaCommand(_text: string): CommaCommand {
  throw new Error('not yet');
}

/** The command lines of an assistant's text; none inside code and quotations. */
export function scanCommands(_text: string): CommandScan {
  throw new Error('not yet');
}

/** JSON in which keys and single words need no quotes, quotes may be single, and a comma may follow the last member. */
export function parseRelaxedJson(_text: string): JsonValue {
  throw new Error('not yet');
}
