/** Surveys a folder from the command line, on the Postgres of `DATABASE_URL`; `npm start` does not need one. */
import { parseArgs } from 'node:util';
import { KernelError, toErrorBody } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createLog, createWorker, migrateQueues, openRuntime } from '@boxcar/runtime';
import { migrate } from '@boxcar/store';
import { loadConfig } from './config.js';
import { registerSurvey } from './register-survey.js';
import { showProgress } from './render-progress.js';
import { renderRun } from './render-run.js';
import { runSurvey, type SurveyRun } from './run-survey.js';

const USAGE = 'Usage: main.js [folder] [--model <provider>:<model>] [--json]';

async function survey(given: {
  readonly root: string | undefined;
  readonly model: string | undefined;
}): Promise<SurveyRun> {
  const config = loadConfig();
  const { databaseUrl, directUrl, redisUrl } = config;
  if (databaseUrl === undefined) {
    throw new KernelError('bad_config', {
      message:
        'DATABASE_URL: is missing. Name a Postgres, or run `npm start` in the root, which brings its own.',
    });
  }
  await migrate(directUrl ?? databaseUrl);
  if (redisUrl === undefined) await migrateQueues(directUrl ?? databaseUrl);
  await using opened = openRuntime({
    databaseUrl,
    directUrl,
    redisUrl,
    model: createModelRouter({ providers: config.models }),
    log: createLog('warn'),
  });
  const { root = config.root, model = config.model } = given;
  const { pool } = await registerSurvey(opened.runtime, { root, model, isAlone: true });
  await using _worker = await createWorker(opened.runtime, { targets: [pool.workerTarget], graceMs: 1_000 });
  const { onProgress, clear } = showProgress(process.stderr);
  try {
    return await runSurvey({
      runtime: opened.runtime,
      signal: stop.signal,
      ...(onProgress === undefined ? {} : { onProgress }),
    });
  } finally {
    clear();
  }
}

// The first signal cancels the run; the second also ends a wait for the database.
const stop = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'])
  process.once(signal, () => stop.abort(new Error(`stopped by ${signal}`)));

try {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      json: { type: 'boolean', default: false },
      model: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help || positionals.length > 1) {
    console.error(USAGE);
    process.exitCode = values.help ? 0 : 1;
  } else {
    const run = await survey({ root: positionals[0], model: values.model });
    console.log(values.json ? JSON.stringify(run) : renderRun(run));
    process.exitCode = run.status === 'success' ? 0 : 1;
  }
} catch (error) {
  console.error(`repo-survey: ${toErrorBody(error).message}`);
  process.exitCode = 1;
}
