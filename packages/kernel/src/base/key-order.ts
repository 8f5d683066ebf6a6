/**
 * The order in which a caller wrote the keys of its objects, beside the objects. JavaScript lists keys that read as integers first,
 * and a schema lists those that it names as it names them; texts that are made by `jsonText` have the caller's order again.
 *
 * K1  An order is a hint: keys that are gone are skipped, keys that were added since follow. A value without one is printed as JavaScript prints it.
 * K2  Whoever copies an object of a caller copies its order (`parseJsonValue`, `sanitizeJson`, `safeParse`).
 */
import { tokensOf } from './json-tokens.js';

/** Only of objects which JavaScript lists in another order. */
const orders = new WeakMap<object, readonly string[]>();

const isPlain = (value: unknown): value is Readonly<Record<string, unknown>> => {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
};

/** The keys of an object in the order of its writer. */
export function keysOf(value: object): readonly string[] {
  const order = orders.get(value);
  const keys = Object.keys(value);
  if (order === undefined) return keys;
  return [...new Set([...order.filter((key) => Object.hasOwn(value, key)), ...keys])];
}

/** The order that is kept for an object; undefined where it is JavaScript's. */
export const keptOrderOf = (value: object): readonly string[] | undefined => orders.get(value);

/** Says in which order the writer of an object listed its keys. */
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

/** Gives what was made of an input the key order of the input, at any depth. */
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
  /** Of an object, as they come; undefined for a list. */
  readonly keys: Set<string> | undefined;
  key: string | undefined;
  items: number;
}

/** The next value inside an open one; undefined where equal keys were of different kinds. */
function nextIn(open: OpenValue): unknown {
  const at = open.keys === undefined ? open.items++ : open.key;
  open.key = undefined;
  return typeof open.value === 'object' && open.value !== null && at !== undefined
    ? Reflect.get(open.value, at)
    : undefined;
}

/** Keeps the order of each object of a valid text. Without recursion: the text may be nested more deeply than any stack. */
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

/** A key of digits; also as an escape, as which nobody writes them. All others are in their order already. */
const HAS_INTEGER_KEY = /"(?:\d|\\u003\d)+"\s*:/;

/**
 * `JSON.parse` for texts of callers: `jsonText` of what it returns has their key order. Of equal keys the first says the place, the last the value.
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

/** `JSON.stringify` in the key order in which the value was written. */
export const jsonText = (value: unknown): string =>
  (hasOrder(value) ? print(value) : JSON.stringify(value)) ?? 'null';
