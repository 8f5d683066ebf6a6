/**
 * Reports the problems of an input to its author: the place in the input, and the values allowed there. All findings of
 * an input are reported at once.
 */
import type { z } from 'zod';
import { cutEcho } from './error-limits.js';
import { KernelError, toText } from './errors.js';
import { copyKeyOrder } from './key-order.js';
import { suggest } from './suggest.js';

export interface Finding {
  /** The place in the input, with dots; empty for the input itself. */
  readonly path: string;
  readonly message: string;
  /** The unknown keys at this place. */
  readonly keys?: readonly string[];
}

type Issue = z.core.$ZodIssue;
type RawIssue<T extends z.core.$ZodIssueBase = Issue> = z.core.$ZodRawIssue<T>;

const KINDS: Readonly<Record<string, string>> = {
  string: 'a string',
  number: 'a number',
  int: 'a whole number',
  bigint: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  tuple: 'a list',
  object: 'an object',
  record: 'an object',
  map: 'an object',
  date: 'a date',
  null: 'null',
  never: 'left out',
};

export const kindWords = (kind: string): string =>
  (Object.hasOwn(KINDS, kind) ? KINDS[kind] : undefined) ?? kind;

/** The kind of an input in words; undefined when the kind gives no information. */
function kindOf(input: unknown): string | undefined {
  if (input === null) return 'null';
  if (Array.isArray(input)) return 'a list';
  switch (typeof input) {
    case 'string':
      return 'a string';
    case 'number':
      return Number.isNaN(input) ? 'NaN' : 'a number';
    case 'boolean':
      return String(input);
    case 'object':
      return 'an object';
    default:
      return undefined;
  }
}

const asJson = (value: unknown): string => (typeof value === 'string' ? `'${value}'` : toText(value));

/** `a, b or c` */
export const orList = (words: readonly string[]): string =>
  words.length < 2 ? (words[0] ?? '') : `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`;

export function mustBe(allowed: string, input: unknown, kind?: string): string {
  if (input === undefined) return `is missing; it must be ${allowed}`;
  const given = kindOf(input);
  return `must be ${allowed}${given === undefined || given === kind ? '' : `, not ${given}`}`;
}

/** The most words that a finding offers: values of a list, or known keys. */
const MAX_KNOWN = 40;

function listed(values: readonly unknown[]): string {
  if (values.length === 1) return asJson(values[0]);
  const more = values.length - MAX_KNOWN;
  const shown = values.slice(0, MAX_KNOWN).map(asJson).join(', ');
  return `one of ${shown}${more > 0 ? ` and ${more} more` : ''}`;
}

function oneOf(values: readonly unknown[], input: unknown): string {
  const allowed = listed(values);
  if (typeof input !== 'string') return mustBe(allowed, input);
  const names = values.filter((value) => typeof value === 'string');
  return `must be ${allowed}, not ${asJson(cutEcho(input))}${meant(input, names)}`;
}

/** `; did you mean 'x'?` when a known word is near, else an empty text. */
export function meant(word: string, known: readonly string[]): string {
  const near = suggest(word, known);
  return near === undefined || near === word ? '' : `; did you mean '${near}'?`;
}

const UNITS: Readonly<Record<string, string>> = {
  string: 'characters',
  array: 'items',
  set: 'items',
  map: 'members',
  object: 'members',
  file: 'bytes',
};

function limitWords(issue: RawIssue<z.core.$ZodIssueTooSmall | z.core.$ZodIssueTooBig>): string {
  const isLeast = issue.code === 'too_small';
  const limit = toText(isLeast ? issue.minimum : issue.maximum);
  const unit = Object.hasOwn(UNITS, issue.origin) ? UNITS[issue.origin] : undefined;
  if (unit !== undefined && isLeast && limit === '1') return 'must not be empty';
  const have = unit === undefined ? 'must be' : 'must have';
  const units = unit === undefined ? '' : ` ${limit === '1' ? unit.slice(0, -1) : unit}`;
  if (issue.inclusive === false) return `${have} ${isLeast ? 'more' : 'less'} than ${limit}${units}`;
  return `${have} ${isLeast ? 'at least' : 'at most'} ${limit}${units}`;
}

export const FORMATS: Readonly<Record<string, string>> = {
  datetime: 'a date and time with its zone, such as 2026-01-31T12:00:00Z',
  date: 'a date, such as 2026-01-31',
  time: 'a time, such as 12:00:00',
  email: 'an email address',
  url: 'a URL',
  json_string: 'JSON',
};

function formatWords({ format, ...issue }: RawIssue<z.core.$ZodIssueInvalidStringFormat>): string {
  const { pattern, prefix, suffix, includes } = issue as Readonly<Record<string, unknown>>;
  switch (format) {
    case 'regex':
      return `must match ${toText(pattern)}`;
    case 'starts_with':
      return `must begin with ${asJson(prefix)}`;
    case 'ends_with':
      return `must end with ${asJson(suffix)}`;
    case 'includes':
      return `must contain ${asJson(includes)}`;
    default:
      return `must be ${(Object.hasOwn(FORMATS, format) ? FORMATS[format] : undefined) ?? `a valid ${format}`}`;
  }
}

/** The keys that an object schema names. */
function keysOf(schema: unknown): readonly string[] {
  const shape: unknown = (schema as { _zod?: { def?: { shape?: unknown } } } | undefined)?._zod?.def?.shape;
  return typeof shape === 'object' && shape !== null ? Object.keys(shape) : [];
}

/** The most characters of unknown keys that a finding lists. */
const MAX_LISTED = 200;

export function unknownKeys(keys: readonly string[], known: readonly string[]): string {
  let room = MAX_LISTED;
  const shown = keys.filter((key, index) => {
    room -= key.length;
    return index === 0 || room >= 0;
  });
  const more = keys.length - shown.length;
  const near = shown.map((key) => suggest(key, known));
  const word = (key: string, index: number): string =>
    `'${cutEcho(key)}'${near[index] === undefined ? '' : ` (did you mean '${near[index]}'?)`}`;
  const list = `${shown.map(word).join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
  const isNear = !near.includes(undefined);
  const offered =
    isNear || known.length === 0 || known.length > MAX_KNOWN ? '' : `; known here are ${known.join(', ')}`;
  return `unknown ${keys.length === 1 ? 'key' : 'keys'} ${list}${offered}`;
}

const isKindIssue = ({ code, path }: Issue): boolean =>
  path.length === 0 && (code === 'invalid_type' || code === 'invalid_value');

/** The issue about the fixed word in member `key`, which distinguishes one alternative from the others. */
const markAt = (issues: readonly Issue[], key: PropertyKey) =>
  issues.find((issue) => issue.code === 'invalid_value' && issue.path.length === 1 && issue.path[0] === key);

const isRefusedAt = ({ code, path, ...issue }: Issue, key: PropertyKey): boolean =>
  path[0] === key || (code === 'unrecognized_keys' && 'keys' in issue && issue.keys.includes(String(key)));

/**
 * The alternative that the input was probably meant to be. Its kind matches, and it has the fewest findings. When a
 * fixed word distinguishes the alternatives, the alternative whose word matches wins. When no word matches, the finding
 * lists all the words.
 */
function nearestOf(alternatives: readonly (readonly Issue[])[]): readonly Issue[] | undefined {
  const near = alternatives
    .filter((issues) => issues.length > 0 && !issues.some(isKindIssue))
    .toSorted((a, b) => a.length - b.length);
  const [best] = near;
  const key = best?.find(({ code, path }) => code === 'invalid_value' && path.length === 1)?.path[0];
  if (near.length < 2 || key === undefined) return best;
  const named = near.find((issues) => !issues.some((issue) => isRefusedAt(issue, key)));
  if (named !== undefined) return named;
  const marks = near.map((issues) => markAt(issues, key));
  const [mark] = marks;
  if (mark === undefined || marks.includes(undefined)) return best;
  const words = marks.flatMap((one) => (one?.code === 'invalid_value' ? one.values : []));
  return [{ ...mark, message: `must be ${listed([...new Set(words)])}` }];
}

function unionWords(issue: RawIssue<z.core.$ZodIssueInvalidUnion>): string {
  const { errors, input } = issue;
  const { options } = issue as { readonly options?: readonly unknown[] };
  if (options !== undefined) {
    const { discriminator } = issue as { readonly discriminator?: string };
    const given = discriminator === undefined ? undefined : Reflect.get(Object(input), discriminator);
    return oneOf(options, given);
  }
  const allowed = errors.flat().flatMap((part): string[] => {
    if (part.code === 'invalid_type') return [kindWords(part.expected)];
    return part.code === 'invalid_value' ? part.values.map(asJson) : [];
  });
  const distinct = [...new Set(allowed)];
  if (distinct.length === 0) return 'is not one of the allowed values';
  const more = distinct.length - MAX_KNOWN;
  return mustBe(orList([...distinct.slice(0, MAX_KNOWN), ...(more > 0 ? [`${more} more`] : [])]), input);
}

/** The message for an issue whose schema has no message of its own. */
export const plainWords = (issue: RawIssue): string => {
  const { input } = issue;
  switch (issue.code) {
    case 'invalid_type':
      // A number that is not whole is still a number.
      return mustBe(kindWords(issue.expected), input, issue.expected === 'int' ? 'a number' : undefined);
    case 'invalid_value':
      return oneOf(issue.values, input);
    case 'too_small':
    case 'too_big':
      return limitWords(issue);
    case 'invalid_format':
      return formatWords(issue);
    case 'not_multiple_of':
      return `must be a multiple of ${issue.divisor}`;
    case 'unrecognized_keys':
      return unknownKeys(issue.keys, keysOf(issue.inst));
    case 'invalid_union':
      return unionWords(issue);
    case 'invalid_key':
      return 'has a key that is not allowed';
    case 'invalid_element':
      return 'has an item that is not allowed';
    default:
      return input === undefined ? 'is missing' : 'is not valid';
  }
};

/**
 * Applies a rule about several members of an object together with the rules of its members, so that all findings are
 * reported at once.
 */
export const whenObject = {
  when: ({ value }: z.core.ParsePayload): boolean =>
    typeof value === 'object' && value !== null && !Array.isArray(value),
};

/** `schema.safeParse` with the kernel's own messages; the result keeps the key order of the input. */
export function safeParse<T>(schema: z.ZodType<T>, value: unknown): z.ZodSafeParseResult<T> {
  const parsed = schema.safeParse(value, { error: plainWords });
  if (parsed.success) copyKeyOrder(value, parsed.data);
  return parsed;
}

/** The most findings that are listed: the number of possible findings grows with the input. */
const MAX_FINDINGS = 100;
/** The most findings in the message; the details hold all listed findings. */
const MAX_IN_MESSAGE = 10;

/**
 * All findings of a failure, up to 100. For a union, the findings of the alternative that was probably meant.
 *
 * @param field - The name of the input itself.
 */
export function findingsOf(error: z.ZodError, field = ''): readonly Finding[] {
  const found: Finding[] = [];
  const add = (issues: readonly Issue[], place: readonly PropertyKey[]): void => {
    for (const issue of issues) {
      if (found.length >= MAX_FINDINGS) return;
      const at = [...place, ...issue.path];
      const near = issue.code === 'invalid_union' ? nearestOf(issue.errors) : undefined;
      if (near !== undefined) {
        add(near, at);
        continue;
      }
      found.push({
        path: cutEcho([field, ...at.map(String)].filter((part) => part !== '').join('.')),
        message: issue.message,
        ...(issue.code === 'unrecognized_keys' ? { keys: issue.keys.slice(0, MAX_FINDINGS) } : {}),
      });
    }
  };
  add(error.issues, []);
  return found;
}

const lineOf = ({ path, message }: Finding, root: string): string =>
  `${path === '' ? root : path}: ${message}`;

/** The findings as sentences for an error message. */
export function findingWords(findings: readonly Finding[], root = 'input'): string {
  const shown = findings.slice(0, MAX_IN_MESSAGE).map((finding) => lineOf(finding, root));
  const more = findings.length - shown.length;
  const text = shown.map((line) => (line.endsWith('?') ? line : `${line}.`)).join(' ');
  return more > 0 ? `${text} And ${more} more.` : text;
}

/**
 * Returns the value as its schema parses it.
 *
 * @param field - The name of the input itself.
 * @throws KernelError `bad_request` with all findings.
 */
export function parseInput<T>(schema: z.ZodType<T>, value: unknown, field = ''): T {
  const parsed = safeParse(schema, value);
  if (!parsed.success) throw toBadRequest(parsed.error, field);
  return parsed.data;
}

/** Converts a failure to `bad_request`: the message states the findings, and the details list each of them. */
export function toBadRequest(
  error: z.ZodError,
  field: string,
  code: 'bad_request' | 'profile_invalid' = 'bad_request',
): KernelError {
  const issues = findingsOf(error, field);
  return new KernelError(code, {
    message: issues.length === 0 ? 'The input is not valid.' : findingWords(issues),
    details: { issues },
  });
}
