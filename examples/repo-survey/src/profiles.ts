import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';

const FOLDER = new URL('../profiles/', import.meta.url);

/** The profile files of the survey; `boxcar profiles apply -f` takes them too. */
export const PROFILE_FILES = ['folder-expert', 'surveyor'].map((name) =>
  fileURLToPath(new URL(`${name}.yaml`, FOLDER)),
);

/** Reads the survey's profiles, not yet validated: the runtime does that when it applies them. `model` replaces theirs. */
export const loadSurveyProfiles = (model?: string): Promise<readonly unknown[]> =>
  Promise.all(
    PROFILE_FILES.map(async (file): Promise<unknown> => {
      const profile: unknown = parse(await readFile(file, 'utf8'));
      return model === undefined || typeof profile !== 'object' ? profile : { ...profile, model };
    }),
  );
