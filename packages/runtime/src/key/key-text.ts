/** The text of a key of the HTTP frame. It is made here and shown once; only the key's owner keeps it. */
import { createHash, randomBytes } from 'node:crypto';

const PREFIX = 'boxcar_';
const RANDOM_BYTES = 32;
const HINT_LENGTH = 4;
const FORM = /^boxcar_[A-Za-z0-9_-]{43}$/;

/** The text of a new key, and the parts of it that are stored. */
export interface KeyText {
  readonly text: string;
  readonly sha256: Buffer;
  /** Its last characters, by which people recognize the key. */
  readonly hint: string;
}

export const digestOf = (text: string): Buffer => createHash('sha256').update(text).digest();

export const isKeyText = (text: string): boolean => FORM.test(text);

export function makeKeyText(): KeyText {
  const text = `${PREFIX}${randomBytes(RANDOM_BYTES).toString('base64url')}`;
  return { text, sha256: digestOf(text), hint: text.slice(-HINT_LENGTH) };
}
