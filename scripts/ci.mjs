// The checks that `.ci/run` runs after the system has everything that the tests need. First the static checks and every test on this Node
// with the embedded Postgres (18). Then every test again at the other end of the supported versions, the newest Node line with the oldest
// Postgres, and some tests with the strictest isolation level as the default. One second run covers both versions, since no code depends
// on a pair of them. The last line is the sum of all runs.
import { spawn, spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startDebianPostgres } from './debian-postgres.mjs';
import { ISOLATION_TESTS, STRICTEST } from './isolation-tests.mjs';
import { readScriptArguments } from './script-arguments.mjs';
import { addCounts, findFailures, formatCounts, readCounts } from './test-counts.mjs';

const NODE = 24;
const POSTGRES = 15;
readScriptArguments(`Usage: .ci/run

Runs the static checks, then all tests here, the long ones too, then those that a version may change on Node ${NODE} and Debian's
Postgres ${POSTGRES}, then some with ${STRICTEST} as the default of their databases.`);

const root = dirname(dirname(fileURLToPath(import.meta.url)));
// The machine's servers must not replace the servers that this run tests.
const { TEST_DATABASE_URL: _database, TEST_REDIS_URL: _redis, ...inherited } = process.env;
// The built files are also published, so the child processes of the tests run them.
const env = { ...inherited, CI: 'true', BOXCAR_REQUIRE_BACKENDS: '1', BOXCAR_TEST_BUILT: '1' };
for (const [signal, number] of Object.entries({ SIGINT: 2, SIGTERM: 15, SIGHUP: 1 }))
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

/** Runs tests and passes their output on. @returns The counts of its last line, and a line for each failed test. */
function runTests(environment, { script = 'test', args = [] } = {}) {
  return new Promise((settle, fail) => {
    const child = spawn('npm', ['run', script, '--', ...args], {
      cwd: root,
      env: environment,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let end = '';
    child.stdout.setEncoding('utf8').on('data', (text) => {
      process.stdout.write(text);
      end = (end + text).slice(-20_000);
    });
    child.once('error', fail);
    child.once('close', (code) => settle({ ...readCounts(end, code), failures: findFailures(end) }));
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

// Tests that do not depend on a version, in addition to the long ones: they compute, measure, race, wait for times and silent servers, or
// start their own Postgres and Redis. The statements of their rooms are run by other tests.
const ONCE = [
  '**/handoff/!(handoffs|cache).test.ts',
  '**/handoff-session/!(request-handoff).test.ts',
  '**/approval/!(gated-calls).test.ts',
  '**/callbacks.test.ts',
  '**/import-tape.test.ts',
  '**/overflow.test.ts',
  '**/turn-prompts.test.ts',
  '**/providers.test.ts',
  '**/prompt.property.test.ts',
  '**/start-boxcar.test.ts',
  '**/close.test.ts',
  '**/clock-skew.test.ts',
  '**/connection-limits.test.ts',
  '**/migrate-load.test.ts',
  '**/page-sizes.test.ts',
  '**/finish-batch.test.ts',
  '**/gate-simulation.test.ts',
  '**/view-prompts.property.test.ts',
  '**/commit-proof.test.ts',
  '**/handler-connections.test.ts',
  '**/peer-watch.test.ts',
  '**/erasure-races.test.ts',
  '**/lost-answers.test.ts',
  '**/{replica,read-replica}.test.ts',
  '**/accounts.test.ts',
  '**/selector-turns.test.ts',
  '**/invariant-work.test.ts',
  '**/failures.test.ts',
  '**/user-schema.test.ts',
  '**/packing/budget.test.ts',
  '**/proxies.test.ts',
  'scripts/snippets.test.ts',
  'scripts/scripts.test.ts',
  '**/closing.test.ts',
  '**/sweeper.test.ts',
  '**/fork-join.test.ts',
  '**/model/waits.test.ts',
  '**/redis-cluster.test.ts',
  'packages/runtime/src/{explain,testing,tool}/**',
  'packages/a2a/**',
  'packages/adapters/**',
  'packages/cli/**',
  'packages/llm/**',
  'packages/mcp/**',
  'packages/mcp-client/**',
  'packages/policy/**',
  'examples/**',
];

async function runOnOtherVersions() {
  // Without CI the property tests, which test pure functions, run a tenth of their cases: the first run has covered the rest.
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
        // Each test file is a separate process, and all compile the same libraries.
        NODE_COMPILE_CACHE: join(root, 'node_modules', '.cache', 'compiled'),
        BOXCAR_REQUIRE_NODE: String(NODE),
        BOXCAR_REQUIRE_POSTGRES: String(POSTGRES),
      },
      { args: ONCE.flatMap((pattern) => ['--exclude', pattern]) },
    );
  } finally {
    postgres.stop();
  }
}

const isBuilt = runScript('bootstrap.mjs') === 0;
const isClean = isBuilt && runScript('verify.mjs', '--static') === 0;
const counts = [];
const failures = [];
for (const [title, run] of [
  [`tests on Node ${process.versions.node} and the embedded Postgres`, () => runTests(env)],
  ['long tests there', () => runTests(env, { script: 'test:long' })],
  [`tests on Node ${NODE} and Postgres ${POSTGRES}`, runOnOtherVersions],
  [
    `tests with ${STRICTEST} as the default`,
    () => runTests({ ...env, BOXCAR_TEST_ISOLATION: STRICTEST }, { args: ISOLATION_TESTS }),
  ],
]) {
  say(title);
  const from = performance.now();
  try {
    const { failures: found, ...counted } = await run();
    counts.push(counted);
    failures.push(...found.map((line) => `${title}: ${line}`));
  } catch (error) {
    console.error(error);
    counts.push({ passed: 0, failed: 1, skipped: 0 });
  }
  say(`${title}: ${Math.round((performance.now() - from) / 1_000)} s`);
}

say(isClean ? 'static checks passed' : 'static checks FAILED, see above');
// The end of the output repeats the failed tests.
for (const line of failures) console.log(line);
const sum = addCounts(counts);
// Set after everything has been written, whatever keeps the process alive.
process.exitCode = isClean && sum.failed === 0 ? 0 : 1;
console.log(formatCounts(sum));
