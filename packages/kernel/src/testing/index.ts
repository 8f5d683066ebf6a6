/** What tests of packages above need: histories whose prompts they send somewhere, and the schemas of the wire. Not part of what is published. */
export { play, READER_MODEL } from './view-history.js';
export { historyPlan } from './view-plan.js';
export { wireErrors } from './wire.js';
