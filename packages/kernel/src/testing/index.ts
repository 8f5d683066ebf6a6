/** Histories whose prompts tests of packages above send somewhere. Not part of what is published. */
export { play, READER_MODEL } from './view-history.js';
export { historyPlan } from './view-plan.js';
