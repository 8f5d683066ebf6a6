// Runs the tests (arguments go to vitest) and ends with what a person, or a machine, wants to know of them:
// the queue backends that could not be tested, then `N passed, N failed`.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { formatCounts, formatFailures } from './test-counts.mjs';

const USAGE = `Usage: npm test [-- <part of a file's path>... [options of vitest]]

Runs all tests whose servers are at hand, or those of the files named. The last lines name the queue backends that could not
be tested and count what passed and failed.

npm test -- packages/store -t 'a claim'`;
if (process.argv.includes('--help')) {
  console.log(USAGE);
  process.exit(0);
}

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
    ...process.argv.slice(2),
  ],
  { cwd: root, stdio: 'inherit', env: { ...process.env, BOXCAR_TEST_REPORT: reportFile } },
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
