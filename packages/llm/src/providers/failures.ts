/**
 * How failed answers of providers read, without a judgement: for other programs of this workspace that call them. Pure functions over
 * bodies, headers and events.
 */
export { findErrorInBody, findProviderError, findStatus, type ProviderError } from './failure.js';
export { findReportedUsage } from './reported-usage.js';
export { readRetryAfter } from './retry-after.js';
