import type { Runtime } from '@boxcar/runtime';
import { resolveRoot } from './confinement.js';
import { loadSurveyProfiles, poolOf, SHARED_POOL, type SurveyPool } from './profiles.js';
import { createSurveyTools } from './tools.js';

/** The survey of a runtime: the root to which its tools are confined, and the pool that runs its turns. */
export interface RegisteredSurvey {
  readonly root: string;
  readonly pool: SurveyPool;
}

const surveys = new WeakMap<Runtime, RegisteredSurvey>();

export const surveyOf = (runtime: Runtime): RegisteredSurvey | undefined => surveys.get(runtime);

/**
 * Prepares a runtime for surveys: registers the tools, confined to `root`, and applies the profiles of the principal and its experts.
 * Every process that runs their turns must call it.
 *
 * @param options.model - The model of all agents. Default: the model of the profile files, which is scripted.
 * @param options.isAlone - True: only workers of this folder and model run its turns, so that surveys of other folders may run on
 * the same database. Pass the returned `pool.workerTarget` to the worker. Default: the default pool.
 * @throws KernelError `bad_request` when `root` is not a folder, `profile_invalid` for a model that no adapter serves.
 */
export async function registerSurvey(
  runtime: Runtime,
  options: { readonly root: string; readonly model?: string | undefined; readonly isAlone?: boolean },
): Promise<RegisteredSurvey> {
  const root = resolveRoot(options.root);
  const pool = options.isAlone === true ? poolOf(root, options.model) : SHARED_POOL;
  const tools = createSurveyTools(root);
  runtime.registerTool(tools.list_folders);
  runtime.registerTool(tools.list_files);
  runtime.registerTool(tools.read_file);
  runtime.registerTool(tools.measure_files);
  runtime.registerTool(tools.measure_code);
  runtime.registerTool(tools.find_todos);
  runtime.registerTool(tools.combine_findings);
  for (const profile of await loadSurveyProfiles(options.model, pool)) await runtime.applyProfile(profile);
  const survey = { root, pool };
  surveys.set(runtime, survey);
  return survey;
}
