import { canonicalJson, parseJsonValue, sha256 } from '../base/index.js';

/**
 * The hash that binds an approval to what was approved: sha256 (lower-case hex) of the RFC 8785 text. Equal values have equal
 * hashes in whatever order their keys are; 1 and 1.0 are the same number.
 *
 * @throws KernelError `bad_request` for what is not plain JSON.
 */
export const argsHash = (value: unknown): string => sha256(canonicalJson(parseJsonValue(value, 'arguments')));
