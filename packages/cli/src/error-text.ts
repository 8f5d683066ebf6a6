/** Errors in words. An error whose advice points at its details is printed with them. */
import type { ErrorBody } from '@boxcar/kernel/base';
import { cut, toLine } from './text.js';

const MAX_VALUE = 1_000;

const NAMES_DETAILS = /\bdetails\b/;

/** The details that the message points at, as `name: value`. */
export function detailsOf({ message, details }: ErrorBody): readonly string[] {
  if (details === undefined || !NAMES_DETAILS.test(message)) return [];
  return Object.entries(details).map(([name, value]) => {
    const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value));
    return `${toLine(name)}: ${cut(toLine(text), MAX_VALUE)}`;
  });
}

/** `code: message (name: value; …)`, for where an error has one line. */
export function errorLine(error: ErrorBody): string {
  const details = detailsOf(error);
  return `${error.code}: ${error.message}${details.length === 0 ? '' : ` (${details.join('; ')})`}`;
}
