export { loadConfig } from './config.js';
export { reportSchema, type SurveyReport } from './findings.js';
export { PROFILE_FILES } from './profiles.js';
export { type RegisteredSurvey, registerSurvey } from './register-survey.js';
export { renderProgress, showProgress } from './render-progress.js';
export { renderRun } from './render-run.js';
export { runSurvey, type SurveyProgress, type SurveyRun } from './run-survey.js';
