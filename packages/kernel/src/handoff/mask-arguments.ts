/**
 * Masks a call's arguments for the people who decide about the call.
 *
 * M1  A value of any kind is replaced as a whole when the words of its key are sensitive: `api_key` and `apiKey` are,
 *     `key_points` and `monkey` are not.
 * M2  A long text without spaces looks like a credential and is also replaced, unless it is a uuid.
 * M3  The fields that a decision is about are never replaced.
 * Rule: docs/reference/approvals.md, "Masked arguments".
 */
import { isJsonObject, type JsonValue } from '../base/index.js';

/** Replaces a value that is not shown. */
export const REDACTED = '***redacted***';

const SENSITIVE_ANYWHERE = new Set(['password', 'passphrase', 'secret', 'credential', 'credentials']);
const SENSITIVE_LAST = new Set([
  ...SENSITIVE_ANYWHERE,
  'token',
  'key',
  'auth',
  'authorization',
  'api',
  'session',
  'signature',
  'cookie',
  'bearer',
]);
const ALWAYS_SHOWN = new Set(['target_agent', 'platform', 'task', 'session_key']);

const WORD_ENDS = /[_\-.\s]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/;
const CREDENTIAL = /^[A-Za-z0-9+/=_\-.]{32,}$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/**
 * Uses no regular expression: a pattern for digits at the end would scan a long number again from each of its digits.
 */
function withoutNumber(word: string): string {
  let end = word.length;
  while (end > 0 && word.charCodeAt(end - 1) >= 0x30 && word.charCodeAt(end - 1) <= 0x39) end -= 1;
  return word.slice(0, end);
}

/** The words of a key in lower case, without numbers at their ends: `apiToken2` has `api` and `token`. */
const wordsOf = (key: string): readonly string[] =>
  key
    .split(WORD_ENDS)
    .map((word) => withoutNumber(word.toLowerCase()))
    .filter((word) => word !== '');

function isSensitive(key: string): boolean {
  if (ALWAYS_SHOWN.has(key)) return false;
  const words = wordsOf(key);
  return SENSITIVE_LAST.has(words.at(-1) ?? '') || words.some((word) => SENSITIVE_ANYWHERE.has(word));
}

const isCredential = (text: string): boolean => CREDENTIAL.test(text) && !UUID.test(text);

/** @returns A copy with `***redacted***` in place of values that look like secrets. The given value is not changed. */
export function maskArguments(value: JsonValue): JsonValue {
  if (typeof value === 'string') return isCredential(value) ? REDACTED : value;
  if (Array.isArray(value)) return value.map(maskArguments);
  if (!isJsonObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, member]): [string, JsonValue] => {
      if (isSensitive(key)) return [key, REDACTED];
      return [key, ALWAYS_SHOWN.has(key) && typeof member === 'string' ? member : maskArguments(member)];
    }),
  );
}
