// What `.ci/run` runs once the system has what the tests need: the static checks, every test on this Node with the embedded
// Postgres (18), and every test again at the other end of what is supported: the newest Node line with the oldest Postgres.
// One second run covers both, since nothing depends on a pair of versions. The last line is the sum of both runs.
import { spawn, spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startDebianPostgres } from './debian-postgres.mjs';
import { readScriptArguments } from './script-arguments.mjs';
import { addCounts, formatCounts, readCounts } from './test-counts.mjs';

const NODE = 24;
const POSTGRES = 15;
readScriptArguments(`Usage: .ci/run

Runs the static checks, then all tests here, then all tests on Node ${NODE} and Debian's Postgres ${POSTGRES}.`);

const root = dirname(dirname(fileURLToPath(import.meta.url)));
// Servers of the machine would take the place of those that this run is about.
const { TEST_DATABASE_URL: _database, TEST_REDIS_URL: _redis, ...inherited } = process.env;
// What was built is also what ships, so it is what the child processes of the tests run.
const env = { ...inherited, CI: 'true', BOXCAR_REQUIRE_BACKENDS: '1', BOXCAR_TEST_BUILT: '1' };
for (const [signal, number] of Object.entries({ SIGINT: 2, SIGTERM: 15 }))
  process.once(signal, () => process.exit(128 + number));

function say(line) {
  console.log(`\n== ${line}`);
}

function runScript(script, ...args) {
  return spawnSync(process.execPath, [join(root, 'scripts', script), ...args], {
    cwd: root,
    env,
    stdio: 'inherit',
  }).status;
}

/** `npm test`, its output passed on. @returns What its last line says. */
function runTests(environment, args = []) {
  return new Promise((settle, fail) => {
    const child = spawn('npm', ['test', '--', ...args], {
      cwd: root,
      env: environment,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let end = '';
    child.stdout.setEncoding('utf8').on('data', (text) => {
      process.stdout.write(text);
      end = (end + text).slice(-1_000);
    });
    child.once('error', fail);
    child.once('close', (code) => settle(readCounts(end, code)));
  });
}

/** The folder of a Node of this major version, which npx installs. */
function findNode(major) {
  const found = spawnSync('npx', ['--yes', `node@${major}`, '-p', 'path.dirname(process.execPath)'], {
    encoding: 'utf8',
    env,
  });
  if (found.status !== 0 || found.stdout.trim() === '')
    throw new Error(`Node ${major} could not be installed: ${found.stderr || found.error?.message}`);
  return found.stdout.trim();
}

// What measures, breaks things on purpose for minutes, or brings a Postgres of its own, and says nothing about a version.
const ONCE = [
  'bench/**',
  '**/soak/**',
  '**/faults/**',
  '**/outage.test.ts',
  '**/recovery.test.ts',
  'packages/embedded/**',
];

async function runOnOtherVersions() {
  // Without CI the property tests, pure functions all of them, take a tenth of their cases: the first run has had the rest.
  // On two cores they were 90 of the 700 s of this run's tests, and both runs together are to stay below 15 minutes.
  const { CI: _ci, ...local } = env;
  // First on the PATH, so that npm, npx and every child process run on it too; the tests check both versions.
  const PATH = `${findNode(NODE)}:${process.env.PATH}`;
  const postgres = await startDebianPostgres(POSTGRES);
  try {
    return await runTests(
      {
        ...local,
        PATH,
        TEST_DATABASE_URL: postgres.url,
        // Each test file is a process of its own, which compiles the same libraries.
        NODE_COMPILE_CACHE: join(root, 'node_modules', '.cache', 'compiled'),
        BOXCAR_REQUIRE_NODE: String(NODE),
        BOXCAR_REQUIRE_POSTGRES: String(POSTGRES),
      },
      ONCE.flatMap((pattern) => ['--exclude', pattern]),
    );
  } finally {
    postgres.stop();
  }
}

const isBuilt = runScript('bootstrap.mjs') === 0;
const isClean = isBuilt && runScript('verify.mjs', '--static') === 0;
const counts = [];
for (const [title, run] of [
  [`tests on Node ${process.versions.node} and the embedded Postgres`, () => runTests(env)],
  [`tests on Node ${NODE} and Postgres ${POSTGRES}`, runOnOtherVersions],
]) {
  say(title);
  try {
    counts.push(await run());
  } catch (error) {
    console.error(error);
    counts.push({ passed: 0, failed: 1, skipped: 0 });
  }
}

say(isClean ? 'static checks passed' : 'static checks FAILED, see above');
const sum = addCounts(counts);
// Given once everything has been written out, whatever keeps the process.
process.exitCode = isClean && sum.failed === 0 ? 0 : 1;
console.log(formatCounts(sum));
