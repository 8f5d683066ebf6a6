/**
 * Finds a text that a person copied: as it is, else without regard to white space (terminals wrap and indent), else also
 * without regard to JSON escapes (a quote or line end inside a tool's arguments or result).
 */
export const TEXT_MATCHES = ['exact', 'whitespace', 'unescaped'] as const;
export type TextMatch = (typeof TEXT_MATCHES)[number];

/** A half-open range of a text. */
export interface TextRange {
  readonly start: number;
  readonly end: number;
}

/** A text as it is compared, and, when asked for, the range that each of its characters stands for. */
interface FoldedText {
  readonly text: string;
  readonly starts: readonly number[];
  readonly ends: readonly number[];
}

const OTHER_SPACE = /\s/;

/** White space, and control characters: terminals show them as such. */
function isSpace(character: string): boolean {
  const code = character.charCodeAt(0);
  if (code <= 0x20) return true;
  return code >= 0x7f && (code <= 0x9f || OTHER_SPACE.test(character));
}
const ESCAPED_SPACE = new Set(['n', 'r', 't', 'b', 'f']);
const HEX = /^[0-9a-fA-F]{4}$/;

/** What an escape at `at` stands for, however often it was escaped again: a character, and where the escape ends. */
function readEscape(text: string, at: number): { readonly value: string; readonly end: number } | undefined {
  let end = at;
  while (text[end] === '\\') end += 1;
  const letter = text[end] ?? '';
  if (ESCAPED_SPACE.has(letter)) return { value: ' ', end: end + 1 };
  if (letter === '"' || letter === '/') return { value: letter, end: end + 1 };
  const code = text.slice(end + 1, end + 5);
  if (letter === 'u' && HEX.test(code))
    return { value: String.fromCharCode(Number.parseInt(code, 16)), end: end + 5 };
  return { value: '\\', end };
}

function fold(text: string, isUnescaped: boolean, hasRanges = false): FoldedText {
  let folded = '';
  const starts: number[] = [];
  const ends: number[] = [];
  for (let at = 0; at < text.length; ) {
    const character = text[at] ?? '';
    const escaped = isUnescaped && character === '\\' ? readEscape(text, at) : undefined;
    const end = escaped?.end ?? at + 1;
    const value = escaped?.value ?? character;
    const isBlank = isSpace(value);
    if (isBlank && folded.endsWith(' ')) {
      if (hasRanges) ends[ends.length - 1] = end;
    } else {
      folded += isBlank ? ' ' : value;
      if (hasRanges) {
        starts.push(at);
        ends.push(end);
      }
    }
    at = end;
  }
  return { text: folded, starts, ends };
}

function allOf(text: string, wanted: string): readonly number[] {
  const found: number[] = [];
  if (wanted === '') return found;
  for (let at = text.indexOf(wanted); at !== -1; at = text.indexOf(wanted, at + wanted.length))
    found.push(at);
  return found;
}

/**
 * A text to be searched, perhaps often. Its folded forms are made once, when they are asked for; where their characters
 * came from takes many times the room and is worked out again for each find.
 */
export class SearchableText {
  readonly text: string;
  readonly #folded = new Map<TextMatch, string>();

  constructor(text: string) {
    this.text = text;
  }

  /** All places of `wanted`, in order and without overlaps. */
  find(wanted: string, match: TextMatch): readonly TextRange[] {
    if (match === 'exact')
      return allOf(this.text, wanted).map((start) => ({ start, end: start + wanted.length }));
    const isUnescaped = match === 'unescaped';
    const folded = this.#folded.get(match) ?? fold(this.text, isUnescaped).text;
    this.#folded.set(match, folded);
    // A cell of a table that was cut ends in an ellipsis.
    const needle = fold(wanted, isUnescaped).text.trim().replace(/…$/, '').trimEnd();
    const found = allOf(folded, needle);
    if (found.length === 0) return [];
    const { starts, ends } = fold(this.text, isUnescaped, true);
    return found.map((at) => ({ start: starts[at] ?? 0, end: ends[at + needle.length - 1] ?? 0 }));
  }

  /** The first way in which `wanted` is found at all. */
  match(wanted: string): TextMatch | undefined {
    return TEXT_MATCHES.find((match) => this.find(wanted, match).length > 0);
  }

  /** How many characters of `wanted`, from its beginning, stand here in one piece. */
  longestPrefix(wanted: string): number {
    let found = 0;
    let missing = wanted.length + 1;
    while (missing - found > 1) {
      const length = (found + missing) >> 1;
      if (this.match(wanted.slice(0, length)) === undefined) missing = length;
      else found = length;
    }
    return found;
  }
}
