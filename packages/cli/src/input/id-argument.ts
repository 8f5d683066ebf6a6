/** Arguments that name a row by its id. A text that cannot be an id is a usage error, reported without a database query. */
import { InvalidArgumentError } from 'commander';

/** The minimum that the store requires (`findTurnId`). */
const MIN_DIGITS = 8;
const ALL_DIGITS = 32;

/** An id as written: complete, with or without dashes, or a prefix. */
export function readId(text: string): string {
  const digits = text.replaceAll('-', '');
  const isPossible =
    /^[0-9a-f]+$/i.test(digits) && digits.length >= MIN_DIGITS && digits.length <= ALL_DIGITS;
  if (isPossible) return text;
  throw new InvalidArgumentError(
    `It must be an id. Pass the full id or at least its first ${MIN_DIGITS} hex digits.`,
  );
}
