import { canonicalJson, parseJsonValue, sha256 } from '../base/index.js';

/**
 * The hash that binds an approval to the approved arguments: sha256 (lower-case hex) of the RFC 8785 text. Equal values
 * have equal hashes, whatever the order of their keys; 1 and 1.0 are the same number.
 *
 * @throws KernelError `bad_request` for a value that is not plain JSON.
 */
export const argsHash = (value: unknown): string => sha256(canonicalJson(parseJsonValue(value, 'arguments')));
