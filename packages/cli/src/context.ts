import { jsonText, KernelError } from '@boxcar/kernel';
import { type Log, type LogLevel, writeLogLine } from '@boxcar/runtime';
import type { Config } from './config.js';
import { createCliLog } from './log.js';
import { wrap } from './text.js';

const LEAD = 'boxcar: ';

/** What every command works with. */
export interface Context {
  readonly config: Config;
  readonly isJson: boolean;
  /** Fires when the process is asked to stop; its reason is a KernelError when a bug did. A command that listens finishes by itself; others are ended. */
  readonly stop: AbortSignal;
  /** The answer, on stdout: one line of JSON, or text for people. */
  answer(value: unknown, text: () => string): void;
  /** A remark for people, on stderr. */
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
      writeOutput(`${of.isJson ? jsonText(value) : text()}\n`);
    },
    note: (line) => {
      if (of.isJson) return;
      const { isTTY, columns } = process.stderr;
      // A terminal that does not know its size says 0.
      const lines = isTTY ? wrap(line, Math.max((columns || 80) - LEAD.length, 20)) : [line];
      writeLogLine(`${LEAD}${lines.join(`\n${' '.repeat(LEAD.length)}`)}`);
    },
    log: (level) => createCliLog(of.config.logLevel ?? level, { isJson: of.isJson }),
  };
}

/** @throws KernelError `output_failed` when stdout is a file that cannot be written; a pipe reports it by its event `error`. */
export function writeOutput(text: string): void {
  try {
    process.stdout.write(text);
  } catch (cause) {
    throw outputFailed(cause);
  }
}

export const outputFailed = (cause: unknown): KernelError =>
  new KernelError('output_failed', {
    message: `stdout cannot be written: ${cause instanceof Error ? cause.message : String(cause)}.`,
    cause,
  });

/** How long a process that met a bug may take to hand back what it holds. */
export const CRASH_GRACE_MS = 5_000;

/** Settles when the process is asked to stop. */
export const untilStopped = (stop: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (stop.aborted) resolve();
    else stop.addEventListener('abort', () => resolve(), { once: true });
  });
