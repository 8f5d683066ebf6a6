import { isAbsolute, relative, resolve, sep } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type JsonValue, KernelError, launchPrincipalSchema } from '@boxcar/kernel';
import type { Runtime, TurnResult } from '@boxcar/runtime';
import { z } from 'zod';
import { confine, resolveRoot } from './confinement.js';
import { surveyOf } from './register-survey.js';

/** The required fields of the principal's result; `reportSchema` defines it fully. */
const RESULT_FIELDS = launchPrincipalSchema.shape.result_fields.parse([
  { name: 'summary', type: 'string', description: 'The figures in two or three sentences.' },
  { name: 'files', type: 'number' },
  { name: 'lines', type: 'number' },
  { name: 'exports', type: 'number' },
  { name: 'functions', type: 'number' },
  { name: 'todos', type: 'number' },
  { name: 'longest_functions', type: 'array' },
  { name: 'by_folder', type: 'array' },
  { name: 'by_language', type: 'array' },
  { name: 'first_todos', type: 'array' },
  { name: 'skipped', type: 'object' },
  { name: 'experts', type: 'number' },
  { name: 'unanswered', type: 'array' },
]);

/** The progress of a survey. */
export interface SurveyProgress {
  /** Folders that were handed to experts; 0 until the tree is divided. */
  readonly folders: number;
  readonly measured: number;
  /** Experts that currently work; the others wait for a worker. */
  readonly atWork: number;
}

const PROGRESS_MS = 200;

const receiptSchema = z.looseObject({ turn_id: z.string() });

export interface SurveyRun {
  readonly status: TurnResult['status'];
  readonly run_id: string;
  /** Turns of the run: of the principal and of its experts. */
  readonly turns: number;
  /** Their committed steps: the model answers that count. */
  readonly steps: number;
  /** A `SurveyReport` when the run ended in success. */
  readonly deliverable: JsonValue;
  readonly error?: TurnResult['error'];
}

/**
 * The folder in the form for the principal: below the root, with `/` between its parts.
 *
 * @throws KernelError `bad_request` that names the folder.
 */
async function folderBelow(root: string, folder: string): Promise<string> {
  const refuse = (why: string): never => {
    throw new KernelError('bad_request', { message: `folder: '${folder}' ${why}.`, details: { folder } });
  };
  const below = relative(root, resolveRoot(resolve(root, folder), folder)) || '.';
  if (below.split(sep)[0] === '..' || isAbsolute(below)) return refuse('lies outside of the registered root');
  const { path } = await confine(root, below);
  // The instruction has the path on a separate line, so it must be a single line without outer spaces.
  return path === path.trim() && !/[\r\n]/.test(path)
    ? path
    : refuse('has a name that takes more than a line');
}

/** The numbers of turns and committed steps of a turn's run, counted from the rows. */
const RUN_FIGURES = `
  select t.run_id,
    (select count(*)::int from boxcar.turns r where r.run_id = t.run_id) as turns,
    (select count(*)::int from boxcar.steps s join boxcar.turns r on r.id = s.turn_id
      where r.run_id = t.run_id and s.committed_at is not null) as steps
  from boxcar.turns t where t.id = $1`;

const PROGRESS = `
  select count(*)::int as folders, (count(*) filter (where c.ended_at is not null))::int as measured,
    (count(*) filter (where c.status = 'running'))::int as "atWork"
  from boxcar.turns c where c.parent_turn_id = $1`;

/** Reports progress at intervals until `end` settles. */
async function watch<T>(
  runtime: Runtime,
  turnId: string,
  { end, onProgress }: { readonly end: Promise<T>; readonly onProgress: (progress: SurveyProgress) => void },
): Promise<T> {
  let isOver = false;
  const over = end.finally(() => {
    isOver = true;
  });
  // The caller handles the failure; here it only ends the watching.
  const pause = () =>
    Promise.race([over.catch(() => undefined), delay(PROGRESS_MS, undefined, { ref: false })]);
  for (let last = ''; !isOver; await pause()) {
    const { rows } = await runtime.pool.query<SurveyProgress>(PROGRESS, [turnId]);
    const [progress] = rows;
    if (progress === undefined || JSON.stringify(progress) === last) continue;
    last = JSON.stringify(progress);
    onProgress(progress);
  }
  return over;
}

/**
 * Surveys a folder: launches the principal and waits for its report.
 *
 * @param options.folder - The registered root, or a folder in it; relative paths start at the root.
 * @param options.timeoutMs - The maximum wait; the run itself continues.
 * @param options.signal - When it aborts, the run is canceled and the reason is thrown; without a signal the run continues by itself.
 * @param options.onProgress - Called at each change, at most a few times a second.
 * @throws KernelError `bad_request` for a path that is not a folder below the root, `wait_timeout`.
 */
export async function runSurvey(options: {
  readonly runtime: Runtime;
  readonly folder?: string;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: SurveyProgress) => void;
}): Promise<SurveyRun> {
  const { runtime, folder = '.', timeoutMs, signal, onProgress } = options;
  const survey = surveyOf(runtime);
  if (survey === undefined)
    throw new KernelError('bad_request', { message: 'This runtime has no survey; call registerSurvey.' });
  const path = await folderBelow(survey.root, folder);
  signal?.throwIfAborted();
  const receipt = await runtime.submit('launch_principal', {
    profile_name: survey.pool.nameOf('surveyor'),
    instruction: `Survey this source tree.\nFolder: ${path}`,
    result_fields: RESULT_FIELDS,
  });
  const { turn_id } = receiptSchema.parse(receipt);
  const waiting = runtime.waitForTurn(turn_id, {
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    ...(signal === undefined ? {} : { signal }),
  });
  let end: TurnResult;
  try {
    end = await (onProgress === undefined ? waiting : watch(runtime, turn_id, { end: waiting, onProgress }));
  } catch (error) {
    if (signal?.aborted) await runtime.submit('cancel', { turn_id, reason: 'The survey was stopped.' });
    throw error;
  }
  const { rows } = await runtime.pool.query<Pick<SurveyRun, 'run_id' | 'turns' | 'steps'>>(RUN_FIGURES, [
    turn_id,
  ]);
  const figures = rows[0];
  if (figures === undefined) throw new KernelError('not_found', { message: `No turn '${turn_id}'.` });
  return {
    status: end.status,
    ...figures,
    deliverable: end.result,
    ...(end.error === undefined ? {} : { error: end.error }),
  };
}
