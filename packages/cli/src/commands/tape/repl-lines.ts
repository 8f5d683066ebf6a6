/** The sources of lines for a repl: edited at a terminal, or read from a stream. */
import { createInterface } from 'node:readline';
import { PassThrough, type Readable } from 'node:stream';
import { type Arrival, splitLines } from './command-lines.js';

export type ReplInput = NodeJS.ReadableStream & { readonly isTTY?: boolean | undefined };

export interface ReplLines {
  readonly arrivals: AsyncIterable<Arrival>;
  /** Shows that a line is expected: the first of a command, or a further one. */
  ask(of: 'first' | 'more'): void;
  close(): void;
}

const PROMPTS = { first: '> ', more: '… ' } as const;

/** Ctrl-C discards the typed text, including the lines of an open command; at an empty prompt it ends the repl, as Ctrl-D does. */
function openTerminal(input: ReplInput, interrupt: () => boolean): ReplLines {
  const terminal = createInterface({ input, output: process.stderr, terminal: true });
  const arrivals = new PassThrough({ objectMode: true });
  const bring = (lines: readonly string[], isFresh: boolean): void => {
    const arrival: Arrival = { lines, isCut: false, isFresh };
    arrivals.write(arrival);
  };
  let isClosed = false;
  const ask = (of: 'first' | 'more'): void => {
    if (isClosed) return;
    terminal.setPrompt(PROMPTS[of]);
    terminal.prompt();
  };
  terminal.on('line', (line) => bring([line], false));
  terminal.on('SIGINT', () => {
    if (interrupt()) return;
    if (terminal.getPrompt() === PROMPTS.first && terminal.line === '') return terminal.close();
    terminal.write(null, { ctrl: true, name: 'e' });
    terminal.write(null, { ctrl: true, name: 'u' });
    process.stderr.write('^C\n');
    bring([], true);
    ask('first');
  });
  terminal.on('close', () => {
    isClosed = true;
    arrivals.end();
  });
  return { arrivals, ask, close: () => terminal.close() };
}

/**
 * @param interrupt - Called at Ctrl-C on a terminal, otherwise at a signal to the process: ends the current work; false: there is none.
 */
export function openLines(input: ReplInput, interrupt: () => boolean): ReplLines {
  if (input.isTTY === true) return openTerminal(input, interrupt);
  return {
    arrivals: splitLines(input),
    ask: () => undefined,
    close: () => (input as Partial<Readable>).destroy?.(),
  };
}
