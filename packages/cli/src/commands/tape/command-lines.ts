/** Lines as they arrive, those of one command together. */
import { beginCommand, isCommaCommand } from '@boxcar/kernel';

/** An indented line that begins with `key=` goes on with the command above it. */
const ARGUMENT_LINE = /^[ \t]+(?:--)?[A-Za-z_][\w.-]*=/;

export const isArgumentLine = (line: string): boolean => ARGUMENT_LINE.test(line);

export interface Arrival {
  /** Lines that arrived together. */
  readonly lines: readonly string[];
  /** The beginning of another came with them. */
  readonly isCut: boolean;
  /** What is open before them was given up. */
  readonly isFresh: boolean;
}

/** The lines of a stream in the pieces in which it brings them. */
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
 * Joins lines to commands: while a quote, brace or backslash is open, and with indented `key=` lines behind one. A command is
 * given as soon as nothing has arrived behind it, so that who waits for its answer gets it.
 *
 * @param options.onOpen - Called when a command needs another line.
 */
export async function* joinCommands(
  arrivals: AsyncIterable<Arrival>,
  options: { readonly onOpen?: () => void } = {},
): AsyncGenerator<string> {
  let held: string | undefined;
  /** What of a held command is still open. */
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
