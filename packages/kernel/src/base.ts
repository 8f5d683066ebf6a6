/**
 * `@boxcar/kernel/base`: errors, secrets and checks of plain values, without the rules and without zod. For programs
 * that start often, such as health checks. `@boxcar/kernel` exports the same names.
 */
export { checkDuration, checkWholeNumber, MAX_DURATION_MS } from './base/check-number.js';
export { ERROR_CATALOGUE, type ErrorCode } from './base/error-catalogue.js';
export { type ErrorBody, errorText, KernelError, toErrorBody } from './base/errors.js';
export { findingsOf, findingWords, safeParse } from './base/findings.js';
export type { WorkerId } from './base/ids.js';
export { jsonText, parseJson } from './base/key-order.js';
export { declareSecrets, maskSecrets } from './base/secrets.js';
