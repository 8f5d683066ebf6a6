/** Errors as text, and on stderr. */
export { detailsOf, errorLine } from './error-text.js';
export { describeError, reportError } from './report-error.js';
