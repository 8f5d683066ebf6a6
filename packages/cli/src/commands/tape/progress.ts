import { formatCount } from '../../text/text.js';

/** Lines between two remarks on how far it is. */
const REMARK_EVERY = 10_000;

/** Told how many lines there are by now; says so now and then. */
export function progressOf(note: (line: string) => void): (lines: number) => void {
  let said = 0;
  return (lines) => {
    if (lines - said < REMARK_EVERY) return;
    said = lines - (lines % REMARK_EVERY);
    note(`${formatCount(said)} lines`);
  };
}
