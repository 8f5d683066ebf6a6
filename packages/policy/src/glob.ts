/**
 * Patterns with the syntax of Python's `fnmatch`: `*` any characters, `?` one character, `[seq]` and `[!seq]` one character of a set,
 * with ranges such as `a-z`. A pattern must match the whole text. `*` and `?` also match `/`, line breaks and a leading dot. Matching is
 * case-sensitive.
 *
 * One difference: in `[z-a!x]` the range is empty, and Python treats the `!` after it as a negation. Here it is a member of the set.
 *
 * No regular expression is built: the time is at most the length of the text times the length of the pattern.
 */

interface CharacterSet {
  readonly isNegated: boolean;
  /** Code points: the first and last of each range. */
  readonly ranges: readonly (readonly [number, number])[];
}

/** A literal character, a set of characters, or one of the two wildcards. */
type Part = string | CharacterSet | { readonly wildcard: 'one' | 'many' };

const codeOf = (character: string | undefined): number => character?.codePointAt(0) ?? -1;

/**
 * The position of the `]` that ends the set begun at `start`; -1 when there is none. A `]` in the first position is a member of the set.
 */
function endOfSet(characters: readonly string[], start: number): number {
  const first = characters[start + 1] === '!' ? start + 2 : start + 1;
  return characters.indexOf(']', first + 1);
}

function readSet(characters: readonly string[]): CharacterSet {
  const isNegated = characters[0] === '!';
  const ranges: (readonly [number, number])[] = [];
  for (let at = isNegated ? 1 : 0; at < characters.length; at++) {
    const isRange = characters[at + 1] === '-' && at + 2 < characters.length;
    ranges.push([codeOf(characters[at]), codeOf(characters[isRange ? at + 2 : at])]);
    if (isRange) at += 2;
  }
  return { isNegated, ranges };
}

function readPattern(pattern: string): readonly Part[] {
  const characters = [...pattern];
  const parts: Part[] = [];
  for (let at = 0; at < characters.length; at++) {
    const character = characters[at] ?? '';
    const end = character === '[' ? endOfSet(characters, at) : -1;
    if (character === '*') parts.push({ wildcard: 'many' });
    else if (character === '?') parts.push({ wildcard: 'one' });
    else if (end === -1) parts.push(character);
    else {
      parts.push(readSet(characters.slice(at + 1, end)));
      at = end;
    }
  }
  return parts;
}

function fits(part: Part | undefined, character: string): boolean {
  if (part === undefined) return false;
  if (typeof part === 'string') return part === character;
  if ('wildcard' in part) return part.wildcard === 'one';
  const code = codeOf(character);
  return part.ranges.some(([first, last]) => first <= code && code <= last) !== part.isNegated;
}

const isMany = (part: Part | undefined): boolean =>
  typeof part === 'object' && 'wildcard' in part && part.wildcard === 'many';

/** Whether a pattern matches a whole text. Both are compared in the Unicode form NFC. */
export function matchesGlob(pattern: string, text: string): boolean {
  const parts = readPattern(pattern.normalize('NFC'));
  const characters = [...text.normalize('NFC')];
  let part = 0;
  let at = 0;
  /** The last `*` so far, and the text position where the rest of the pattern was tried. An earlier `*` need not be retried. */
  let star = -1;
  let tried = 0;
  while (at < characters.length) {
    if (isMany(parts[part])) {
      star = part++;
      tried = at;
    } else if (fits(parts[part], characters[at] ?? '')) {
      part++;
      at++;
    } else if (star >= 0) {
      part = star + 1;
      at = ++tried;
    } else return false;
  }
  while (isMany(parts[part])) part++;
  return part === parts.length;
}

/** Whether a pattern is not only a literal text: it has a character with a special meaning. */
export const isGlob = (pattern: string): boolean => /[*?[]/.test(pattern);
