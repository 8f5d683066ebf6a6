/** Limits on how much of an input an error repeats, in its message and in its details. */

export type ErrorDetails = Readonly<Record<string, unknown>>;

const MAX_TEXT = 10_000;
const MAX_ECHO = 200;
/** Characters in all details of an error together; further items of lists are left out. */
const MAX_DETAILS = 20_000;
const MAX_MEMBERS = 100;
/** The length that a number, a boolean or another part without text counts as. */
const PLAIN_LENGTH = 8;
const QUOTED = /'([^']{200})[^']+'/g;
const DOUBLE_QUOTED = /"((?:[^"\\]|\\.)*)"/gs;
const WORD = /([^\s']{200})[^\s']+/g;

/** The first 200 characters of a text that repeats an input. */
export const cutEcho = (text: string): string =>
  text.length > MAX_ECHO ? `${text.slice(0, MAX_ECHO).toWellFormed()}…` : text;

/**
 * The text of an error. Each quoted part and each word without a blank is cut to 200 characters, because it may repeat
 * an input.
 */
export function cutEchoes(text: string): string {
  if (text.length <= MAX_ECHO) return text;
  const head = text
    .slice(0, 1_000_000)
    .replace(QUOTED, "'$1…'")
    .replace(DOUBLE_QUOTED, (_all, quoted: string) => `"${cutEcho(quoted)}"`)
    .replace(WORD, '$1…');
  return (head.length > MAX_TEXT ? `${head.slice(0, MAX_TEXT)}…` : head).toWellFormed();
}

/**
 * The details in limited size. Members outside lists are kept. A list keeps its first items while there is room, and
 * `more_<name>` beside it counts the omitted items. Ids stay whole for the programs that read them.
 */
export function cutDetails(details: ErrorDetails): ErrorDetails {
  let left = MAX_DETAILS;
  const cut = (part: unknown): unknown => {
    if (typeof part === 'string') {
      const text = cutEchoes(part);
      const kept = text.length > left ? text.slice(0, Math.max(left, MAX_ECHO)).toWellFormed() : text;
      left -= kept.length;
      return kept;
    }
    left -= PLAIN_LENGTH;
    if (Array.isArray(part)) {
      const kept: unknown[] = [];
      for (const item of part) {
        if (left <= 0) break;
        kept.push(cut(item));
      }
      return kept;
    }
    return isPlainObject(part) ? cutMembers(part) : part;
  };
  const cutMembers = (part: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> => {
    const entries = Object.entries(part).slice(0, MAX_MEMBERS);
    const done = new Map<string, unknown>();
    const small = entries.filter(([, member]) => typeof member !== 'object' || member === null);
    for (const [key, member] of small) done.set(key, cut(member));
    const members = entries.flatMap(([key, member]): [string, unknown][] => {
      const kept = done.has(key) ? done.get(key) : cut(member);
      const more = Array.isArray(member) && Array.isArray(kept) ? member.length - kept.length : 0;
      const shown = cutEcho(key);
      left -= shown.length;
      return [[shown, kept], ...(more > 0 ? [[`more_${shown}`, more] satisfies [string, number]] : [])];
    });
    return Object.fromEntries(members);
  };
  return cutMembers(details);
}

function isPlainObject(part: unknown): part is Readonly<Record<string, unknown>> {
  if (typeof part !== 'object' || part === null || Array.isArray(part)) return false;
  const prototype: unknown = Object.getPrototypeOf(part);
  return prototype === Object.prototype || prototype === null;
}
