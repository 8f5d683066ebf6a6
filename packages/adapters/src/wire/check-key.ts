import { type Caller, failureOf } from './exchange.js';

/** What a header can hold. Errors about other values would repeat them. */
const PLAIN = /^[\x21-\x7e]+$/;

/**
 * The key of a target.
 *
 * @param key - What `readVariable` gave for `caller.keyVariable`.
 * @throws AdapterError `platform_unauthorized` when there is none, or what there is cannot be a key.
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
