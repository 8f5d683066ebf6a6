/** Results of many rows are worked through in slices, so that the process does other things in between. */
import { setImmediate } from 'node:timers/promises';

/** Rows that are worked through at once: about a millisecond. */
const ROWS_AT_ONCE = 250;

export async function forEachInSlices<R>(rows: readonly R[], work: (row: R) => void): Promise<void> {
  for (const [index, row] of rows.entries()) {
    if (index > 0 && index % ROWS_AT_ONCE === 0) await setImmediate();
    work(row);
  }
}
