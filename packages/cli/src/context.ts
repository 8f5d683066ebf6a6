import { toPlain } from '@boxcar/host/base';
import type { Config } from '@boxcar/host/config';
import { createProcessLog } from '@boxcar/host/log';
import { jsonText } from '@boxcar/kernel/base';
import { type Log, type LogLevel, writeLogLine } from '@boxcar/runtime/log';
import { writeOutput } from './output.js';
import { wrap } from './text/text.js';

const LEAD = 'boxcar: ';

/** What every command works with. */
export interface Context {
  readonly config: Config;
  readonly isJson: boolean;
  /** Fires when the process is asked to stop; its reason is a KernelError when a bug did. A command that listens finishes by itself; others are ended. */
  readonly stop: AbortSignal;
  /** The answer, on stdout: one line of JSON, or text for people, in which no character may move the cursor, ring, recolour or reverse. */
  answer(value: unknown, text: () => string): void;
  /** A remark for people, on stderr; fit for a terminal, as an answer is. */
  note(line: string): void;
  /** The log on stderr, from this level unless the environment says otherwise. */
  log(level: LogLevel): Log;
}

export function createContext(of: {
  readonly config: Config;
  readonly isJson: boolean;
  readonly stop: AbortSignal;
}): Context {
  return {
    ...of,
    answer: (value, text) => {
      writeOutput(`${of.isJson ? jsonText(value) : toPlain(text())}\n`);
    },
    note: (line) => {
      if (of.isJson) return;
      const { isTTY, columns } = process.stderr;
      // A terminal that does not know its size says 0.
      const lines = isTTY ? wrap(line, Math.max((columns || 80) - LEAD.length, 20)) : [toPlain(line)];
      writeLogLine(`${LEAD}${lines.join(`\n${' '.repeat(LEAD.length)}`)}`);
    },
    log: (level) => createProcessLog(of.config.logLevel ?? level, { isJson: of.isJson }),
  };
}

/** Settles when the process is asked to stop. */
export const untilStopped = (stop: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (stop.aborted) resolve();
    else stop.addEventListener('abort', () => resolve(), { once: true });
  });
