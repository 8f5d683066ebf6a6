import { maskSecrets } from '@boxcar/kernel/base';

/** Structured log lines; the default writes JSON to stderr, so that stdout stays for answers. */
export type LogLevel = 'debug' | 'info' | 'warn' | 'error';
export type Log = (level: LogLevel, event: string, fields?: Readonly<Record<string, unknown>>) => void;

const RANK: Readonly<Record<LogLevel, number>> = { debug: 0, info: 1, warn: 2, error: 3 };

const plain = (value: unknown): unknown =>
  value instanceof Error && !('toJSON' in value) ? { name: value.name, message: value.message } : value;

let isGuarded = false;

/** Writes a line of a log to stderr. When the reader has gone or the disk is full, the line is lost without an error. */
export function writeLogLine(line: string): void {
  if (!isGuarded) {
    isGuarded = true;
    process.stderr.on('error', () => undefined);
  }
  try {
    process.stderr.write(`${line}\n`);
  } catch {
    // Writing to a file throws at once; a pipe fails by the event above.
  }
}

/** Logs JSON lines of at least `level` to stderr. */
export function createLog(level: LogLevel): Log {
  return (of, event, fields = {}) => {
    if (RANK[of] < RANK[level]) return;
    const record = Object.fromEntries(Object.entries(fields).map(([key, value]) => [key, plain(value)]));
    const line = JSON.stringify({ time: new Date().toISOString(), level: of, event, ...record });
    writeLogLine(maskSecrets(line));
  };
}

/** A log that removes secrets from its fields, whichever code writes the lines. */
export const withoutSecrets =
  (log: Log): Log =>
  (level, event, fields) => {
    if (fields === undefined) return log(level, event);
    log(level, event, maskSecrets(fields));
  };

export const silentLog: Log = () => undefined;
