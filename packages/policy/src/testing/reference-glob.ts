/** A second matcher for tests, which tries every possibility. Only for texts of a few characters. */

const codeOf = (character: string): number => character.codePointAt(0) ?? -1;

/** Whether a character is in the set with this content, without the `!`. */
function isIn(inside: string, character: string): boolean {
  if (inside === '') return false;
  const [, first, last] = /^(.)-(.)/su.exec(inside) ?? [];
  if (first !== undefined && last !== undefined) {
    const isBetween = codeOf(first) <= codeOf(character) && codeOf(character) <= codeOf(last);
    return isBetween || isIn(inside.slice(first.length + 1 + last.length), character);
  }
  const [single = ''] = inside;
  return single === character || isIn(inside.slice(single.length), character);
}

export function referenceMatches(pattern: string, text: string): boolean {
  if (pattern === '') return text === '';
  const [head = ''] = pattern;
  const [character = ''] = text;
  const tail = pattern.slice(head.length);
  if (head === '*')
    return (
      referenceMatches(tail, text) || (text !== '' && referenceMatches(pattern, text.slice(character.length)))
    );
  if (text === '') return false;
  const rest = text.slice(character.length);
  if (head === '?') return referenceMatches(tail, rest);
  const [set = '', bang, inside = ''] = /^\[(!?)(\]?[^\]]*)\]/u.exec(pattern) ?? [];
  if (inside !== '')
    return isIn(inside, character) !== (bang === '!') && referenceMatches(pattern.slice(set.length), rest);
  return head === character && referenceMatches(tail, rest);
}
