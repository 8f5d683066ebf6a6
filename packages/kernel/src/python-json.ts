/** JSON as the original prints it: `json.dumps(value, ensure_ascii=False)`, with a blank behind each comma and colon. */
import type { JsonValue } from './json.js';

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*|[{}[\],:]|true|false|null/gs;
const IS_FLOAT = /[.eE]/;

/** Python's `repr` of a float: shortest digits, as a power of ten below 1e-4 and from 1e16 on. */
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
  if (first === ',' || first === ':') return `${first} `;
  if (first !== '-' && (first < '0' || first > '9')) return token;
  if (IS_FLOAT.test(token)) return pythonFloat(Number(token));
  return token === '-0' ? '0' : token;
}

/** A JSON text, which must be valid, as the original would print what it reads from it: numbers keep what is beyond ours. */
export const pythonJsonText = (text: string): string => (text.match(TOKENS) ?? []).map(pythonToken).join('');

/** Numbers without a fraction are printed as integers. */
export const pythonJson = (value: JsonValue): string => pythonJsonText(JSON.stringify(value));

/** Steps over the value that begins at `at`; gives the index behind its last token. */
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

/** Where the member or item begins in the object or array that begins at `at`; the last of equal keys, as readers do. */
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

/** The value at `path` in a valid JSON text, as the original would print it; undefined when there is none. */
export function pythonJsonAt(text: string, path: readonly (string | number)[]): string | undefined {
  const tokens = text.match(TOKENS) ?? [];
  let at = 0;
  for (const key of path) {
    if (tokens[at] !== '{' && tokens[at] !== '[') return undefined;
    const found = findMember(tokens, at, key);
    if (found === undefined) return undefined;
    at = found;
  }
  return tokens.slice(at, skipValue(tokens, at)).map(pythonToken).join('');
}
