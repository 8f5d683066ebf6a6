/** Reads profiles from YAML and JSON files, and reports every finding with its file, line and field before anything is applied. */
import { isUtf8 } from 'node:buffer';
import {
  errorText,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  type Profile,
  parseProfile,
  profileSchema,
  setKeyOrder,
  suggest,
} from '@boxcar/kernel';
import {
  type Document,
  isAlias,
  isMap,
  isNode,
  isPair,
  isScalar,
  LineCounter,
  type Node,
  parseAllDocuments,
  visit,
} from 'yaml';
import { z } from 'zod';
import { readInput } from '../../input/read-input.js';

export interface ProfileFinding {
  /** `file:line:column`. */
  readonly place: string;
  readonly file: string;
  readonly line: number;
  readonly column: number;
  /** Path inside the profile; empty when the document itself is wrong. */
  readonly field: string;
  /** For a file with several documents: the name of the profile, if it has one. */
  readonly profile?: string;
  readonly message: string;
}

export interface ReadProfile {
  readonly profile: Profile;
  readonly file: string;
  readonly line: number;
}

/** The checks of a profile that need a runtime: by its model, for its tools, and whether it fits into a card. */
export type CheckProfile = (profile: Profile) => void;

interface Source {
  readonly file: string;
  readonly lines: LineCounter;
}

function findingAt(source: Source, offset: number, what: { field: string; message: string }): ProfileFinding {
  // A counter that has seen no line break reports line 0.
  const { line, col } = source.lines.linePos(offset);
  const place = { line: Math.max(line, 1), column: Math.max(col, 1) };
  return { place: `${source.file}:${place.line}:${place.column}`, file: source.file, ...place, ...what };
}

/** An empty document between two separators, or only a comment. */
const isEmpty = ({ contents }: { readonly contents: unknown }): boolean =>
  contents === null || (isScalar(contents) && contents.value === null);

const startOf = (node: unknown): number | undefined => (isNode(node) ? (node as Node).range?.[0] : undefined);

/** The text offset of a path of the profile: of its key, or of the deepest part of the path that exists. */
function offsetOf(document: Document, path: readonly string[]): number {
  let node: unknown = document.contents;
  let offset = startOf(node) ?? 0;
  for (const part of path) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isPair(item) && String(item.key) === part);
      if (pair === undefined) break;
      offset = startOf(pair.key) ?? offset;
      node = pair.value;
    } else if (isNode(node) && 'items' in node) {
      node = node.items[Number(part)];
      offset = startOf(node) ?? offset;
    } else {
      break;
    }
  }
  return offset;
}

const LONGEST_NAME = 60;

/** Names and paths can have any length. */
const cutText = (text: string): string =>
  text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME)}…` : text;

let profileJsonSchema: JsonObject | undefined;

/** The keys that are allowed at a path of a profile, in all variants of its schema. */
function knownKeysAt(path: readonly string[]): readonly string[] {
  profileJsonSchema ??= z.toJSONSchema(profileSchema, { io: 'input', unrepresentable: 'any' }) as JsonObject;
  const formsOf = (schema: JsonValue | undefined): readonly JsonObject[] => {
    if (!isJsonObject(schema)) return [];
    const { anyOf, oneOf } = schema;
    return [
      schema,
      ...[anyOf, oneOf].flatMap((forms) => (Array.isArray(forms) ? forms.flatMap(formsOf) : [])),
    ];
  };
  let schemas = formsOf(profileJsonSchema);
  for (const part of path) {
    schemas = schemas.flatMap(({ properties, items }) => [
      ...formsOf(isJsonObject(properties) ? properties[part] : undefined),
      ...formsOf(/^\d+$/.test(part) ? items : undefined),
    ]);
  }
  return [
    ...new Set(
      schemas.flatMap(({ properties }) => (isJsonObject(properties) ? Object.keys(properties) : [])),
    ),
  ];
}

function describeUnknown(unknown: string, path: readonly string[]): string {
  const key = cutText(unknown);
  const known = knownKeysAt(path);
  const meant = suggest(key, known);
  if (meant !== undefined) return `unknown key '${key}'; did you mean '${meant}'?`;
  return known.length === 0
    ? `unknown key '${key}'`
    : `unknown key '${key}'; known here are ${known.join(', ')}`;
}

interface Issue {
  readonly path: string;
  readonly message: string;
  /** Unknown keys. They are reported on their parent, but their own position is better. */
  readonly keys?: readonly string[];
}

function findingsOf(error: unknown, document: Document, source: Source): ProfileFinding[] {
  if (!(error instanceof KernelError)) throw error;
  const { issues, field } = error.details;
  if (!Array.isArray(issues)) {
    const place = typeof field === 'string' ? field : '';
    const path = place.split('.').slice(1);
    const message = place === '' ? error.message : error.message.replace(place, cutText(place));
    return [findingAt(source, offsetOf(document, path), { field: path.join('.'), message })];
  }
  const findings = issues.flatMap(({ path, message, keys }: Issue) => {
    const parts = path.split('.').filter((part) => part !== '');
    const at = (offset: number, text: string): ProfileFinding =>
      findingAt(source, offset, { field: path, message: path === '' ? text : `${path}: ${text}` });
    if (keys !== undefined)
      return keys.map((key) => at(offsetOf(document, [...parts, key]), describeUnknown(key, parts)));
    return at(offsetOf(document, parts), message);
  });
  return findings.toSorted((a, b) => a.line - b.line || a.column - b.column);
}

/** The name that a document gives its profile. */
function nameOf({ contents }: Document): string | undefined {
  const name: unknown = isMap(contents) ? contents.get('name') : undefined;
  return typeof name === 'string' && name.trim() !== '' ? name : undefined;
}

/** The offset of an alias that cannot be expanded: the first alias without an anchor, else the first alias. */
function offsetOfAlias(document: Document): number {
  const offsets: number[] = [];
  let missing: number | undefined;
  visit(document, {
    Alias: (_key, node) => {
      const offset = node.range?.[0] ?? 0;
      offsets.push(offset);
      if (isAlias(node) && node.resolve(document) === undefined) missing ??= offset;
    },
  });
  return missing ?? offsets[0] ?? 0;
}

/** The offset of the first merge whose value is not a map. */
function offsetOfMerge(document: Document): number {
  let offset = 0;
  visit(document, {
    Pair: (_key, { key, value }) => {
      if (!isScalar(key) || key.value !== '<<' || isMap(value) || isAlias(value)) return undefined;
      offset = startOf(key) ?? 0;
      return visit.BREAK;
    },
  });
  return offset;
}

/** Converts maps to objects in the order of the file. An alias becomes the value that it refers to, even within that value. */
function toPlain(value: unknown, made = new Map<unknown, unknown>()): unknown {
  if (made.has(value)) return made.get(value);
  if (Array.isArray(value)) {
    const list: unknown[] = [];
    made.set(value, list);
    for (const item of value) list.push(toPlain(item, made));
    return list;
  }
  if (!(value instanceof Map)) return value;
  const object = {};
  made.set(value, object);
  for (const [key, member] of value as Map<string, unknown>)
    Object.defineProperty(object, key, {
      value: toPlain(member, made),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  setKeyOrder(object, [...value.keys()]);
  return object;
}

/** A document as plain data. A YAML feature without an equivalent in JSON is a finding. */
function toData(document: Document, source: Source): { data: unknown } | { findings: ProfileFinding[] } {
  const flaws = [...document.errors, ...document.warnings];
  if (flaws.length > 0) {
    return {
      findings: flaws.map((flaw) => findingAt(source, flaw.pos[0], { field: '', message: flaw.message })),
    };
  }
  try {
    return { data: toPlain(document.toJS({ mapAsMap: true })) };
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    // A ReferenceError means an alias without an anchor, or nested aliases whose expansion would exhaust the memory. Any other error
    // means a merge (`<<`) whose value is not a map.
    const at = error instanceof ReferenceError ? offsetOfAlias(document) : offsetOfMerge(document);
    return { findings: [findingAt(source, at, { field: '', message: error.message })] };
  }
}

function readDocument(
  document: Document,
  source: Source,
  check: CheckProfile,
): { profile: ReadProfile } | { findings: ProfileFinding[] } {
  const read = toData(document, source);
  if ('findings' in read) return read;
  try {
    const profile = parseProfile(read.data);
    check(profile);
    const line = findingAt(source, offsetOf(document, []), { field: '', message: '' }).line;
    return { profile: { profile, file: source.file, line } };
  } catch (error) {
    return { findings: findingsOf(error, document, source) };
  }
}

export interface ProfileText {
  readonly name: string;
  readonly text: string;
}

const WHY_UNREADABLE: Readonly<Record<string, string>> = {
  ENOENT: 'the file does not exist',
  EISDIR: 'is a folder; name the files in it',
  EACCES: 'may not be read by this user',
};

/**
 * Reads files as UTF-8 text; `-` is stdin.
 *
 * @throws KernelError `bad_request` for a file that cannot be read, `profile_invalid` for a file that is not valid UTF-8.
 */
export async function readTexts(names: readonly string[]): Promise<ProfileText[]> {
  const texts: ProfileText[] = [];
  for (const name of names) {
    let bytes: Buffer;
    try {
      bytes = await readInput(name);
    } catch (error) {
      const code = error instanceof Error && 'code' in error ? String(error.code) : '';
      const why = WHY_UNREADABLE[code] ?? errorText(error);
      throw new KernelError('bad_request', {
        message: `--file ${name}: ${why}.`,
        details: { field: 'file', file: name },
        cause: error,
      });
    }
    texts.push({ name: name === '-' ? 'stdin' : name, text: decode(bytes, name === '-' ? 'stdin' : name) });
  }
  return texts;
}

function decode(bytes: Buffer, file: string): string {
  // A byte order mark is removed: it is not part of the text.
  if (isUtf8(bytes)) return bytes.toString('utf8').replace(/^\ufeff/, '');
  // A line break is never part of a longer character, so the first wrong line can be named.
  let line = 1;
  for (let from = 0, to = bytes.indexOf(10); to !== -1; from = to + 1, to = bytes.indexOf(10, from)) {
    if (!isUtf8(bytes.subarray(from, to))) break;
    line++;
  }
  const finding: ProfileFinding = {
    place: `${file}:${line}:1`,
    file,
    line,
    column: 1,
    field: '',
    message: 'is not UTF-8 text; save the file with that encoding',
  };
  throw toError([finding]);
}

function toError(findings: readonly ProfileFinding[]): KernelError {
  const [first] = findings;
  return new KernelError('profile_invalid', {
    message: `${first?.place}: ${first?.message}${findings.length > 1 ? ` (and ${findings.length - 1} more)` : ''}.`,
    details: { findings },
  });
}

/**
 * Reads the profiles of files with one or more documents each.
 *
 * @throws KernelError `profile_invalid` with every finding of every file in `details.findings`.
 */
export function readProfiles(files: readonly ProfileText[], check: CheckProfile): readonly ReadProfile[] {
  const found: ReadProfile[] = [];
  const findings: ProfileFinding[] = [];
  for (const { name, text } of files) {
    const source: Source = { file: name, lines: new LineCounter() };
    const documents = parseAllDocuments(text, {
      lineCounter: source.lines,
      prettyErrors: false,
      stringKeys: true,
      // `<<: *base`, which the core schema of YAML 1.2 leaves out.
      merge: true,
    });
    const filled = Array.isArray(documents)
      ? documents.filter((document) => !isEmpty(document) || document.errors.length > 0)
      : [];
    if (filled.length === 0) findings.push(findingAt(source, 0, { field: '', message: 'holds no profile' }));
    for (const document of filled) {
      const read = readDocument(document as Document, source, check);
      if ('findings' in read) {
        const named = filled.length > 1 ? nameOf(document as Document) : undefined;
        findings.push(
          ...read.findings.map((finding) =>
            named === undefined
              ? finding
              : { ...finding, profile: named, message: `profile '${cutText(named)}': ${finding.message}` },
          ),
        );
        continue;
      }
      const { profile, line } = read.profile;
      const earlier = found.find((other) => other.profile.name === profile.name);
      if (earlier !== undefined) {
        const message = `name: '${profile.name}' is also in ${earlier.file}:${earlier.line}`;
        findings.push(
          findingAt(source, offsetOf(document as Document, ['name']), { field: 'name', message }),
        );
      }
      found.push({ profile, file: name, line });
    }
  }
  if (findings.length > 0) {
    throw toError(findings);
  }
  return found;
}
