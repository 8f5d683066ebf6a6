/**
 * Finds a text that a person copied, in three ways, each tried only when the way before fails. The first is the exact
 * text. The second ignores white space, since terminals wrap and indent. The third also ignores JSON escapes, such as a
 * quote or line end inside a tool's arguments or result.
 *
 * F1  The work grows with the length of the searched text, whatever the wanted text is: each character is visited a
 *     bounded number of times.
 * F2  A search yields every few thousand characters and reports its progress, so that its caller can do other work in
 *     between.
 */
export const TEXT_MATCHES = ['exact', 'whitespace', 'unescaped'] as const;
export type TextMatch = (typeof TEXT_MATCHES)[number];

/** A half-open range of a text. */
export interface TextRange {
  readonly start: number;
  readonly end: number;
}

const OTHER_SPACE = /\s/;
const SPACE = 0x20;
const BACKSLASH = 0x5c;
const ELLIPSIS = 0x2026;

/** White space, and control characters, which terminals show as white space. */
function isSpace(code: number): boolean {
  if (code <= SPACE) return true;
  return code >= 0x7f && (code <= 0x9f || OTHER_SPACE.test(String.fromCharCode(code)));
}
const ESCAPED_SPACE = new Set(['n', 'r', 't', 'b', 'f']);
const HEX = /^[0-9a-fA-F]{4}$/;

/**
 * Decodes an escape at `at`, even when it was escaped several times: returns its character and the end of the escape.
 */
function readEscape(text: string, at: number): { readonly code: number; readonly end: number } {
  let end = at;
  while (text.charCodeAt(end) === BACKSLASH) end += 1;
  const letter = text[end] ?? '';
  if (ESCAPED_SPACE.has(letter)) return { code: SPACE, end: end + 1 };
  if (letter === '"' || letter === '/') return { code: letter.charCodeAt(0), end: end + 1 };
  const code = text.slice(end + 1, end + 5);
  if (letter === 'u' && HEX.test(code)) return { code: Number.parseInt(code, 16), end: end + 5 };
  return { code: BACKSLASH, end };
}

/**
 * A wanted text in the form that is compared: the codes of its characters, and the end of each character in the
 * original text.
 */
interface Needle {
  readonly codes: Uint16Array;
  readonly ends: Int32Array;
  /**
   * The failure table of the search: for each number of matched characters, how many still match after the shortest
   * shift.
   */
  readonly borders: Int32Array;
}

function toNeedle(codes: Uint16Array, ends: Int32Array): Needle {
  const borders = new Int32Array(codes.length + 1);
  for (let at = 1, border = 0; at < codes.length; at += 1) {
    while (border > 0 && codes[border] !== codes[at]) border = borders[border] ?? 0;
    if (codes[border] === codes[at]) border += 1;
    borders[at + 1] = border;
  }
  return { codes, ends, borders };
}

function exactNeedle(text: string): Needle {
  const codes = new Uint16Array(text.length);
  for (let at = 0; at < text.length; at += 1) codes[at] = text.charCodeAt(at);
  return toNeedle(codes, new Int32Array(0));
}

function foldNeedle(text: string, isUnescaped: boolean): Needle {
  const codes = new Uint16Array(text.length);
  const ends = new Int32Array(text.length);
  let count = 0;
  for (let at = 0; at < text.length; ) {
    const own = text.charCodeAt(at);
    const { code, end } =
      isUnescaped && own === BACKSLASH ? readEscape(text, at) : { code: own, end: at + 1 };
    at = end;
    const isBlank = isSpace(code);
    // Blanks at the beginning are ignored.
    if (isBlank && count === 0) continue;
    if (!isBlank || codes[count - 1] !== SPACE) count += 1;
    codes[count - 1] = isBlank ? SPACE : code;
    ends[count - 1] = end;
  }
  const dropSpace = (): void => {
    if (codes[count - 1] === SPACE) count -= 1;
  };
  dropSpace();
  // A truncated cell of a table ends in an ellipsis.
  if (codes[count - 1] === ELLIPSIS) count -= 1;
  dropSpace();
  return toNeedle(codes.subarray(0, count), ends.subarray(0, count));
}

const toNeedleOf = (text: string, match: TextMatch): Needle =>
  match === 'exact' ? exactNeedle(text) : foldNeedle(text, match === 'unescaped');

/** Characters between two yields. */
const STRIDE = 8_192;
/** Reporting a match costs as much work as this many characters. */
const FOUND_WORK = 64;
/** The engine's own search looks for this many first characters of the text; it is the fastest while they are few. */
const HEAD = 16;

export interface TextSearch {
  /** Called for each match, in order and without overlaps; the search ends when it returns true. */
  readonly onFound: (range: TextRange) => boolean;
}

/** A wanted text, which may be searched for in many texts. */
export class WantedText {
  readonly text: string;
  readonly #needles = new Map<TextMatch, Needle>();

  constructor(text: string) {
    this.text = text;
  }

  /**
   * Finds all places of the wanted text in another text. Each yield gives the number of characters processed since the
   * last yield.
   *
   * @returns How many characters of the wanted text, from its beginning, occur in one piece. An exact search always
   * returns 0: an exact match is also a match without regard to white space.
   */
  *search(text: string, match: TextMatch, { onFound }: TextSearch): Generator<number, number> {
    if (!this.#needles.has(match)) {
      // Preparing a long text takes time.
      yield this.text.length;
      this.#needles.set(match, toNeedleOf(this.text, match));
      yield this.text.length;
    }
    if (match === 'exact') {
      yield* this.#searchExact(text, onFound);
      return 0;
    }
    return yield* this.#searchFolded(text, match === 'unescaped', onFound);
  }

  /** The first way of `TEXT_MATCHES` that finds the text. */
  *match(text: string): Generator<number, TextMatch | undefined> {
    for (const match of TEXT_MATCHES) {
      let isFound = false;
      const onFound = (): boolean => {
        isFound = true;
        return true;
      };
      yield* this.search(text, match, { onFound });
      if (isFound) return match;
    }
    return undefined;
  }

  #needle(match: TextMatch): Needle {
    const needle = this.#needles.get(match);
    if (needle === undefined) throw new Error(`the text was not made ready for a search of kind ${match}`);
    return needle;
  }

  *#searchExact(text: string, onFound: TextSearch['onFound']): Generator<number> {
    const { codes, borders } = this.#needle('exact');
    const { length } = codes;
    if (length === 0) return;
    const head = this.text.slice(0, HEAD);
    let state = 0;
    let work = 0;
    for (let at = 0; at < text.length; ) {
      if (state === 0) {
        // Searches window by window. Each window includes the beginning of the next, because a match of the head may
        // cross the border.
        const found = text.slice(at, at + STRIDE + head.length - 1).indexOf(head);
        const step = found === -1 ? Math.min(STRIDE, text.length - at) : found;
        at += step;
        work += step;
        if (found !== -1) {
          state = head.length;
          at += head.length;
          work += head.length;
        }
      } else {
        const code = text.charCodeAt(at);
        while (state > 0 && codes[state] !== code) state = borders[state] ?? 0;
        if (codes[state] === code) state += 1;
        at += 1;
        work += 1;
      }
      if (state === length) {
        state = 0;
        work += FOUND_WORK;
        if (onFound({ start: at - length, end: at })) return;
      }
      if (work >= STRIDE) {
        yield work;
        work = 0;
      }
    }
    yield work;
  }

  *#searchFolded(
    text: string,
    isUnescaped: boolean,
    onFound: TextSearch['onFound'],
  ): Generator<number, number> {
    const { codes, ends, borders } = this.#needle(isUnescaped ? 'unescaped' : 'whitespace');
    const { length } = codes;
    if (length === 0) return 0;
    /**
     * The start positions of the latest characters, as many as the wanted text has, indexed by character number modulo
     * the length.
     */
    const starts = new Int32Array(length);
    let count = 0;
    let state = 0;
    let longest = 0;
    let wasBlank = false;
    let work = 0;
    for (let at = 0; at < text.length; ) {
      const start = at;
      let code = text.charCodeAt(at);
      at += 1;
      if (isUnescaped && code === BACKSLASH) {
        const read = readEscape(text, start);
        code = read.code;
        at = read.end;
      }
      work += at - start;
      const isBlank = isSpace(code);
      if (!isBlank || !wasBlank) {
        if (isBlank) code = SPACE;
        starts[count % length] = start;
        count += 1;
        while (state > 0 && codes[state] !== code) state = borders[state] ?? 0;
        if (codes[state] === code) state += 1;
        if (state > longest) longest = state;
        if (state === length) {
          state = 0;
          work += FOUND_WORK;
          if (onFound({ start: starts[count % length] ?? 0, end: at })) break;
        }
      }
      wasBlank = isBlank;
      if (work >= STRIDE) {
        yield work;
        work = 0;
      }
    }
    yield work;
    // White space after the match counts as found.
    if (codes[longest] === SPACE) longest += 1;
    return longest === 0 ? 0 : (ends[longest - 1] ?? 0);
  }
}
