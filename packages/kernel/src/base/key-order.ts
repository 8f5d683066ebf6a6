/**
 * Remembers the order in which a caller wrote the keys of its objects. JavaScript lists keys that look like integers
 * first, and a schema lists the keys that it names in its own order. Texts from `jsonText` have the caller's order
 * again.
 *
 * K1  An order is a hint: missing keys are skipped, and keys added since then follow. A value without an order is
 *     printed in JavaScript's order.
 * K2  Code that copies a caller's object copies its order (`parseJsonValue`, `sanitizeJson`, `safeParse`).
 */
import { tokensOf } from './json-tokens.js';

/** Holds only objects whose order differs from JavaScript's. */
const orders = new WeakMap<object, readonly string[]>();

const isPlain = (value: unknown): value is Readonly<Record<string, unknown>> => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
};

/** The keys of an object in its author's order. */
export function keysOf(value: object): readonly string[] {
  const order = orders.get(value);
  const keys = Object.keys(value);
  if (order === undefined) return keys;
  return [...new Set([...order.filter((key) => Object.hasOwn(value, key)), ...keys])];
}

/** The remembered order of an object; undefined when it equals JavaScript's order. */
export const keptOrderOf = (value: object): readonly string[] | undefined => orders.get(value);

/** Records the order in which the author of an object listed its keys. */
export function setKeyOrder(value: object, order: readonly string[]): void {
  const keys = Object.keys(value);
  let inPlace = 0;
  for (const key of order) {
    if (key === keys[inPlace]) inPlace += 1;
    else if (Object.hasOwn(value, key)) {
      orders.set(value, order);
      return;
    }
  }
  orders.delete(value);
}

/** Gives an object derived from an input the key order of the input, at any depth. */
export function copyKeyOrder(input: unknown, made: unknown): void {
  if (input === made) return;
  if (Array.isArray(input) && Array.isArray(made)) {
    for (const [index, item] of input.entries()) copyKeyOrder(item, made[index]);
    return;
  }
  if (!isPlain(input) || !isPlain(made)) return;
  const keys = keysOf(input);
  setKeyOrder(made, keys);
  for (const key of keys) if (Object.hasOwn(made, key)) copyKeyOrder(input[key], made[key]);
}

interface OpenValue {
  readonly value: unknown;
  /** The keys of an object in the order of the text; undefined for a list. */
  readonly keys: Set<string> | undefined;
  key: string | undefined;
  items: number;
}

/** The next value inside an open value; undefined when values of the same key were of different kinds. */
function nextIn(open: OpenValue): unknown {
  const at = open.keys === undefined ? open.items++ : open.key;
  open.key = undefined;
  return typeof open.value === 'object' && open.value !== null && at !== undefined
    ? Reflect.get(open.value, at)
    : undefined;
}

/**
 * Records the key order of each object in a valid text. It avoids recursion, because the text may be nested more deeply
 * than any stack.
 */
function keepOrders(root: unknown, text: string): void {
  const open: OpenValue[] = [];
  for (const token of tokensOf(text)) {
    if (token === ',' || token === ':') continue;
    const holder = open.at(-1);
    if (token === '}' || token === ']') {
      open.pop();
      if (holder?.keys !== undefined && isPlain(holder.value)) setKeyOrder(holder.value, [...holder.keys]);
      continue;
    }
    if (holder?.keys !== undefined && holder.key === undefined) {
      holder.key = String(JSON.parse(token));
      holder.keys.add(holder.key);
      continue;
    }
    const value = holder === undefined ? root : nextIn(holder);
    if (token === '{' || token === '[')
      open.push({ value, keys: token === '{' ? new Set() : undefined, key: undefined, items: 0 });
  }
}

/** Matches a key of digits, also written as escapes. All other keys already keep their order. */
const HAS_INTEGER_KEY = /"(?:\d|\\u003\d)+"\s*:/;

/**
 * `JSON.parse` for texts of callers: `jsonText` of the result has the text's key order. For repeated keys, the first
 * decides the place and the last decides the value.
 *
 * @throws SyntaxError.
 */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (HAS_INTEGER_KEY.test(text)) keepOrders(value, text);
  return value;
}

function hasOrder(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false;
  return orders.has(value) || Object.values(value).some(hasOrder);
}

function print(value: unknown): string | undefined {
  if (Array.isArray(value)) return `[${value.map((item) => print(item) ?? 'null').join(',')}]`;
  if (!isPlain(value) || typeof value.toJSON === 'function') return JSON.stringify(value);
  const members = keysOf(value).flatMap((key) => {
    const member = print(value[key]);
    return member === undefined ? [] : [`${JSON.stringify(key)}:${member}`];
  });
  return `{${members.join(',')}}`;
}

/** `JSON.stringify` in the key order of the value's author. */
export const jsonText = (value: unknown): string =>
  (hasOrder(value) ? print(value) : JSON.stringify(value)) ?? 'null';
