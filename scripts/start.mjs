// Runs `npm start` after everything is built: Postgres, a worker in this process, and a team of agents that surveys a folder. stdout gets
// only the result.
import { createRequire } from 'node:module';
import { dirname, resolve } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { declareEnvironmentSecrets, openStack, parseConfig, reportError } from '@boxcar/host';
import { KernelError } from '@boxcar/kernel/base';
import { createLog, createWorker } from '@boxcar/runtime';

const HELP = `Usage: npm start [-- [folder] [--once] [--json] [--model <provider>:<model>]]

Starts Postgres (the embedded one, or that of DATABASE_URL), brings its schema up to date, starts a worker, and lets a team
of agents on the scripted model survey the folder; by default this repository.

  --once   end when the result is printed; otherwise a terminal keeps the worker running until Ctrl-C
  --json   print the result as one line: {"status", "run_id", "turns", "steps", "deliverable"}
  --model  of all agents, in place of the scripted one; also BOXCAR_MODEL. For example openai:<model> with
           OPENAI_API_KEY set (docs/reference/models.md)
  --help   print this

npm start -s -- --once --json | jq .`;

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const isJson = process.argv.includes('--json');
let withStack = false;
/** The time after a signal in which the run is canceled and all resources are closed. */
const LAST_MS = 800;
const stop = new AbortController();
const stopped = new Promise((settle) => {
  stop.signal.addEventListener('abort', settle);
});
for (const [signal, code] of Object.entries({ SIGINT: 130, SIGTERM: 143, SIGHUP: 129 })) {
  process.on(signal, () => {
    // The second signal ends the process at once.
    if (stop.signal.aborted) process.exit(code);
    process.exitCode = code;
    stop.abort();
  });
}

/** The open resources, which are closed in reverse order. */
const opened = [];
async function open(make) {
  stop.signal.throwIfAborted();
  const part = await make();
  opened.push(part);
  stop.signal.throwIfAborted();
  return part;
}

async function closeAll() {
  // A worker waits for its turns; the other parts take no options.
  for (const part of opened.splice(0).reverse()) await part.close(stop.signal.aborted ? { graceMs: 0 } : {});
}

function say(line) {
  process.stderr.write(`boxcar: ${line}\n`);
}

function readArguments() {
  try {
    const { values, positionals } = parseArgs({
      allowPositionals: true,
      options: {
        once: { type: 'boolean' },
        json: { type: 'boolean' },
        model: { type: 'string' },
        help: { type: 'boolean' },
      },
    });
    if (positionals.length <= 1) return { ...values, folder: positionals[0] };
    throw new Error('one folder at most');
  } catch (error) {
    reportError(
      new KernelError('bad_request', { message: `${error.message};`, next: 'see npm start -- --help' }),
      {
        isJson,
        withStack,
      },
    );
    process.exit(2);
  }
}

/** The example is a separate package, on which nothing here depends; the package resolves its own name. */
function loadExample() {
  const { resolve } = createRequire(new URL('../examples/repo-survey/package.json', import.meta.url));
  return import(pathToFileURL(resolve('@boxcar/example-repo-survey')).href);
}

async function main({ once, folder: given, model: chosen, help }) {
  if (help) {
    process.stdout.write(`${HELP}\n`);
    return;
  }
  declareEnvironmentSecrets();
  const config = parseConfig();
  withStack = config.logLevel === 'debug';
  const folder = given === undefined ? root : resolve(given);
  const startedAt = performance.now();
  const survey = await loadExample();
  const log = createLog(config.logLevel ?? 'warn');
  const stack = await open(() => openStack(config, { log, migrate: true }));
  say(`Postgres is ready (${stack.isEmbedded ? 'embedded' : 'DATABASE_URL'})`);
  const model = chosen ?? survey.loadConfig().model;
  // A separate pool: another start on this database surveys another folder.
  const { pool } = await survey.registerSurvey(stack.runtime, { root: folder, model, isAlone: true });
  await open(() =>
    createWorker(stack.runtime, { concurrency: config.concurrency, targets: [pool.workerTarget] }),
  );
  say(`surveying ${folder}${model === undefined ? '' : ` with ${model}`}`);
  const { onProgress, clear } = survey.showProgress(process.stderr);
  const run = await survey
    .runSurvey({ runtime: stack.runtime, folder, signal: stop.signal, onProgress })
    .finally(clear);

  const { status, run_id, turns, steps, deliverable } = run;
  say(`done in ${((performance.now() - startedAt) / 1000).toFixed(1)} s`);
  process.stdout.write(
    `${isJson ? JSON.stringify({ status, run_id, turns, steps, deliverable }) : render(survey, run)}\n`,
  );
  if (status !== 'success') process.exitCode = 1;
  if (once || !process.stdout.isTTY) {
    say(
      `next: npx boxcar tree ${run_id} shows who did what; docs/reference/library.md leads to a program of your own`,
    );
    return;
  }

  await open(() => createWorker(stack.runtime, { concurrency: config.concurrency }));
  await open(() => stack.serveQueueDoor());
  say(`the worker goes on until Ctrl-C; in another terminal, npx boxcar tree ${run_id} shows who did what`);
  await stopped;
  process.exitCode = 0;
}

const render = ({ renderRun }, run) => renderRun?.(run) ?? JSON.stringify(run, null, 2);

const work = main(readArguments()).catch((error) => {
  if (stop.signal.aborted) return;
  reportError(error, { isJson, withStack });
  process.exitCode = 1;
});
await Promise.race([work, stopped]);
if (stop.signal.aborted) {
  // Work that does not end in this time (a database that does not answer, initdb) ends with the process.
  await Promise.race([work.then(closeAll).catch(() => {}), delay(LAST_MS)]);
  process.exit();
}
await closeAll();
