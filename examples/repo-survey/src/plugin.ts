import type { Plugin } from '@boxcar/runtime';
import { loadConfig } from './config.js';
import { registerSurvey } from './register-survey.js';

/** For `boxcar worker --plugin`: serves the survey of the folder in `BOXCAR_SURVEY_ROOT`. */
const plugin: Plugin = (runtime) => registerSurvey(runtime, { root: loadConfig().root });

export default plugin;
