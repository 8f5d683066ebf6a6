import type { Runtime } from '@boxcar/runtime';
import { resolveRoot } from './confinement.js';
import { loadSurveyProfiles } from './profiles.js';
import { createSurveyTools } from './tools.js';

const roots = new WeakMap<Runtime, string>();

/** The root that this runtime's survey tools are confined to. */
export const surveyRootOf = (runtime: Runtime): string | undefined => roots.get(runtime);

/**
 * Makes a runtime able to survey: registers the tools, confined to `root`, and applies the profiles of the principal and
 * its experts. Every process that runs turns of them has to do it.
 *
 * @param options.model - The model of all agents; default: the one of the profile files, which is scripted.
 * @throws KernelError `bad_request` when `root` is no folder, `profile_invalid` for a model that nothing serves.
 */
export async function registerSurvey(
  runtime: Runtime,
  options: { readonly root: string; readonly model?: string | undefined },
): Promise<void> {
  const root = resolveRoot(options.root);
  const tools = createSurveyTools(root);
  runtime.registerTool(tools.list_folders);
  runtime.registerTool(tools.list_files);
  runtime.registerTool(tools.read_file);
  runtime.registerTool(tools.measure_files);
  runtime.registerTool(tools.measure_code);
  runtime.registerTool(tools.find_todos);
  runtime.registerTool(tools.combine_findings);
  for (const profile of await loadSurveyProfiles(options.model)) await runtime.applyProfile(profile);
  roots.set(runtime, root);
}
