/**
 * Converts patterns of JSON Schemas to RE2 syntax, with their meaning in ECMA-262 with the flag `u`. Where RE2 reads
 * the same characters in another way (`.`, `\s`, `[^]`, `\b` in a class, `\cA`, `[:alpha:]`), the pattern is rewritten.
 * A pattern that RE2 cannot express is refused. Escaped punctuation and single `]`, `{` and `}` are literal, as without
 * the flag.
 */

/** The characters of `\s`, and all other characters, as ranges in a class. */
const SPACE =
  '\\x{9}-\\x{d}\\x{20}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{feff}';
const NO_SPACE =
  '\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{fefe}\\x{ff00}-\\x{10ffff}';
const ALL = '\\x{0}-\\x{10ffff}';
const ANY = '[^\\x{a}\\x{d}\\x{2028}\\x{2029}]';

const ESCAPE =
  /\\(?:u\{[0-9a-fA-F]+\}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|c[a-zA-Z]|[pP]\{[^}]*\}|k<[^>]*>|[\s\S])/uy;
const GROUP = /\(\?(?:<?[=!]|<[^>]*>|[^)]?)/uy;
const REPEAT = /\{\d+(?:,\d*)?\}/uy;
const CONTROLS: Readonly<Record<string, number>> = { t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 };

const readAt = (kind: RegExp, pattern: string, index: number): string | undefined => {
  kind.lastIndex = index;
  return kind.exec(pattern)?.[0];
};

function literal(code: number): string {
  const text = String.fromCodePoint(code);
  return /^[A-Za-z0-9]$/.test(text) ? text : `\\x{${code.toString(16)}}`;
}

/** The character that an escape means; undefined for classes and assertions. */
function codeOf(token: string, isInClass: boolean): number | undefined {
  const kind = token.charAt(1);
  if (token.length > 2 && /[ux]/.test(kind)) {
    const [unit = '', second] = token.match(/[0-9a-fA-F]+/g) ?? [];
    const code = Number.parseInt(unit, 16);
    return second === undefined
      ? code
      : String.fromCharCode(code, Number.parseInt(second, 16)).codePointAt(0);
  }
  if (token.length > 2 && kind === 'c') return token.charCodeAt(2) % 32;
  if (Object.hasOwn(CONTROLS, kind)) return CONTROLS[kind];
  if (kind === 'b' && isInClass) return 8;
  return /[A-Za-z0-9]/.test(kind) ? undefined : token.codePointAt(1);
}

/** A class escape, as a part of a class; undefined for another escape. */
function rangesOf(token: string): string | undefined {
  if (token === '\\s') return SPACE;
  if (token === '\\S') return NO_SPACE;
  if (/^\\[dDwW]$/.test(token)) return token;
  if (!/^\\p\{/i.test(token)) return undefined;
  // RE2 has its own tables of scripts and general categories.
  const name = /^\\p\{(?:(?:Script|sc)=)?(\w+)\}$/i.exec(token)?.[1];
  if (name === undefined) throw new Error(`${token} is not known`);
  return `${token.slice(0, 2)}{${name}}`;
}

/**
 * The same pattern for RE2.
 *
 * @throws Error for a pattern that ECMA-262 refuses, and for look-around, back references and flags.
 */
export function toRe2(pattern: string): string {
  /** The pattern for ECMA-262, and the pattern for RE2. */
  let checked = '';
  let written = '';
  const add = (ecma: string, re2: string): void => {
    checked += ecma;
    written += re2;
  };
  const properties = new Set<string>();
  let isInClass = false;
  /** In a class: whether `-` would make a range with the character before it, or has opened a range. */
  let range = 'none' as 'none' | 'start' | 'open';
  const addCharacter = (code: number): void => {
    add(`\\u{${code.toString(16)}}`, literal(code));
    range = range === 'open' ? 'none' : 'start';
  };
  for (let index = 0; index < pattern.length; ) {
    const char = String.fromCodePoint(pattern.codePointAt(index) ?? 0);
    const token = readAt(ESCAPE, pattern, index);
    if (token !== undefined) {
      index += token.length;
      if (token === '\\0' && /\d/.test(pattern.charAt(index)))
        throw new Error(`${token} before a digit is not known`);
      const code = codeOf(token, isInClass);
      const ranges = code === undefined ? rangesOf(token) : undefined;
      if (code !== undefined) addCharacter(code);
      else if (ranges !== undefined) {
        // A property takes long to compile: compiling it once proves that it exists.
        add(properties.has(token) ? '\\w' : token, isInClass ? ranges : `[${ranges}]`);
        properties.add(token);
      } else if (/^\\[bB]$/.test(token)) add(token, token);
      else throw new Error(`${token} is not known`);
      if (code === undefined) range = 'none';
      continue;
    }
    if (char === '\\') throw new Error('a single \\ is at the end');
    if (isInClass) {
      index += char.length;
      if (char === ']') {
        add(char, char);
        isInClass = false;
      } else if (char === '-' && range === 'start' && pattern[index] !== ']') {
        add(char, char);
        range = 'open';
      } else {
        addCharacter(char.codePointAt(0) ?? 0);
      }
      continue;
    }
    const part = readAt(GROUP, pattern, index) ?? readAt(REPEAT, pattern, index) ?? char;
    index += part.length;
    if (char === '[') {
      const isNegated = pattern[index] === '^';
      if (isNegated) index += 1;
      const head = isNegated ? '[^' : '[';
      if (pattern[index] === ']') {
        index += 1;
        add(`${head}]`, isNegated ? `[${ALL}]` : `[^${ALL}]`);
      } else {
        add(head, head);
        isInClass = true;
        range = 'none';
      }
    } else if (part.startsWith('(?')) {
      if (part !== '(?:' && !/^\(\?<[^=!]/.test(part)) throw new Error(`${part} is not known`);
      add(part, '(?:');
    } else if (char === '(') add(char, '(?:');
    else if (char === '.') add(char, ANY);
    else if (char === '^') add(char, '\\A');
    else if (char === '$') add(char, '\\z');
    else if (part.length > char.length || /^[)|*+?]$/.test(char)) add(part, part);
    else addCharacter(char.codePointAt(0) ?? 0);
  }
  // Only compiled, to check the pattern: it matches no text.
  new RegExp(checked, 'u');
  return written;
}
