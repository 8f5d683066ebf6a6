/** The tokens of a JSON text, for readers that need information that `JSON.parse` drops. */

/** The index after the string that opens at `open`; the end of the text when the string is not closed. */
function endOfString(text: string, open: number): number {
  for (let close = text.indexOf('"', open + 1); close >= 0; close = text.indexOf('"', close + 1)) {
    let before = close;
    while (text[before - 1] === '\\') before -= 1;
    if ((close - before) % 2 === 0) return close + 1;
  }
  return text.length;
}

const MARKS = '{}[],:';
const BLANKS = ' \t\n\r';

function endOfWord(text: string, at: number): number {
  let end = at + 1;
  while (end < text.length && !MARKS.includes(text.charAt(end)) && !BLANKS.includes(text.charAt(end)))
    end += 1;
  return end;
}

/**
 * The tokens of a JSON text: strings, marks, and words. It uses no regular expression, which would overflow the stack
 * on a long string with many escapes.
 */
export function tokensOf(text: string): readonly string[] {
  const tokens: string[] = [];
  for (let at = 0; at < text.length; ) {
    const first = text.charAt(at);
    if (BLANKS.includes(first)) {
      at += 1;
      continue;
    }
    const end = first === '"' ? endOfString(text, at) : MARKS.includes(first) ? at + 1 : endOfWord(text, at);
    tokens.push(text.slice(at, end));
    at = end;
  }
  return tokens;
}
