/**
 * Helpers for tests of other packages: histories whose prompts these tests send, and the wire schemas. Not published.
 */
export { play, READER_MODEL } from './view-history.js';
export { historyPlan } from './view-plan.js';
export { wireErrors } from './wire.js';
