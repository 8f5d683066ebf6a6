/** Texts that arrive in parts, as they may be shown. */
import { sanitizeText } from './json.js';
import { maskText, unfinishedFrom } from './secrets.js';

const SPACE = /\s/;
/** Where the user and password of a URL may begin, and where the value of a query may. */
const STARTS = ['://', ':\\/\\/', '?password=', '&password=', '?sslpassword=', '&sslpassword='] as const;
const LONGEST_START = 13;
/** More is shown unmasked rather than kept: a text without spaces may have no end. */
const MAX_HELD = 64 * 1024;

/**
 * A text that arrives in parts, without secrets, NUL and lone surrogates. An end that may be the beginning of a secret is held back, so that
 * the parts joined are what `maskSecrets` makes of the whole text.
 */
export class MaskedText {
  readonly #masks: boolean;
  #held = '';

  /** @param options.masks - False: secrets stay. Default true. */
  constructor({ masks = true }: { readonly masks?: boolean } = {}) {
    this.#masks = masks;
  }

  /** @returns What can be shown now. */
  push(text: string): string {
    const all = this.#held + text;
    const pair = all.length - (isHighSurrogate(all) ? 1 : 0);
    const at = this.#masks ? Math.max(Math.min(heldFrom(all), pair), all.length - MAX_HELD) : pair;
    this.#held = all.slice(at);
    return this.#shown(all.slice(0, at));
  }

  /** @returns What was held back. */
  end(): string {
    const rest = this.#held;
    this.#held = '';
    return this.#shown(rest);
  }

  #shown(text: string): string {
    return sanitizeText(this.#masks ? maskText(text) : text).value;
  }
}

/** The place from which a text may still become a secret. */
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

/** Where the last word begins. */
function lastWord(text: string): number {
  let at = text.length;
  while (at > 0 && text.length - at < MAX_HELD && !SPACE.test(text[at - 1] ?? '')) at -= 1;
  return at;
}

const isHighSurrogate = (text: string): boolean => {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last <= 0xdbff;
};
