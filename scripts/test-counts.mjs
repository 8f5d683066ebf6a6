// The last line of a test run, written and parsed in one place: `12 passed, 0 failed`, and `, 1 skipped` when tests were skipped. It
// follows a line for each failed test.
import { relative } from 'node:path';

export const formatCounts = ({ passed, failed, skipped }) =>
  `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`;

const LINE = /^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$/;

/**
 * The counts of a run, from its last line. A run without such a line, or with a bad exit code and no failed test, counts as one failure:
 * only a run that reports success has passed.
 */
export function readCounts(output, exitCode) {
  const found = LINE.exec(output.trimEnd().split('\n').at(-1)?.trim() ?? '');
  if (found === null) return { passed: 0, failed: 1, skipped: 0 };
  const [passed, failed, skipped] = found.slice(1).map((digits) => Number(digits ?? 0));
  return { passed, failed: exitCode === 0 ? failed : Math.max(failed, 1), skipped };
}

const FAILURE = 'failed: ';

/** A line for each failed test of vitest's JSON report: its file, its name, and its error. */
export function formatFailures(files, root) {
  return files
    .filter((file) => file.status === 'failed')
    .flatMap((file) => {
      const path = relative(root, file.name);
      const failed = file.assertionResults.filter((test) => test.status === 'failed');
      if (failed.length === 0) return [formatFailure(path, file.message)];
      return failed.map((test) => formatFailure(`${path} > ${test.fullName}`, test.failureMessages?.[0]));
    });
}

/** The error in one line, without its stack. */
const formatFailure = (what, message) => {
  const said = (message ?? '').split('\n').filter((line) => !/^\s+at /.test(line));
  return `${FAILURE}${what}: ${said.join(' ').replace(/\s+/g, ' ').trim().slice(0, 1_000)}`;
};

/** Finds the lines of `formatFailures` in an output, so that the end of a long run can repeat them. */
export const findFailures = (output) => output.split('\n').filter((line) => line.startsWith(FAILURE));

export const addCounts = (runs) =>
  runs.reduce(
    (sum, run) => ({
      passed: sum.passed + run.passed,
      failed: sum.failed + run.failed,
      skipped: sum.skipped + run.skipped,
    }),
    { passed: 0, failed: 0, skipped: 0 },
  );
