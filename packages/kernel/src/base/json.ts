import { hash } from 'node:crypto';
import { z } from 'zod';
import { cutEcho } from './error-limits.js';
import { KernelError, toText } from './errors.js';
import { jsonText, keptOrderOf, parseJson, setKeyOrder } from './key-order.js';

export type JsonValue = string | number | boolean | null | readonly JsonValue[] | JsonObject;
export interface JsonObject {
  readonly [key: string]: JsonValue;
}

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Any JSON object. `z.record` would drop a member named `__proto__`. */
export const jsonObjectSchema = z.custom<JsonObject>(isJsonObject, 'must be an object');

/** RFC 8785 text of a JSON value: keys sorted by UTF-16 code units, numbers and strings as ECMAScript prints them. */
export function canonicalJson(value: JsonValue): string {
  if (Array.isArray(value)) return `[${value.map((item) => canonicalJson(item)).join(',')}]`;
  if (isJsonObject(value)) {
    const members = Object.keys(value)
      .sort()
      .map((key) => `${JSON.stringify(key)}:${canonicalJson(value[key] ?? null)}`);
    return `{${members.join(',')}}`;
  }
  return JSON.stringify(value);
}

/** sha256 as lower-case hex. */
export function sha256(text: string): string {
  return hash('sha256', text, 'hex');
}

/** Levels of nesting. Postgres reads JSON recursively and fails at a few thousand. */
const MAX_DEPTH = 200;

/** True for a text that Postgres can store: no NUL, no lone surrogate. */
export const isCleanText = (text: string): boolean => !text.includes('\u0000') && text.isWellFormed();

/**
 * Checks that a value from a caller is plain JSON that Postgres can store: no NUL, no lone surrogate, no NaN, no
 * function, and at most 200 levels of nesting. Undefined members are dropped.
 *
 * @throws KernelError `bad_request` naming the path.
 */
export function parseJsonValue(value: unknown, path: string, depth = 0): JsonValue {
  const refuse = (why: string): never => {
    const field = cutEcho(path);
    throw new KernelError('bad_request', { message: `${field}: ${why}.`, details: { field } });
  };
  if (depth > MAX_DEPTH) return refuse(`is nested deeper than ${MAX_DEPTH} levels`);
  switch (typeof value) {
    case 'string':
      return isCleanText(value) ? value : refuse('contains a NUL character or a lone surrogate');
    case 'boolean':
      return value;
    case 'number':
      return Number.isFinite(value) ? value : refuse('is not a finite number');
    case 'object':
      break;
    default:
      return refuse(`a ${typeof value} is not JSON`);
  }
  if (value === null) return null;
  if (Array.isArray(value))
    return value.map((item, index) => parseJsonValue(item, `${path}.${index}`, depth + 1));
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) return refuse('is not a plain object');
  const result: Record<string, JsonValue> = {};
  for (const [key, member] of Object.entries(value)) {
    if (!isCleanText(key)) refuse('has a key with a NUL character or a lone surrogate');
    if (member === undefined) continue;
    Object.defineProperty(result, key, {
      value: parseJsonValue(member, `${path}.${key}`, depth + 1),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  const order = keptOrderOf(value);
  if (order !== undefined) setKeyOrder(result, order);
  return result;
}

export interface Sanitized<T> {
  readonly value: T;
  /** True when something was replaced; the card that stores the value records this in its metadata. */
  readonly isChanged: boolean;
}

/**
 * Replaces NUL and lone surrogates by U+FFFD, in the output of models and tools, which cannot be sent back for
 * correction.
 */
export function sanitizeText(text: string): Sanitized<string> {
  if (isCleanText(text)) return { value: text, isChanged: false };
  return { value: text.toWellFormed().replaceAll('\u0000', '\uFFFD'), isChanged: true };
}

const TOO_DEEP = '[nested too deeply]';

/** `JSON.stringify` for values that it refuses: a circular reference, a BigInt, nesting beyond any stack. */
function stringifyAnyway(value: unknown): string | undefined {
  const ancestors: unknown[] = [];
  try {
    return JSON.stringify(value, function (this: unknown, _key, member: unknown) {
      if (typeof member === 'bigint') return member.toString();
      if (typeof member !== 'object' || member === null) return member;
      // `this` holds the member. The traversal has left every ancestor after it.
      while (ancestors.length > 0 && ancestors.at(-1) !== this) ancestors.pop();
      if (ancestors.includes(member)) return '[circular]';
      if (ancestors.length >= MAX_DEPTH) return TOO_DEEP;
      ancestors.push(member);
      return member;
    });
  } catch {
    return JSON.stringify(toText(value));
  }
}

/**
 * Converts any return value of a tool to JSON that can be stored and that `parseJsonValue` accepts. A value that JSON
 * cannot express becomes its string form or null. Circular references, BigInt and parts that are nested too deeply
 * become text.
 */
export function sanitizeJson(value: unknown): Sanitized<JsonValue> {
  let text: string | undefined;
  let isChanged = false;
  try {
    text = jsonText(value);
  } catch {
    text = stringifyAnyway(value);
    isChanged = true;
  }
  const plain: unknown = text === undefined ? null : parseJson(text);
  const clean = (part: unknown, depth: number): JsonValue => {
    if (typeof part === 'string') {
      const sanitized = sanitizeText(part);
      isChanged ||= sanitized.isChanged;
      return sanitized.value;
    }
    if (typeof part !== 'object' || part === null) return part as number | boolean | null;
    if (depth >= MAX_DEPTH) {
      isChanged = true;
      return TOO_DEEP;
    }
    if (Array.isArray(part)) return part.map((item) => clean(item, depth + 1));
    const made = Object.fromEntries(
      Object.entries(part).map(
        ([key, member]) => [clean(key, depth) as string, clean(member, depth + 1)] as const,
      ),
    );
    const order = keptOrderOf(part)?.map((key) => sanitizeText(key).value);
    if (order !== undefined) setKeyOrder(made, order);
    return made;
  };
  return { value: clean(plain, 0), isChanged };
}
