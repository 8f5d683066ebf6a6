/** Splits a stream into lines, and joins the lines of one command. */
import { beginCommand, isCommaCommand } from '@boxcar/kernel';

/** An indented line that begins with `key=` continues the command above it. */
const ARGUMENT_LINE = /^[ \t]+(?:--)?[A-Za-z_][\w.-]*=/;

export const isArgumentLine = (line: string): boolean => ARGUMENT_LINE.test(line);

export interface Arrival {
  /** Lines that arrived together. */
  readonly lines: readonly string[];
  /** The beginning of another line arrived with them. */
  readonly isCut: boolean;
  /** A command that was open before these lines was given up. */
  readonly isFresh: boolean;
}

/** The lines of a stream, grouped by the chunks in which they arrive. */
export async function* splitLines(input: AsyncIterable<string | Uint8Array>): AsyncGenerator<Arrival> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of input) {
    rest += typeof chunk === 'string' ? chunk : decoder.decode(chunk, { stream: true });
    const lines = rest.split(/\r?\n/);
    rest = lines.pop() ?? '';
    if (lines.length > 0) yield { lines, isCut: rest !== '', isFresh: false };
  }
  rest += decoder.decode();
  if (rest !== '') yield { lines: [rest], isCut: false, isFresh: false };
}

/**
 * Joins lines to commands: while a quote, brace or backslash is open, and with indented `key=` lines that follow a command. A command is
 * yielded as soon as no further input has arrived after it, so that a caller that waits for its answer gets the answer.
 *
 * @param options.onOpen - Called when a command needs another line.
 */
export async function* joinCommands(
  arrivals: AsyncIterable<Arrival>,
  options: { readonly onOpen?: () => void } = {},
): AsyncGenerator<string> {
  let held: string | undefined;
  /** The open quotes, braces and backslashes of the held command. */
  let lexer: ReturnType<typeof beginCommand> | undefined;
  const isOpen = (): boolean => lexer !== undefined && lexer.open !== null;
  for await (const { lines, isCut, isFresh } of arrivals) {
    if (isFresh) held = undefined;
    for (const line of lines) {
      if (held !== undefined && (isOpen() || (lexer !== undefined && isArgumentLine(line)))) {
        held += `\n${line}`;
        lexer?.feed(`\n${line}`);
        continue;
      }
      if (held !== undefined) yield held;
      held = line;
      lexer = isCommaCommand(line) ? beginCommand(line) : undefined;
    }
    if (held === undefined || isCut) continue;
    if (isOpen()) options.onOpen?.();
    else {
      yield held;
      held = undefined;
    }
  }
  if (held !== undefined) yield held;
}
