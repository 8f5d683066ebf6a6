/** Masks secrets in texts that arrive in parts. */
import { sanitizeText } from './json.js';
import { maskText, unfinishedFrom } from './secrets.js';

const SPACE = /\s/;
/** Where the user and password of a URL may begin, or the value of a password in a query. */
const STARTS = ['://', ':\\/\\/', '?password=', '&password=', '?sslpassword=', '&sslpassword='] as const;
const LONGEST_START = 13;
/** The most characters held back. A longer tail is shown unmasked, because a text without spaces may never end. */
const MAX_HELD = 64 * 1024;

/**
 * A text that arrives in parts, without secrets, NUL and lone surrogates. An end that may be the beginning of a secret
 * is held back. So the joined parts equal the result of `maskSecrets` on the whole text.
 */
export class MaskedText {
  readonly #masks: boolean;
  #held = '';

  /** @param options.masks - False keeps secrets. Default true. */
  constructor({ masks = true }: { readonly masks?: boolean } = {}) {
    this.#masks = masks;
  }

  /** @returns The text that can be shown now. */
  push(text: string): string {
    const all = this.#held + text;
    const pair = all.length - (isHighSurrogate(all) ? 1 : 0);
    const at = this.#masks ? Math.max(Math.min(heldFrom(all), pair), all.length - MAX_HELD) : pair;
    this.#held = all.slice(at);
    return this.#shown(all.slice(0, at));
  }

  /** @returns The text that was held back. */
  end(): string {
    const rest = this.#held;
    this.#held = '';
    return this.#shown(rest);
  }

  #shown(text: string): string {
    return sanitizeText(this.#masks ? maskText(text) : text).value;
  }
}

/** The first position whose text may still become a secret. */
function heldFrom(text: string): number {
  const word = lastWord(text);
  const tail = text.slice(word).toLowerCase();
  let at = text.length;
  for (const start of STARTS) {
    const found = tail.lastIndexOf(start);
    if (found >= 0) at = Math.min(at, word + found);
  }
  for (let length = 1; length < LONGEST_START && length <= tail.length; length += 1)
    if (STARTS.some((start) => start.startsWith(tail.slice(-length))))
      at = Math.min(at, text.length - length);
  return Math.min(at, unfinishedFrom(text));
}

/** The beginning of the last word. */
function lastWord(text: string): number {
  let at = text.length;
  while (at > 0 && text.length - at < MAX_HELD && !SPACE.test(text[at - 1] ?? '')) at -= 1;
  return at;
}

const isHighSurrogate = (text: string): boolean => {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last <= 0xdbff;
};
