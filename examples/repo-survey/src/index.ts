export { loadConfig } from './config.js';
export { reportSchema, type SurveyReport } from './findings.js';
export { PROFILE_FILES } from './profiles.js';
export { registerSurvey } from './register-survey.js';
export { renderRun } from './render-run.js';
export { runSurvey, type SurveyRun } from './run-survey.js';
