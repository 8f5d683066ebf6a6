import { toPlain } from '@boxcar/host/base';
import type { Config } from '@boxcar/host/config';
import { createProcessLog } from '@boxcar/host/log';
import { jsonText } from '@boxcar/kernel/base';
import { type Log, type LogLevel, writeLogLine } from '@boxcar/runtime/log';
import { writeOutput } from './output.js';
import { wrap } from './text/text.js';

const LEAD = 'boxcar: ';

/** The environment that every command receives. */
export interface Context {
  readonly config: Config;
  readonly isJson: boolean;
  /**
   * Aborts when the process is asked to stop; the reason is a KernelError when a bug is the cause. A command that listens finishes by
   * itself; other commands are ended.
   */
  readonly stop: AbortSignal;
  /**
   * Writes the answer to stdout: one line of JSON, or text for people, without characters that move the cursor, ring, recolor or reverse.
   */
  answer(value: unknown, text: () => string): void;
  /** Writes a remark for people to stderr, with the same restriction on characters. */
  note(line: string): void;
  /** The log on stderr, with this level unless the environment sets another. */
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
      // A terminal with unknown size reports 0.
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
