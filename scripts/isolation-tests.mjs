// Runs the files below with another isolation level as the default of every test database, since a user's server may have such a default.
// The connections do not set a level themselves, as with a transaction pooler.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readScriptArguments } from './script-arguments.mjs';

export const LEVELS = ['serializable', 'repeatable read'];

/** CI runs only the stricter level: it fails wherever repeatable read does, since both read from one snapshot. */
export const STRICTEST = 'serializable';

/** Submission, claim, commit, results, joins, sweeps and erasure. Each level takes at most a minute on two cores. */
export const ISOLATION_TESTS = [
  'packages/testkit/src/isolation.test.ts',
  'packages/store/src/submit/submission.test.ts',
  'packages/store/src/turn/turns.test.ts',
  'packages/store/src/turn/finish-steps.test.ts',
  'packages/store/src/turn/mid-step.test.ts',
  'packages/store/src/turn/tool-calls.test.ts',
  'packages/store/src/turn/batches.test.ts',
  'packages/store/src/work/waits.test.ts',
  'packages/store/src/work/sweep.test.ts',
  'packages/store/src/turn/subtrees.test.ts',
  'packages/store/src/work/workers.test.ts',
  'packages/runtime/src/submit/submit.test.ts',
  'packages/runtime/src/handlers/fork-join.test.ts',
  'packages/runtime/src/handlers/collect.test.ts',
  'packages/runtime/src/end/finish-batch.test.ts',
  'packages/runtime/src/sweep/sweeper.test.ts',
  'packages/runtime/src/scenarios/erase/erasure-races.test.ts',
];

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { positionals } = readScriptArguments(
    `Usage: npm run test:isolation [-- '<level>']

Runs the tests of submission, claim, commit, results, joins, sweeps and erasure with ${LEVELS.join(' and with ')} as the default of
every database, or with the level named.`,
    { maxPositionals: 1 },
  );
  const levels = positionals.length > 0 ? positionals : LEVELS;
  if (!levels.every((level) => LEVELS.includes(level))) {
    console.error(`'${levels.join()}' is not one of: ${LEVELS.join(', ')}; see --help`);
    process.exit(2);
  }
  const script = join(dirname(fileURLToPath(import.meta.url)), 'test.mjs');
  for (const level of levels) {
    console.log(`\n== ${level}`);
    const { status } = spawnSync(process.execPath, [script, ...ISOLATION_TESTS], {
      env: { ...process.env, BOXCAR_TEST_ISOLATION: level },
      stdio: 'inherit',
    });
    if (status !== 0) process.exitCode = 1;
  }
}
