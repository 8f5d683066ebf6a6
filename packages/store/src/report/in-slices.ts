/** Processes large results in slices, so that the process can do other work in between. */
import { setImmediate } from 'node:timers/promises';

/** The number of rows in a slice, which takes about a millisecond. */
const ROWS_AT_ONCE = 250;

export async function forEachInSlices<R>(rows: readonly R[], work: (row: R) => void): Promise<void> {
  for (const [index, row] of rows.entries()) {
    if (index > 0 && index % ROWS_AT_ONCE === 0) await setImmediate();
    work(row);
  }
}
