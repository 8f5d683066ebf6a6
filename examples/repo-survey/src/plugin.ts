import type { Plugin } from '@boxcar/runtime';
import { loadConfig } from './config.js';
import { registerSurvey } from './register-survey.js';

/** For `boxcar worker --plugin`: serves the survey of the folder in `BOXCAR_SURVEY_ROOT`, on `BOXCAR_MODEL` if it is set. */
const plugin: Plugin = async (runtime) => {
  const { root, model } = loadConfig();
  await registerSurvey(runtime, { root, model });
};

export default plugin;
