import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';

const FOLDER = new URL('../profiles/', import.meta.url);

/** The profile files of the survey; `boxcar profiles apply -f` accepts them too. */
export const PROFILE_FILES = ['folder-expert', 'surveyor'].map((name) =>
  fileURLToPath(new URL(`${name}.yaml`, FOLDER)),
);

/** The workers that run the turns of the survey's agents, and the names of its profiles; see `poolOf`. */
export interface SurveyPool {
  readonly workerTarget: string;
  readonly nameOf: (name: string) => string;
}

/** The default pool: all workers, and the names in the files. */
export const SHARED_POOL: SurveyPool = { workerTarget: '', nameOf: (name) => name };

/**
 * A pool for workers that survey this folder with this model, for a process that is the only one with its tools. Workers for other
 * folders on the same database do not claim its turns, and a later survey of the same folder uses the same profiles.
 */
export function poolOf(root: string, model = ''): SurveyPool {
  const id = createHash('sha256')
    .update(JSON.stringify([root, model]))
    .digest('hex')
    .slice(0, 12);
  return { workerTarget: `survey-${id}`, nameOf: (name) => `${name}-${id}` };
}

/** Reads the survey's profiles without validation: the runtime validates them when it applies them. `model` replaces their model. */
export const loadSurveyProfiles = (
  model?: string,
  { workerTarget, nameOf }: SurveyPool = SHARED_POOL,
): Promise<readonly unknown[]> =>
  Promise.all(
    PROFILE_FILES.map(async (file): Promise<unknown> => {
      const text = await readFile(file, 'utf8');
      const profile: unknown = parse(text.replaceAll(/\b(?:folder-expert|surveyor)\b/g, nameOf));
      const chosen = { ...(model === undefined ? {} : { model }), worker_target: workerTarget };
      return typeof profile === 'object' ? { ...profile, ...chosen } : profile;
    }),
  );
