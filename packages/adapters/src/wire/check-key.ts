import { type Caller, failureOf } from './exchange.js';

/** The characters that a header can hold. Errors about other values would repeat the value. */
const PLAIN = /^[\x21-\x7e]+$/;

/**
 * The key of a target.
 *
 * @param key - The result of `readVariable` for `caller.keyVariable`.
 * @throws AdapterError `platform_unauthorized` when there is no key, or the value cannot be a key.
 */
export function checkKey(key: string | undefined, caller: Caller): string {
  const refuse = (why: string): never => {
    throw failureOf(
      caller,
      { code: 'platform_unauthorized', retryable: false },
      `needs a key: ${caller.keyVariable ?? ''} ${why} where the handoff runs`,
    );
  };
  if (key === undefined) return refuse('is not set');
  return PLAIN.test(key) ? key : refuse('is not printable ASCII without spaces');
}
