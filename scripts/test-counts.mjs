// The line a test run ends with, written and read in one place: `12 passed, 0 failed`, and `, 1 skipped` where tests were
// skipped.

export const formatCounts = ({ passed, failed, skipped }) =>
  `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`;

const LINE = /^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$/;

/**
 * The counts of a run by its last line. A run that ended without such a line, or badly with nothing failed, counts as one
 * failure: what has not said that it passed has not passed.
 */
export function readCounts(output, exitCode) {
  const found = LINE.exec(output.trimEnd().split('\n').at(-1)?.trim() ?? '');
  if (found === null) return { passed: 0, failed: 1, skipped: 0 };
  const [passed, failed, skipped] = found.slice(1).map((digits) => Number(digits ?? 0));
  return { passed, failed: exitCode === 0 ? failed : Math.max(failed, 1), skipped };
}

export const addCounts = (runs) =>
  runs.reduce(
    (sum, run) => ({
      passed: sum.passed + run.passed,
      failed: sum.failed + run.failed,
      skipped: sum.skipped + run.skipped,
    }),
    { passed: 0, failed: 0, skipped: 0 },
  );
