/** Errors as text. When the advice of an error refers to its details, the details are printed too. */
import { ERROR_CATALOGUE, type ErrorBody, type ErrorCode } from '@boxcar/kernel/base';
import { cut, toLine } from './plain-text.js';

const MAX_VALUE = 1_000;

/** False for codes that this build does not know. */
const namesDetails = (code: string): boolean =>
  Object.hasOwn(ERROR_CATALOGUE, code) && ERROR_CATALOGUE[code as ErrorCode].namesDetails;

/** The details to which the advice of the error's code refers, as `name: value`. */
export function detailsOf({ code, details }: ErrorBody): readonly string[] {
  if (details === undefined || !namesDetails(code)) return [];
  return Object.entries(details).map(([name, value]) => {
    const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value));
    return `${toLine(name)}: ${cut(toLine(text), MAX_VALUE)}`;
  });
}

/** `code: message (name: value; …)`, for places where an error takes one line. */
export function errorLine(error: ErrorBody): string {
  const details = detailsOf(error);
  return `${error.code}: ${error.message}${details.length === 0 ? '' : ` (${details.join('; ')})`}`;
}
