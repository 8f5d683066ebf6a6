/**
 * Search in the words of a tape's entries, forgiving typos. What the store's index finds is looked at here again, so that the index decides
 * how long a search takes and never what it finds.
 *
 * S1  An entry matches exactly when the query stands in its words as one piece; nearly, when every word of the query stands in
 *     them with a typo or two.
 * S2  A word of 4 letters may have one typo (a letter more, less or another), one of 9 two. Shorter ones have none.
 * S3  A word with n typos keeps one of n + 1 parts of it unharmed: an entry without any of these parts need not be looked at.
 */
import { isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';
import type { TapeRecord } from './record.js';

/** Characters of an entry that are searched. */
export const MAX_WORDS = 65_536;
/** Words of a query that count; what is behind them is ignored by near matches. */
const MAX_QUERY_WORDS = 8;

export interface SearchWord {
  readonly word: string;
  readonly typos: number;
  /** One of these stands in every text that has the word, typos included. */
  readonly parts: readonly string[];
}

export interface TapeSearch {
  /** Folded. */
  readonly text: string;
  readonly words: readonly SearchWord[];
}

/** Text without regard to case: ß and ẞ are ss, and a sigma is a sigma wherever it stands. */
export const foldCase = (text: string): string =>
  text.replaceAll('ẞ', 'ß').toUpperCase().toLowerCase().replaceAll('ς', 'σ');

/** Text as searches compare it: without regard to case, width and composition. */
export const foldText = (text: string): string => foldCase(text.normalize('NFKC')).normalize('NFC');

function* leavesOf(value: JsonValue): Generator<string> {
  if (typeof value === 'string') yield value;
  else if (typeof value === 'number') yield String(value);
  else if (Array.isArray(value)) for (const item of value) yield* leavesOf(item);
  else if (isJsonObject(value)) for (const item of Object.values(value)) yield* leavesOf(item);
}

/** A handoff says the state of its anchor again: that stands in the anchor's words alone, and goes with them. */
function saidBy({ kind, payload }: TapeRecord): JsonObject {
  const { data } = payload;
  if (kind !== 'event' || payload.name !== 'handoff' || !isJsonObject(data)) return payload;
  const { state: _state, ...rest } = data;
  return { ...payload, data: rest };
}

/** Characters that are folded for `MAX_WORDS`: folding joins four of them to one at most. */
const MAX_UNFOLDED = 4 * MAX_WORDS;

/** The texts and numbers of a value, each in a line of its own, up to `MAX_UNFOLDED` characters. */
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

/** Characters that are folded at once: NFKC makes up to eighteen of one. */
const SLICE = 4_096;

/** Characters that join the one before them when they are composed: marks, and vowels and finals of Hangul. */
const JOINS = /^[\p{M}\u1160-\u11ff]/u;

/** Where a text may be cut near a place, so that its parts are folded as the whole is. A run of marks without an end is cut anywhere. */
function cutNear(text: string, near: number): number {
  for (let at = near; at > near - SLICE / 2; at -= 1) {
    const point = text.codePointAt(at) ?? 0;
    const isHalf = point >= 0xdc00 && point <= 0xdfff;
    if (!isHalf && !JOINS.test(String.fromCodePoint(point).normalize('NFKD'))) return at;
  }
  return near;
}

/** The first `most` characters of a text, folded, or a few more. What follows them is not folded. */
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

/** The words of an entry: those of its payload. */
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

/** True when the two differ by `most` letters at most. */
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

/** Of a text with a word and its typos: whether one of its tokens is that word. Only tokens that S3 leaves are compared. */
function hasNear({ word, typos, parts }: SearchWord, tokens: ReadonlySet<string>): boolean {
  const letters = [...word];
  for (const token of tokens) {
    // A letter has one or two units of length.
    if (token.length < letters.length - typos || token.length > 2 * (letters.length + typos)) continue;
    if (parts.some((part) => token.includes(part)) && isNear(letters, [...token], typos)) return true;
  }
  return false;
}

/** How the words of an entry, folded, match; undefined when they do not. An empty query matches nothing. */
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
