// Runs the tests (arguments are passed to vitest). The last lines of its output are the queue backends that could not be tested, then `N
// passed, N failed`.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { formatCounts, formatFailures } from './test-counts.mjs';

const USAGE = `Usage: npm test [-- <part of a file's path>... [options of vitest]]
       npm run test:long

Runs the tests whose servers are at hand, without the long ones, or those of the files named. The second form runs the long
ones: faults at every statement, programs that are killed, the bench. The last lines name the queue backends that could not be
tested and count what passed and failed.

npm test -- packages/store -t 'a claim'`;
if (process.argv.includes('--help')) {
  console.log(USAGE);
  process.exit(0);
}

/** Whether arguments name files: arguments that do not belong to a preceding option. */
const namesFiles = (args) =>
  args.some(
    (arg, at) =>
      !arg.startsWith('-') && (at === 0 || !args[at - 1].startsWith('-') || args[at - 1].includes('=')),
  );

const isLong = process.argv[2] === '--long';
const args = process.argv.slice(isLong ? 3 : 2);
/** The set of tests that `vitest.config.ts` selects. */
const part = isLong ? 'long' : namesFiles(args) ? 'all' : 'short';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const folder = mkdtempSync(join(tmpdir(), 'boxcar-test-run-'));
const resultsFile = join(folder, 'results.json');
const reportFile = join(folder, 'report.json');

const run = spawnSync(
  process.execPath,
  [
    join(root, 'node_modules', 'vitest', 'vitest.mjs'),
    'run',
    '--reporter=default',
    '--reporter=json',
    `--outputFile.json=${resultsFile}`,
    ...args,
  ],
  {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, BOXCAR_TEST_REPORT: reportFile, BOXCAR_TEST_PART: part },
  },
);
const results = readJson(resultsFile);
const report = readJson(reportFile);
rmSync(folder, { recursive: true, force: true });

const passed = results?.numPassedTests ?? 0;
const skipped = (results?.numPendingTests ?? 0) + (results?.numTodoTests ?? 0);
// A file that cannot be loaded has no tests, and an error outside of all tests has no file.
const broken = (results?.testResults ?? []).filter(
  (file) => file.status === 'failed' && !file.assertionResults.some((test) => test.status === 'failed'),
).length;
let failed = (results?.numFailedTests ?? 0) + broken;
if (failed === 0 && (run.status !== 0 || passed === 0)) {
  console.log(passed === 0 ? 'no test was run' : 'the run itself failed; see above');
  failed = 1;
}

for (const line of formatFailures(results?.testResults ?? [], root)) console.log(line);
for (const backend of report?.skippedBackends ?? []) console.log(`skipped backend: ${backend}`);
console.log(formatCounts({ passed, failed, skipped }));
process.exitCode = failed > 0 ? 1 : 0;

function readJson(file) {
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined;
}
