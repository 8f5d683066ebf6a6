// Applies load and random faults to real processes and separate servers, and prints the faults and the guarantees that held.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { closeAll } from '@boxcar/testkit/standalone';
import { openPlace } from '../packages/runtime/src/testing/soak/place.ts';
import { type SoakReport, soak } from '../packages/runtime/src/testing/soak/soak.ts';

const USAGE = `Usage: npm run soak -- [--minutes N] [--turns N] [--seed S] [--queue redis|postgres] [--json]
       npm run soak -- --stops [--queue redis|postgres]
       npm run soak -- --gate [--turns N] [--seed S]
       npm run soak -- --accounts

Runs workers and callers as separate processes against an embedded Postgres and, unless told otherwise, a private
redis-server, submits turns of all kinds, and lets random faults strike. Ends with 1 when something did not hold.

  --minutes N   how long faults strike; parts of a minute too (1; with --turns: 60)
  --turns N     faults strike until N turns were accepted, or the minutes have passed
  --seed S      the same seed chooses the same load and faults; printed when it is left out
  --queue Q     where the queues live: redis or postgres (redis)
  --json        one JSON object on stdout instead of text
  --stops       instead: stops a worker, a sweeper and a caller at every statement of every transition, one after the
                other, on both kinds of queues unless one is named (hours)
  --gate        instead: ten stories of N turns (1000) at the gate of a provider, under a clock that the test moves
  --accounts    instead: what is charged after 500 failures of model calls, held against the provider's books`;

interface Choice {
  readonly minutes: number;
  readonly turns: number | undefined;
  readonly isStops: boolean;
  readonly isGate: boolean;
  readonly isAccounts: boolean;
  readonly seed: number;
  readonly queue: 'redis' | 'postgres' | undefined;
  readonly isJson: boolean;
}

function readChoice(): Choice {
  const { values } = parseArgs({
    options: {
      minutes: { type: 'string' },
      turns: { type: 'string' },
      stops: { type: 'boolean', default: false },
      gate: { type: 'boolean', default: false },
      accounts: { type: 'boolean', default: false },
      seed: { type: 'string', default: String(Date.now() % 1_000_000) },
      queue: { type: 'string' },
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    console.log(USAGE);
    process.exit(0);
  }
  const turns = values.turns === undefined ? undefined : Number(values.turns);
  const minutes = Number(values.minutes ?? (turns === undefined ? 1 : 60));
  const seed = Number(values.seed);
  if (!(minutes > 0)) throw new Error(`--minutes must be a number above 0, not '${values.minutes}'`);
  if (turns !== undefined && !(Number.isInteger(turns) && turns > 0))
    throw new Error(`--turns must be a whole number above 0, not '${values.turns}'`);
  if (!Number.isInteger(seed) || seed < 0)
    throw new Error(`--seed must be a whole number, not '${values.seed}'`);
  if (values.queue !== undefined && values.queue !== 'redis' && values.queue !== 'postgres')
    throw new Error(`--queue must be redis or postgres, not '${values.queue}'`);
  return {
    minutes,
    turns,
    seed,
    queue: values.queue,
    isJson: values.json,
    isStops: values.stops,
    isGate: values.gate,
    isAccounts: values.accounts,
  };
}

/** Runs a test file with a larger load than the test suite does, and exits with its exit code. */
function runTest(file: string, args: readonly string[], env: Readonly<Record<string, string>>): never {
  const root = dirname(dirname(fileURLToPath(import.meta.url)));
  const { status } = spawnSync(
    process.execPath,
    [join(root, 'node_modules', 'vitest', 'vitest.mjs'), 'run', file, ...args],
    { cwd: root, stdio: 'inherit', env: { ...process.env, ...env } },
  );
  process.exit(status ?? 1);
}

function print(report: SoakReport): void {
  const lines = Object.entries(report.struck)
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([name, n]) => `  ${String(n).padStart(5)}  ${name}`);
  const ends = Object.entries(report.ended).map(([status, n]) => `${n} ${status}`);
  const broken = report.promises.filter((promise) => promise.broken.length > 0);
  console.log(`seed ${report.seed}, ${report.seconds} s\n\nwhat struck\n${lines.join('\n')}\n`);
  console.log(
    `${report.accepted} turns accepted (${report.repeated} submissions made again), ${report.erased} runs erased, ${report.purged} purged`,
  );
  console.log(`${report.checked} erased cards whose words were looked for in all tables`);
  console.log(`with their children: ${ends.join(', ')}\n`);
  const held = Object.entries(report.longestMs)
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([name, ms]) => `  ${String(ms).padStart(5)} ms  ${name}`);
  if (held.length > 0)
    console.log(`the longest time of a turn that others submitted meanwhile\n${held.join('\n')}\n`);
  console.log(`what held: ${report.promises.length - broken.length} of ${report.promises.length} promises`);
  for (const { promise, broken: found } of broken)
    console.log(`\nBROKEN  ${promise}\n${found.map((what) => `  ${what}`).join('\n')}`);
}

let choice: Choice;
try {
  choice = readChoice();
} catch (error) {
  console.error(`${error instanceof Error ? error.message.split('. ')[0] : String(error)}; see --help`);
  process.exit(2);
}
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1));

const { minutes, turns, seed, queue, isJson, isStops, isGate, isAccounts } = choice;
if (isStops)
  runTest('packages/runtime/src/faults/stops.test.ts', queue === undefined ? [] : ['-t', `on ${queue}`], {
    BOXCAR_FAULTS: 'all',
  });
if (isAccounts)
  runTest('packages/runtime/src/scenarios/budget/accounts.test.ts', [], { BOXCAR_ACCOUNT_FAILURES: '500' });
if (isGate)
  runTest('packages/store/src/work/gate-simulation.test.ts', [], {
    BOXCAR_GATE_TURNS: String(turns ?? 1_000),
    BOXCAR_GATE_SEEDS: Array.from({ length: 10 }, (_, n) => seed + n).join(','),
  });
const place = await openPlace(queue ?? 'redis');
const startedAt = performance.now();
const report = await soak(place, {
  seconds: minutes * 60,
  ...(turns === undefined ? {} : { turns }),
  seed,
  progress: (line) => {
    const text = `${Math.round((performance.now() - startedAt) / 1_000)} s: ${line}`;
    process.stderr.write(process.stderr.isTTY ? `\r\u001b[2K${text}` : `${text}\n`);
  },
});
if (process.stderr.isTTY) process.stderr.write('\r\u001b[2K');
if (isJson) console.log(JSON.stringify(report));
else print(report);
await place.close();
await closeAll();
process.exit(report.ok ? 0 : 1);
