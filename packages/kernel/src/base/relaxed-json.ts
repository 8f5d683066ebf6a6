/**
 * JSON as people type it: keys and single words need no quotes, quotes may be single, a comma may follow the last
 * member.
 * `{goal: "Build API", tables: 5, done: true, owner: ana}`
 */
import { KernelError } from './errors.js';
import { type JsonValue, parseJsonValue } from './json.js';
import { setKeyOrder } from './key-order.js';

const STRING = /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/sy;
const WORD = /[^\s,:{}[\]"']+/y;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
const WORDS: ReadonlyMap<string, JsonValue> = new Map([
  ['true', true],
  ['false', false],
  ['null', null],
]);
/** Deeper than any JSON that can be stored. */
const MAX_DEPTH = 250;

class RelaxedReader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  read(): JsonValue {
    const value = this.#value(0);
    if (this.#peek() !== '') this.#refuse('ends too late');
    return value;
  }

  #refuse(why: string): never {
    throw new KernelError('bad_request', {
      message: `Not readable as JSON at character ${this.#at + 1}: ${why}: ${this.#text.slice(0, 200)}.`,
      details: { at: this.#at },
    });
  }

  #peek(): string {
    while (/\s/.test(this.#text[this.#at] ?? '')) this.#at += 1;
    return this.#text[this.#at] ?? '';
  }

  #take(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const [found] = pattern.exec(this.#text) ?? [];
    if (found !== undefined) this.#at += found.length;
    return found;
  }

  /** A quoted text or a word; the caller distinguishes them. */
  #token(): { readonly text: string; readonly isQuoted: boolean } {
    const quoted = this.#take(STRING);
    if (quoted !== undefined) return { text: this.#unquote(quoted), isQuoted: true };
    const text = this.#take(WORD);
    return text === undefined ? this.#refuse('a value is missing') : { text, isQuoted: false };
  }

  #unquote(quoted: string): string {
    // Quotes of the other kind and line ends need no escape here.
    const inner = quoted
      .slice(1, -1)
      .replaceAll(/\\(.)|"/gs, (found, escaped) => (found === '"' ? '\\"' : escaped === "'" ? "'" : found))
      .replaceAll('\n', '\\n')
      .replaceAll('\r', '\\r')
      .replaceAll('\t', '\\t');
    try {
      const text: unknown = JSON.parse(`"${inner}"`);
      return String(text);
    } catch {
      return this.#refuse('a text has an escape that JSON does not know');
    }
  }

  #value(depth: number): JsonValue {
    if (depth > MAX_DEPTH) this.#refuse('is nested too deeply');
    const first = this.#peek();
    if (first === '{') return this.#object(depth);
    if (first === '[') return this.#list(depth);
    const { text, isQuoted } = this.#token();
    if (isQuoted) return text;
    const known = WORDS.get(text);
    if (known !== undefined) return known;
    return NUMBER.test(text) ? Number(text) : text;
  }

  /** True when another member follows; a comma may precede the end. */
  #goesOn(end: string): boolean {
    const next = this.#peek();
    if (next === ',') {
      this.#at += 1;
      if (this.#peek() !== end) return true;
    } else if (next !== end) this.#refuse(`a comma or ${end} is missing`);
    this.#at += 1;
    return false;
  }

  #isEmpty(end: string): boolean {
    this.#at += 1;
    if (this.#peek() !== end) return false;
    this.#at += 1;
    return true;
  }

  #list(depth: number): JsonValue {
    const items: JsonValue[] = [];
    if (this.#isEmpty(']')) return items;
    do items.push(this.#value(depth + 1));
    while (this.#goesOn(']'));
    return items;
  }

  #object(depth: number): JsonValue {
    const members: [string, JsonValue][] = [];
    if (this.#isEmpty('}')) return {};
    do {
      this.#peek();
      const { text } = this.#token();
      if (this.#peek() !== ':') this.#refuse('a colon is missing');
      this.#at += 1;
      members.push([text, this.#value(depth + 1)]);
    } while (this.#goesOn('}'));
    const made = Object.fromEntries(members);
    setKeyOrder(made, [...new Set(members.map(([key]) => key))]);
    return made;
  }
}

/** @throws KernelError `bad_request` for a text that is not a value of this form, or that cannot be stored. */
export const parseRelaxedJson = (text: string): JsonValue =>
  parseJsonValue(new RelaxedReader(text).read(), 'value');
