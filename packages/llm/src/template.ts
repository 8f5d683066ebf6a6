/**
 * The templates of scripts: `{{pointer}}`, `{{helper:pointer}}`, `{{helper(argument):helper:pointer}}`. Pure.
 *
 * A pointer is a root and a path in the manner of RFC 6901 (`~1` is a `/` in a key, `~0` a `~`):
 *   instruction, instruction/path     the turn's instruction; text is read as JSON when a path follows
 *   results/<tool>, …/path            the result of the last call of that tool in this turn
 *   results/<tool>/*, …/path          the results of all its calls in this turn, in call order; no call: []
 *   item, item/path, index            the current item of a `forEach`, and its position from 0
 * `*` matches every element of a list or every value of an object; a pointer with one or more `*` yields the flat list of its matches.
 * Helpers are applied from right to left.
 *
 * P1  A string that consists of exactly one template yields the value, with its JSON type. Within longer text strings are inserted
 *     unchanged and other values as JSON.
 * P2  The value that a pointer names must exist, and a helper must get a suitable value; otherwise the template is refused.
 * P3  Values that were filled in are never read as templates again.
 */
import { canonicalJson, isJsonObject, type JsonValue } from '@boxcar/kernel';

const ROOTS = ['instruction', 'results', 'item', 'index'] as const;

interface Pointer {
  readonly root: (typeof ROOTS)[number];
  readonly segments: readonly string[];
}

interface HelperUse {
  readonly name: string;
  readonly argument: string;
  readonly helper: Helper;
}

interface Template {
  /** In the order of application. */
  readonly helpers: readonly HelperUse[];
  readonly pointer: Pointer;
}

export type ParsedTemplate =
  | { readonly outcome: 'parsed'; readonly template: Template }
  | { readonly outcome: 'refused'; readonly why: string };

/** The values that templates can read. */
export interface TemplateScope {
  /** Null when the turn has none. */
  readonly instruction: JsonValue;
  /** The results of this turn's calls of `tool`, in call order. */
  results(tool: string): readonly JsonValue[];
  readonly item?: { readonly value: JsonValue; readonly index: number } | undefined;
  /** Throws an error that names the position in the script. */
  refuse(why: string): never;
}

type Refuse = (why: string) => never;

interface Helper {
  readonly argument: 'none' | 'optional' | 'required';
  readonly argumentPattern?: RegExp;
  apply(value: JsonValue, argument: string, refuse: Refuse): JsonValue;
}

/** `Array.isArray` for JSON, which keeps the element type. */
export const isList = (value: JsonValue): value is readonly JsonValue[] => Array.isArray(value);

/** The JSON kind of a value, for messages. */
export const shapeOf = (value: JsonValue): string => {
  if (value === null) return 'null';
  return isList(value) ? 'a list' : typeof value === 'object' ? 'an object' : `a ${typeof value}`;
};

const asList = (value: JsonValue, refuse: Refuse): readonly JsonValue[] =>
  isList(value) ? value : refuse(`needs a list, got ${shapeOf(value)}`);

const asFilledList = (value: JsonValue, refuse: Refuse): readonly [JsonValue, ...JsonValue[]] => {
  const [first, ...rest] = asList(value, refuse);
  return first === undefined ? refuse('needs at least one element, the list is empty') : [first, ...rest];
};

const asNumbers = (value: JsonValue, refuse: Refuse): readonly number[] =>
  asList(value, refuse).map((element, index) =>
    typeof element === 'number' ? element : refuse(`needs numbers, element ${index} is ${shapeOf(element)}`),
  );

const asFilledNumbers = (value: JsonValue, refuse: Refuse): readonly number[] =>
  asNumbers(asFilledList(value, refuse), refuse);

/** The text form of a value within longer text. */
const textOf = (value: JsonValue): string => (typeof value === 'string' ? value : JSON.stringify(value));

function sortList(value: JsonValue, argument: string, refuse: Refuse): JsonValue {
  const isDescending = argument.startsWith('-');
  const segments = splitPath(isDescending ? argument.slice(1) : argument);
  const keyed = asList(value, refuse).map((element, index) => ({
    element,
    key: readPath(element, segments, `element ${index}`, refuse),
  }));
  const kinds = new Set(keyed.map(({ key }) => typeof key));
  if (kinds.size > 1 || kinds.has('object') || kinds.has('boolean')) {
    return refuse('needs numbers only or strings only to compare');
  }
  const compare = (left: JsonValue, right: JsonValue): number => {
    if (typeof left === 'number' && typeof right === 'number') return left - right;
    const [a, b] = [textOf(left), textOf(right)];
    return a < b ? -1 : a > b ? 1 : 0;
  };
  const sign = isDescending ? -1 : 1;
  return keyed.toSorted((left, right) => sign * compare(left.key, right.key)).map(({ element }) => element);
}

const HELPERS: ReadonlyMap<string, Helper> = new Map<string, Helper>([
  [
    'count', // elements of a list, members of an object
    {
      argument: 'none',
      apply: (value, _argument, refuse) =>
        isJsonObject(value) ? Object.keys(value).length : asList(value, refuse).length,
    },
  ],
  [
    'sum', // of numbers; the sum of no numbers is 0
    {
      argument: 'none',
      apply: (value, _argument, refuse) => asNumbers(value, refuse).reduce((total, part) => total + part, 0),
    },
  ],
  [
    'max',
    {
      argument: 'none',
      apply: (value, _argument, refuse) =>
        asFilledNumbers(value, refuse).reduce((best, part) => Math.max(best, part)),
    },
  ],
  [
    'min',
    {
      argument: 'none',
      apply: (value, _argument, refuse) =>
        asFilledNumbers(value, refuse).reduce((best, part) => Math.min(best, part)),
    },
  ],
  ['first', { argument: 'none', apply: (value, _argument, refuse) => asFilledList(value, refuse)[0] }],
  [
    'last',
    {
      argument: 'none',
      apply: (value, _argument, refuse) => {
        const list = asFilledList(value, refuse);
        return list.at(-1) ?? list[0];
      },
    },
  ],
  [
    'take', // take(n): the first n elements, or all when there are fewer
    {
      argument: 'required',
      argumentPattern: /^\d{1,9}$/,
      apply: (value, argument, refuse) => asList(value, refuse).slice(0, Number(argument)),
    },
  ],
  [
    'unique', // keeps the first of equal values
    {
      argument: 'none',
      apply: (value, _argument, refuse) => {
        const seen = new Set<string>();
        return asList(value, refuse).filter((element) => {
          const key = canonicalJson(element);
          return !seen.has(key) && seen.add(key);
        });
      },
    },
  ],
  // sort, sort(-), sort(path), sort(-path): stable, by the element or by its value at the path; - sorts in descending order
  ['sort', { argument: 'optional', apply: sortList }],
  [
    'get', // get(path): the value at the path in the value on its right, `*` included
    {
      argument: 'required',
      apply: (value, argument, refuse) => readPath(value, splitPath(argument), '', refuse),
    },
  ],
  [
    'after', // after(text): the text after the first `text`, up to the end of that line
    {
      argument: 'required',
      apply: (value, argument, refuse) => {
        if (typeof value !== 'string') return refuse(`needs text, got ${shapeOf(value)}`);
        const start = value.indexOf(argument);
        if (start === -1) return refuse(`'${argument}' is not in the text`);
        const [line = ''] = value.slice(start + argument.length).split(/\r?\n/, 1);
        return line.trim();
      },
    },
  ],
  [
    'join',
    {
      argument: 'none',
      apply: (value, _argument, refuse) => asList(value, refuse).map(textOf).join(', '),
    },
  ],
  ['json', { argument: 'none', apply: (value) => JSON.stringify(value) }],
]);

/** The path's segments, unescaped; an empty path has no segments. */
function splitPath(path: string): readonly string[] {
  if (path === '') return [];
  return path.split('/').map((segment) => segment.replaceAll('~1', '/').replaceAll('~0', '~'));
}

function readPath(value: JsonValue, segments: readonly string[], at: string, refuse: Refuse): JsonValue {
  const [segment, ...rest] = segments;
  if (segment === undefined) return value;
  const here = at === '' ? segment : `${at}/${segment}`;
  if (segment === '*') {
    if (!isList(value) && !isJsonObject(value)) return refuse(`${here}: ${shapeOf(value)} has no elements`);
    const members = isList(value) ? [...value.entries()] : Object.entries(value);
    const found = members.map(([key, member]) =>
      readPath(member, rest, at === '' ? String(key) : `${at}/${key}`, refuse),
    );
    return rest.includes('*') ? found.flatMap((part) => (isList(part) ? part : [part])) : found;
  }
  if (isList(value)) {
    const element = /^\d+$/.test(segment) ? value[Number(segment)] : undefined;
    return element === undefined
      ? refuse(`${here} is missing; the list has ${value.length} elements`)
      : readPath(element, rest, here, refuse);
  }
  if (isJsonObject(value)) {
    const member = Object.hasOwn(value, segment) ? value[segment] : undefined;
    return member === undefined
      ? refuse(`${here} is missing; there ${describeKeys(Object.keys(value))}`)
      : readPath(member, rest, here, refuse);
  }
  return refuse(`${here} is missing; ${shapeOf(value)} has no members`);
}

function describeKeys(keys: readonly string[]): string {
  if (keys.length === 0) return 'is nothing';
  const shown = keys.slice(0, 12).join(', ');
  return `${keys.length === 1 ? 'is' : 'are'} ${shown}${keys.length > 12 ? ', …' : ''}`;
}

const HELPER_USE = /^([A-Za-z_]+)(?:\(([^()]*)\))?:/;

/** Parses the text between `{{` and `}}`. */
function parseTemplate(source: string): ParsedTemplate {
  const refused = (why: string): ParsedTemplate => ({ outcome: 'refused', why: `{{${source}}}: ${why}` });
  const helpers: HelperUse[] = [];
  let rest = source.trim();
  for (let match = HELPER_USE.exec(rest); match !== null; match = HELPER_USE.exec(rest)) {
    const [whole, name = '', argument] = match;
    const helper = HELPERS.get(name);
    if (helper === undefined)
      return refused(`no helper '${name}'; known are ${[...HELPERS.keys()].join(', ')}`);
    if (helper.argument === 'none' && argument !== undefined) return refused(`${name} takes no argument`);
    if (helper.argument === 'required' && (argument ?? '') === '')
      return refused(`${name}(…) needs an argument`);
    if (helper.argumentPattern?.test(argument ?? '') === false)
      return refused(`${name}(${argument}) needs a number`);
    helpers.unshift({ name, argument: argument ?? '', helper });
    rest = rest.slice(whole.length).trimStart();
  }
  const [first, ...segments] = splitPath(rest);
  const root = ROOTS.find((known) => known === first);
  if (root === undefined)
    return refused(`a pointer begins with ${ROOTS.join(', ')}, not with '${first ?? ''}'`);
  if (root === 'results' && (segments[0] === undefined || segments[0] === '*')) {
    return refused('name the tool: results/<tool>');
  }
  if (root === 'index' && segments.length > 0) return refused('index is a number and has no path');
  if (segments.includes('')) return refused('a path has an empty segment');
  return { outcome: 'parsed', template: { helpers, pointer: { root, segments } } };
}

const HOLE = /\{\{([^{}]*)\}\}/g;
const EXACT = /^\{\{([^{}]*)\}\}$/;

/** The template when a text consists of exactly one; otherwise undefined. */
export const exactTemplate = (text: string): string | undefined => EXACT.exec(text)?.[1];

/** Every template of a text in order; a `{{` that does not begin a valid template is a refused template. */
export function parseTemplates(text: string): readonly ParsedTemplate[] {
  const parsed = [...text.matchAll(HOLE)].map(([, source = '']) => parseTemplate(source));
  if (!text.replaceAll(HOLE, '').includes('{{')) return parsed;
  return [...parsed, { outcome: 'refused', why: 'a {{ without its }}' }];
}

function parseOrRefuse(source: string, refuse: Refuse): Template {
  const parsed = parseTemplate(source);
  return parsed.outcome === 'parsed' ? parsed.template : refuse(parsed.why);
}

function readRoot({ root, segments }: Pointer, scope: TemplateScope): JsonValue {
  switch (root) {
    case 'instruction': {
      if (scope.instruction === null) return scope.refuse('instruction is missing; this turn has none');
      const isTextWithPath = segments.length > 0 && typeof scope.instruction === 'string';
      const value = isTextWithPath ? parseJsonOrText(textOf(scope.instruction)) : scope.instruction;
      return readPath(value, segments, root, scope.refuse);
    }
    case 'results': {
      const [tool = '', ...path] = segments;
      const all = scope.results(tool);
      const at = `results/${tool}`;
      if (path[0] === '*') return readPath(all, path, at, scope.refuse);
      const last = all.at(-1);
      return last === undefined
        ? scope.refuse(`${at} is missing; this turn has no result of that tool`)
        : readPath(last, path, at, scope.refuse);
    }
    case 'item':
    case 'index': {
      if (scope.item === undefined)
        return scope.refuse(`${root} is missing; only the calls of a forEach have it`);
      return root === 'index' ? scope.item.index : readPath(scope.item.value, segments, root, scope.refuse);
    }
    default:
      return root satisfies never;
  }
}

function evaluate(source: string, scope: TemplateScope): JsonValue {
  const { helpers, pointer } = parseOrRefuse(source, (why) => scope.refuse(why));
  const located: TemplateScope = { ...scope, refuse: (why) => scope.refuse(`{{${source}}}: ${why}`) };
  return helpers.reduce<JsonValue>(
    (value, { name, argument, helper }) =>
      helper.apply(value, argument, (why) => scope.refuse(`{{${source}}}: ${name} ${why}`)),
    readRoot(pointer, located),
  );
}

/** A text with its templates filled in (P1). */
export function fillText(text: string, scope: TemplateScope): string {
  return text.replaceAll(HOLE, (_hole, source: string) => textOf(evaluate(source, scope)));
}

/** A list element that produces one element per item of a list: `{ $forEach: '{{list}}', $item: <value> }`. */
export interface RepeatedElement {
  readonly $forEach: JsonValue;
  readonly $item: JsonValue;
}

export const isRepeatedElement = (value: JsonValue): value is JsonValue & RepeatedElement =>
  isJsonObject(value) && Object.hasOwn(value, '$forEach') && Object.hasOwn(value, '$item');

function fillRepeated({ $forEach, $item }: RepeatedElement, scope: TemplateScope): readonly JsonValue[] {
  const items = fillValue($forEach, scope);
  if (!isList(items))
    return scope.refuse(`${textOf($forEach)}: $forEach needs a list, got ${shapeOf(items)}`);
  return items.map((item, index) => fillValue($item, { ...scope, item: { value: item, index } }));
}

/** A JSON value with the templates in its strings filled in (P1) and repeated elements expanded; keys stay unchanged. */
export function fillValue(value: JsonValue, scope: TemplateScope): JsonValue {
  if (typeof value === 'string') {
    const source = exactTemplate(value);
    return source === undefined ? fillText(value, scope) : evaluate(source, scope);
  }
  if (isList(value))
    return value.flatMap((element) =>
      isRepeatedElement(element) ? fillRepeated(element, scope) : [fillValue(element, scope)],
    );
  if (!isJsonObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, fillValue(member, scope)]));
}

/** The parsed value when the text is JSON, else the text. */
export function parseJsonOrText(text: string): JsonValue {
  try {
    const value: JsonValue = JSON.parse(text);
    return value;
  } catch {
    return text;
  }
}
