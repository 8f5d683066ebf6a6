import { sha256 } from '@boxcar/kernel';

const PLAIN = /^[\x21-\x7e]{1,255}$/;

/**
 * The idempotency key as the header of the IETF draft. OpenAI and Anthropic do not promise to honor it; gateways in front of them may. A
 * key that a header cannot hold is sent as its hash.
 */
export const idempotencyHeaders = (key: string): Record<string, string> => ({
  'idempotency-key': PLAIN.test(key) ? key : sha256(key),
});
