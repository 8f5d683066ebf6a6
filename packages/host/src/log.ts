import { maskSecrets } from '@boxcar/kernel/base';
import { createLog, type Log, type LogLevel, writeLogLine } from '@boxcar/runtime/log';
import { toLine } from './plain-text.js';

const RANK: Readonly<Record<LogLevel, number>> = { debug: 0, info: 1, warn: 2, error: 3 };
/** While Redis or Postgres is unreachable, the same failure occurs several times a second. */
const REPEAT_MS = 30_000;

function describe(value: unknown): string {
  if (value instanceof Error) return maskSecrets(value.message);
  return maskSecrets(typeof value === 'string' ? value : (JSON.stringify(value) ?? ''));
}

/** Lines for people on stderr: time, level, event, `name=value`. */
function createHumanLog(level: LogLevel): Log {
  return (of, event, fields = {}) => {
    if (RANK[of] < RANK[level]) return;
    const time = new Date().toISOString().slice(11, 23);
    const parts = Object.entries(fields).map(([name, value]) => `${name}=${toLine(describe(value))}`);
    writeLogLine([time, of.padEnd(5), event, ...parts].join(' '));
  };
}

/** Logs a repeated identical warning at most once per interval, with the number of its repetitions. */
function withoutRepeats(log: Log): Log {
  const seen = new Map<string, { at: number; count: number }>();
  return (level, event, fields = {}) => {
    if (level !== 'warn' && level !== 'error') {
      log(level, event, fields);
      return;
    }
    const key = `${event} ${describe(fields.error)}`;
    const last = seen.get(key);
    const now = performance.now();
    if (last !== undefined && now - last.at < REPEAT_MS) {
      last.count++;
      return;
    }
    if (seen.size > 1_000) seen.clear();
    seen.set(key, { at: now, count: 0 });
    log(level, event, last === undefined || last.count === 0 ? fields : { ...fields, repeated: last.count });
  };
}

/** The log of a process: JSON lines for machines, short lines for people. It uses stderr, because stdout is for answers. */
export function createProcessLog(level: LogLevel, options: { readonly isJson: boolean }): Log {
  return withoutRepeats(options.isJson ? createLog(level) : createHumanLog(level));
}
