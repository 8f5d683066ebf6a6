/** Arguments that name a row by its id: one that cannot be an id is wrong usage, before the database is asked. */
import { InvalidArgumentError } from 'commander';

/** The same digits as the store asks for (`findTurnId`). */
const MIN_DIGITS = 8;
const ALL_DIGITS = 32;

/** An id as it was written: whole, with or without dashes, or the beginning of one. */
export function readId(text: string): string {
  const digits = text.replaceAll('-', '');
  const isPossible =
    /^[0-9a-f]+$/i.test(digits) && digits.length >= MIN_DIGITS && digits.length <= ALL_DIGITS;
  if (isPossible) return text;
  throw new InvalidArgumentError(
    `It must be an id, or the beginning of one (${MIN_DIGITS} hex digits at least).`,
  );
}
