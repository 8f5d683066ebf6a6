/**
 * A typo-tolerant search in the words of a tape's entries. Entries that the store's index finds are checked here again,
 * so the index affects only the speed of a search and never its result.
 *
 * S1  An entry is an exact match when its words contain the query in one piece. It is a near match when they contain
 *     every word of the query with at most the typos that S2 allows.
 * S2  A word of at least 4 letters may have one typo (an extra, missing or wrong letter), a word of at least 9 letters
 *     two. Shorter words may have none.
 * S3  A word with n typos keeps one of its n + 1 parts unchanged: an entry without any of these parts need not be
 *     checked.
 */
import { isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';
import type { TapeRecord } from './record.js';

/** The number of characters of an entry that are searched. */
export const MAX_WORDS = 65_536;
/** The number of query words that count; near matches ignore further words. */
const MAX_QUERY_WORDS = 8;

export interface SearchWord {
  readonly word: string;
  readonly typos: number;
  /** Every text with the word, typos included, contains one of these parts. */
  readonly parts: readonly string[];
}

export interface TapeSearch {
  /** The folded query. */
  readonly text: string;
  readonly words: readonly SearchWord[];
}

/** Text without regard to case: ß and ẞ become ss, and every form of sigma becomes the same sigma. */
export const foldCase = (text: string): string =>
  text.replaceAll('ẞ', 'ß').toUpperCase().toLowerCase().replaceAll('ς', 'σ');

/** Text in the form that searches compare: without regard to case, width and composition. */
export const foldText = (text: string): string => foldCase(text.normalize('NFKC')).normalize('NFC');

function* leavesOf(value: JsonValue): Generator<string> {
  if (typeof value === 'string') yield value;
  else if (typeof value === 'number') yield String(value);
  else if (Array.isArray(value)) for (const item of value) yield* leavesOf(item);
  else if (isJsonObject(value)) for (const item of Object.values(value)) yield* leavesOf(item);
}

/**
 * A handoff event repeats the state of its anchor. The state is searched only in the anchor's words, so that it can be
 * erased with them.
 */
function saidBy({ kind, payload }: TapeRecord): JsonObject {
  const { data } = payload;
  if (kind !== 'event' || payload.name !== 'handoff' || !isJsonObject(data)) return payload;
  const { state: _state, ...rest } = data;
  return { ...payload, data: rest };
}

/** The number of characters to fold in order to get `MAX_WORDS`: folding joins at most four characters into one. */
const MAX_UNFOLDED = 4 * MAX_WORDS;

/** The texts and numbers of a value, each on its own line, up to `MAX_UNFOLDED` characters. */
function textOf(value: JsonValue): string {
  const texts: string[] = [];
  let length = 0;
  for (const text of leavesOf(value)) {
    texts.push(text.slice(0, MAX_UNFOLDED - length));
    length += text.length + 1;
    if (length >= MAX_UNFOLDED) break;
  }
  return texts.join('\n');
}

/** Characters folded at once: NFKC makes up to eighteen characters of one. */
const SLICE = 4_096;

/** Characters that join the character before them in composition: marks, and vowels and finals of Hangul. */
const JOINS = /^[\p{M}\u1160-\u11ff]/u;

/**
 * A position near `near` where a text may be cut so that its parts fold like the whole. An endless run of marks is cut
 * anywhere.
 */
function cutNear(text: string, near: number): number {
  for (let at = near; at > near - SLICE / 2; at -= 1) {
    const point = text.codePointAt(at) ?? 0;
    const isHalf = point >= 0xdc00 && point <= 0xdfff;
    if (!isHalf && !JOINS.test(String.fromCodePoint(point).normalize('NFKD'))) return at;
  }
  return near;
}

/** The first `most` characters of a text, folded, or slightly more. The rest of the text is not folded. */
function foldStart(text: string, most: number): string {
  const parts: string[] = [];
  let length = 0;
  for (let from = 0; from < text.length && length < most; ) {
    const to = text.length - from <= SLICE ? text.length : cutNear(text, from + SLICE);
    const folded = foldText(text.slice(from, to));
    parts.push(folded);
    length += folded.length;
    from = to;
  }
  return parts.join('');
}

/** The words of a value: all its texts and numbers, folded. */
export const foldedWords = (value: JsonValue): string =>
  foldStart(textOf(value), MAX_WORDS)
    .slice(0, MAX_WORDS)
    .replace(/[\ud800-\udbff]$/, '');

/** The words of an entry: the words of its payload. */
export const wordsOf = (record: TapeRecord): string => foldedWords(saidBy(record));

function toWord(word: string): SearchWord {
  const letters = [...word];
  const typos = letters.length >= 9 ? 2 : letters.length >= 4 ? 1 : 0;
  const end = (index: number): number => Math.floor((index * letters.length) / (typos + 1));
  const parts = Array.from({ length: typos + 1 }, (_, index) =>
    letters.slice(end(index), end(index + 1)).join(''),
  );
  return { word, typos, parts };
}

const TOKENS = /[\p{L}\p{N}\p{M}]+/gu;
const tokensOf = (text: string): readonly string[] => text.match(TOKENS) ?? [];

export function parseSearch(text: string): TapeSearch {
  const folded = foldText(text).trim();
  return { text: folded, words: [...new Set(tokensOf(folded))].slice(0, MAX_QUERY_WORDS).map(toWord) };
}

/** True when the two words differ by at most `most` letters. */
function isNear(a: readonly string[], b: readonly string[], most: number): boolean {
  if (Math.abs(a.length - b.length) > most) return false;
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    let least = i;
    for (let j = 1; j <= b.length; j += 1) {
      const change = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1);
      const cost = Math.min(change, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1);
      next.push(cost);
      if (cost < least) least = cost;
    }
    if (least > most) return false;
    row = next;
  }
  return (row[b.length] ?? 0) <= most;
}

/**
 * Whether one of the tokens is the word with its allowed typos. Only tokens with a part of the word (S3) are compared.
 */
function hasNear({ word, typos, parts }: SearchWord, tokens: ReadonlySet<string>): boolean {
  const letters = [...word];
  for (const token of tokens) {
    // A letter has one or two UTF-16 code units.
    if (token.length < letters.length - typos || token.length > 2 * (letters.length + typos)) continue;
    if (parts.some((part) => token.includes(part)) && isNear(letters, [...token], typos)) return true;
  }
  return false;
}

/**
 * Whether the folded words of an entry match exactly or nearly; undefined when they do not match. An empty query
 * matches nothing.
 */
export function matchSearch(search: TapeSearch, words: string): 'exact' | 'near' | undefined {
  if (search.text === '') return undefined;
  if (words.includes(search.text)) return 'exact';
  if (search.words.length === 0) return undefined;
  if (!search.words.every(({ parts }) => parts.some((part) => words.includes(part)))) return undefined;
  const unfound = search.words.filter(({ word }) => !words.includes(word));
  if (unfound.some(({ typos }) => typos === 0)) return undefined;
  const tokens = unfound.length === 0 ? new Set<string>() : new Set(tokensOf(words));
  return unfound.every((word) => hasNear(word, tokens)) ? 'near' : undefined;
}
