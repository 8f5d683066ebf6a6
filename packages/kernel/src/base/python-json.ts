/**
 * JSON as Bub, a Python program, reads and prints it: `json.loads`, and `json.dumps(value, ensure_ascii=False)` with a
 * blank after each comma and colon. It accepts `NaN`, `Infinity` and `-Infinity` in addition to JSON.
 */
import type { JsonValue } from './json.js';
import { tokensOf } from './json-tokens.js';
import { jsonText, parseJson } from './key-order.js';

const IS_FLOAT = /[.eE]/;

const NO_JSON: ReadonlySet<string> = new Set(['NaN', 'Infinity', '-Infinity']);

/**
 * The value of a text, which may begin with a byte order mark. Numbers that JSON does not have become null.
 *
 * @throws SyntaxError for a text that Bub cannot read either.
 */
export function readPythonJson(text: string): unknown {
  const plain = text.startsWith('\uFEFF') ? text.slice(1) : text;
  try {
    return parseJson(plain);
  } catch (error) {
    if (!/NaN|Infinity/.test(plain)) throw error;
    // Joined with blanks, so that separate tokens stay separate.
    const tokens = tokensOf(plain).map((token) => (NO_JSON.has(token) ? 'null' : token));
    return parseJson(tokens.join(' '));
  }
}

/** Python's `repr` of a float: shortest digits, with an exponent below 1e-4 and from 1e16 on. */
function pythonFloat(value: number): string {
  if (!Number.isFinite(value)) return value > 0 ? 'Infinity' : '-Infinity';
  const sign = value < 0 || Object.is(value, -0) ? '-' : '';
  const [mantissa = '0', power = '0'] = Math.abs(value).toExponential().split('e');
  const exponent = Number(power);
  if (exponent < -4 || exponent >= 16) {
    const size = String(Math.abs(exponent)).padStart(2, '0');
    return `${sign}${mantissa}e${exponent < 0 ? '-' : '+'}${size}`;
  }
  const digits = mantissa.replace('.', '');
  if (exponent < 0) return `${sign}0.${'0'.repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, '0');
  return `${sign}${whole}.${digits.slice(exponent + 1) || '0'}`;
}

function pythonToken(token: string): string {
  const first = token[0] ?? '';
  if (first === '"') return token.includes('\\') ? JSON.stringify(JSON.parse(token)) : token;
  if (first !== '-' && (first < '0' || first > '9')) return token;
  if (IS_FLOAT.test(token)) return pythonFloat(Number(token));
  return token === '-0' ? '0' : token;
}

interface OpenValue {
  readonly isObject: boolean;
  readonly items: string[];
  /** For repeated keys, the first decides the place and the last decides the value. */
  readonly members: Map<string, string>;
  key: string | undefined;
}

const closeValue = ({ isObject, items, members }: OpenValue): string =>
  isObject
    ? `{${[...members].map(([key, value]) => `${key}: ${value}`).join(', ')}}`
    : `[${items.join(', ')}]`;

/** Prints the tokens of one value as Bub would print the value that it reads from them. */
function printTokens(tokens: readonly string[]): string {
  const root: OpenValue = { isObject: false, items: [], members: new Map(), key: undefined };
  const open = [root];
  for (const token of tokens) {
    const inside = open.at(-1) ?? root;
    if (token === ',' || token === ':') continue;
    if (token === '{' || token === '[') {
      open.push({ isObject: token === '{', items: [], members: new Map(), key: undefined });
      continue;
    }
    const isEnd = token === '}' || token === ']';
    if (isEnd) open.pop();
    const holder = open.at(-1) ?? root;
    const text = isEnd ? closeValue(inside) : pythonToken(token);
    if (!holder.isObject) holder.items.push(text);
    else if (holder.key === undefined) holder.key = text;
    else {
      holder.members.set(holder.key, text);
      holder.key = undefined;
    }
  }
  return root.items.join('');
}

/**
 * Prints a text that `readPythonJson` accepts as Bub would print its value. Numbers keep digits that JavaScript's
 * numbers cannot hold.
 */
export const pythonJsonText = (text: string): string => printTokens(tokensOf(text));

/** Prints a value; numbers without a fraction are printed as integers. */
export const pythonJson = (value: JsonValue): string =>
  tokensOf(jsonText(value))
    .map((token) => (token === ',' || token === ':' ? `${token} ` : pythonToken(token)))
    .join('');

/** Skips the value that begins at `at`; returns the index after its last token. */
function skipValue(tokens: readonly string[], at: number): number {
  let depth = 0;
  for (let index = at; index < tokens.length; index += 1) {
    const token = tokens[index];
    if (token === '{' || token === '[') depth += 1;
    else if (token === '}' || token === ']') depth -= 1;
    if (depth === 0) return index + 1;
  }
  return tokens.length;
}

/**
 * The index of a member or item in the object or array that begins at `at`. The last of several equal keys wins, as in
 * JSON readers.
 */
function findMember(tokens: readonly string[], at: number, key: string | number): number | undefined {
  let found: number | undefined;
  let index = at + 1;
  for (let item = 0; index < tokens.length && tokens[index] !== '}' && tokens[index] !== ']'; item += 1) {
    const isNamed = tokens[at] === '{';
    const name: unknown = isNamed ? JSON.parse(tokens[index] ?? '""') : item;
    const value = isNamed ? index + 2 : index;
    if (name === key) found = value;
    index = skipValue(tokens, value);
    if (tokens[index] === ',') index += 1;
  }
  return found;
}

/** The index of the value at `path`; undefined when there is no such value. */
function findValue(tokens: readonly string[], path: readonly (string | number)[]): number | undefined {
  let at: number | undefined = 0;
  for (const key of path) {
    if (at === undefined || (tokens[at] !== '{' && tokens[at] !== '[')) return undefined;
    at = findMember(tokens, at, key);
  }
  return at;
}

/** The value at `path` in a valid JSON text, as Bub would print it; undefined when there is no such value. */
export function pythonJsonAt(text: string, path: readonly (string | number)[]): string | undefined {
  const tokens = tokensOf(text);
  const at = findValue(tokens, path);
  return at === undefined ? undefined : printTokens(tokens.slice(at, skipValue(tokens, at)));
}

/**
 * Like {@link pythonJsonAt} for each item of the array at `path`; undefined when there is no array. Scans the text
 * once.
 */
export function pythonJsonItems(
  text: string,
  path: readonly (string | number)[],
): readonly string[] | undefined {
  const tokens = tokensOf(text);
  const at = findValue(tokens, path);
  if (at === undefined || tokens[at] !== '[') return undefined;
  const items: string[] = [];
  for (let index = at + 1; index < tokens.length && tokens[index] !== ']'; ) {
    const end = skipValue(tokens, index);
    items.push(printTokens(tokens.slice(index, end)));
    index = tokens[end] === ',' ? end + 1 : end;
  }
  return items;
}
