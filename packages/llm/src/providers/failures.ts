/**
 * Parsers for failed answers of providers, without a verdict, for other packages of this workspace that call providers. Pure functions
 * over bodies, headers and events.
 */
export {
  type FailureEvidence,
  findErrorInBody,
  findProviderError,
  findStatus,
  type ProviderError,
} from './failure.js';
export { findReportedUsage } from './reported-usage.js';
export { readRetryAfter } from './retry-after.js';
