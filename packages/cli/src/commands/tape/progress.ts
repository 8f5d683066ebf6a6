import { formatCount } from '../../text/text.js';

/** The number of lines between two progress notes. */
const REMARK_EVERY = 10_000;

/** Returns a function that takes the current number of lines and writes a note from time to time. */
export function progressOf(note: (line: string) => void): (lines: number) => void {
  let said = 0;
  return (lines) => {
    if (lines - said < REMARK_EVERY) return;
    said = lines - (lines % REMARK_EVERY);
    note(`${formatCount(said)} lines`);
  };
}
