/** Dates of tape entries: reads ISO 8601, and writes texts that can be compared, to the microsecond. */
import { KernelError } from '../base/index.js';

/** Year, month, day; hour, minute, second, fraction; offset. */
const ISO =
  /^(\d{4})-?(\d{2})-?(\d{2})(?:[T ](\d{2})(?::?(\d{2})(?::?(\d{2})(?:[.,](\d+))?)?)?([zZ]|[+-]\d{2}(?::?\d{2})?)?)?$/i;

function offsetMinutes(offset: string | undefined): number {
  if (offset === undefined || offset === 'Z' || offset === 'z') return 0;
  const digits = offset.slice(1).replace(':', '').padEnd(4, '0');
  const minutes = Number(digits.slice(0, 2)) * 60 + Number(digits.slice(2));
  return offset.startsWith('-') ? -minutes : minutes;
}

/**
 * A date or datetime of ISO 8601 as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, which can be compared as text. A date without a time
 * is the first or the last moment of the day. A time without an offset is UTC.
 *
 * @throws KernelError `bad_request`.
 */
export function parseTapeDate(value: string, edge: 'start' | 'end' = 'start'): string {
  const refuse = (): never => {
    throw new KernelError('bad_request', {
      message: `Invalid ISO date or datetime: '${value}'.`,
      details: { value },
    });
  };
  const parts = ISO.exec(value);
  if (parts === null) return refuse();
  const [, year = '', month = '', day = '', hour, minute = '0', second = '0', fraction = '', offset] = parts;
  const isWholeDay = hour === undefined;
  const [hours, minutes, seconds, micros] =
    isWholeDay && edge === 'end'
      ? [23, 59, 59, '999999']
      : [Number(hour ?? 0), Number(minute), Number(second), fraction.slice(0, 6).padEnd(6, '0')];
  const local = new Date(0);
  local.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  const isReal = local.getUTCMonth() === Number(month) - 1 && local.getUTCDate() === Number(day);
  if (!isReal || Number(year) === 0 || hours > 23 || minutes > 59 || seconds > 59) return refuse();
  local.setUTCHours(hours, minutes - offsetMinutes(offset), seconds);
  const text = local.toISOString();
  // Only an offset can lead to a year before 0001 or after 9999.
  if (!/^\d{4}-/.test(text) || text.startsWith('0000')) return refuse();
  return `${text.slice(0, 19)}.${micros}Z`;
}

/** The same moment as Bub writes it: `2026-02-21T12:00:00.123456+00:00`, without a fraction of zero. */
export function pythonDate(value: Date | string): string {
  const text = parseTapeDate(value instanceof Date ? value.toISOString() : value);
  return `${text.replace(/\.000000Z$|Z$/, '')}+00:00`;
}

/** The years 1 to 9999, in seconds since 1970. */
const [FIRST_SECOND, LAST_SECOND] = [-62_135_596_800, 253_402_300_799];

/** Converts the seconds since 1970 of older lines; undefined for a number that is not a date. */
export function secondsToDate(seconds: number): string | undefined {
  if (!(seconds >= FIRST_SECOND && seconds <= LAST_SECOND)) return undefined;
  const micros = Math.round(seconds * 1e6);
  const whole = Math.floor(micros / 1e6);
  const rest = String(micros - whole * 1e6).padStart(6, '0');
  return pythonDate(`${new Date(whole * 1000).toISOString().slice(0, 19)}.${rest}Z`);
}
