import { toLine } from '@boxcar/host/base';

/** The interval between two lines when stderr is not a terminal. */
const LINE_MS = 5_000;

export interface ProgressOutput {
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
  write(text: string): unknown;
}

export interface Progress extends Disposable {
  /** Shows the current work in one line. */
  show(line: string): void;
}

/**
 * Shows the progress of a long command. On a terminal it is one line that is overwritten, and erased at the end; elsewhere it is a line
 * every five seconds. With `isJson` nothing is written.
 */
export function createProgress(options: {
  readonly isJson: boolean;
  readonly output?: ProgressOutput;
  readonly now?: () => number;
}): Progress {
  const { isJson, output = process.stderr, now = () => performance.now() } = options;
  const isTerminal = output.isTTY === true;
  let toldAt = now();
  let isShown = false;
  return {
    show: (text) => {
      if (isJson) return;
      const line = toLine(text);
      if (isTerminal) {
        output.write(`\r\u001b[K${line.slice(0, (output.columns || 80) - 1)}`);
        isShown = true;
      } else if (now() - toldAt >= LINE_MS) {
        output.write(`${line}\n`);
        toldAt = now();
      }
    },
    [Symbol.dispose]: () => {
      if (isShown) output.write('\r\u001b[K');
      isShown = false;
    },
  };
}
