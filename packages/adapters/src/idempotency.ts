import { sha256 } from '@boxcar/kernel';

const PLAIN = /^[\x21-\x7e]{1,255}$/;

/**
 * The idempotency key as the header of the IETF draft. OpenAI and Anthropic promise nothing for it; gateways in front of them may keep it.
 * A key that no header can hold is sent as its hash.
 */
export const idempotencyHeaders = (key: string): Record<string, string> => ({
  'idempotency-key': PLAIN.test(key) ? key : sha256(key),
});
