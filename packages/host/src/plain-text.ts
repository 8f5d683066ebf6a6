/**
 * Makes text from outside safe for one line of a log, an error or a terminal: its characters cannot move the cursor, ring the bell or
 * change colors.
 */

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is to be kept out. Joiners stay: scripts and emoji need them.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028\u2029\p{Bidi_Control}]/gu;

/** Keeps line breaks and tabs, and shows every other control character as a space. */
export const toPlain = (text: string): string => text.replaceAll('\r\n', '\n').replace(CONTROL, ' ');

/** One line without runs of white space. */
export const toLine = (text: string): string => toPlain(text).replace(/\s+/g, ' ').trim();

const NO_WIDTH = /^(?:\p{M}|[\u200b-\u200d])$/u;
const WIDE =
  /^[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]$/u;
// biome-ignore lint/suspicious/noControlCharactersInRegex: the common case, told apart quickly.
const ASCII = /^[\u0000-\u007f]*$/;

const columnsOf = (character: string): number =>
  NO_WIDTH.test(character) ? 0 : WIDE.test(character) ? 2 : 1;

/** The number of terminal columns that a line takes. */
export const widthOf = (text: string): number =>
  ASCII.test(text) ? text.length : [...text].reduce((sum, character) => sum + columnsOf(character), 0);

/** Cut to `width` columns. */
export function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let kept = '';
  let used = 0;
  for (const character of text) {
    used += columnsOf(character);
    if (used > width - 1) break;
    kept += character;
  }
  return width < 1 ? '' : `${kept}…`;
}
