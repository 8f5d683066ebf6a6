/** The other files of a tape in Bub's folder: `manifest.json` and `session_graph.jsonl`. */
import { z } from 'zod';
import {
  isJsonObject,
  type JsonObject,
  KernelError,
  MAX_ANCHOR_NAME,
  MAX_TAPE_NAME,
  pythonJson,
  readPythonJson,
  safeParse,
  sanitizeJson,
  sha256,
  toBadRequest,
  toName,
} from '../base/index.js';
import { isDate } from '../tape/index.js';
import { brokenLine } from './tape-jsonl.js';

const manifestSchema = z.object({
  version: z.literal(1),
  tapes: z.array(
    z.object({
      /** The name of the tape. */
      id: z.string().min(1),
      /** Relative to the folder of the manifest. */
      file: z.string().min(1),
      head_id: z.int(),
      /** The place where the tape was forked; null for a tape that is not a fork. */
      parent: z.object({ tape: z.string().min(1), entry: z.int().min(0) }).nullable(),
      /** The latest entry of each anchor name. */
      anchors: z.record(z.string(), z.int()),
      archived: z.boolean(),
    }),
  ),
});
export type TapeFolderManifest = z.infer<typeof manifestSchema>;
export type ManifestTape = TapeFolderManifest['tapes'][number];

/** Characters that are not allowed in file names on every system, and endings that lead elsewhere or are lost. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are some of them.
const UNSAFE = /[\u0000-\u001f\u007f<>:"|?*\\]|[. ]$/;
const MAX_NAME_BYTES = 200;
const MAX_LEVELS = 8;

const isSafeName = (name: string): boolean =>
  name !== '' && !UNSAFE.test(name) && name.isWellFormed() && Buffer.byteLength(name) <= MAX_NAME_BYTES;

/**
 * Whether a file may be written at this path in the folder of a manifest, on every system. The path must stay inside
 * the folder, and must not be one of the folder's own files.
 */
export function isFilePath(path: string): boolean {
  const names = path.split('/');
  return (
    names.length <= MAX_LEVELS &&
    names.every(isSafeName) &&
    names[0]?.toLowerCase() !== 'manifest.json' &&
    path.toLowerCase() !== 'archived'
  );
}

/**
 * The file names of a folder. On every system, no two names may mean the same file, and no file may have the name of
 * another file's folder.
 */
export class FilePaths {
  readonly #files = new Set<string>();
  readonly #folders = new Set<string>();

  /** @returns False when the path is not free; the set of names then stays unchanged. */
  take(path: string): boolean {
    const key = path.normalize('NFC').toLowerCase();
    const folders = key.split('/').map((_name, index, names) => names.slice(0, index).join('/'));
    if (this.#files.has(key) || this.#folders.has(key) || folders.some((folder) => this.#files.has(folder)))
      return false;
    this.#files.add(key);
    for (const folder of folders) this.#folders.add(folder);
    return true;
  }
}

const MAX_STEM = 100;

/**
 * The base name of a tape's files: the tape's name with escapes. A name that is too long or begins with a dot gets a
 * hash.
 */
export function fileStem(name: string): string {
  const stem = encodeURIComponent(name.toWellFormed()).replaceAll('*', '%2A');
  return stem.length <= MAX_STEM && !stem.startsWith('.') ? stem : hashedStem(name);
}

/** The base name for a tape whose escaped name another tape already uses. */
export const hashedStem = (name: string): string =>
  `${encodeURIComponent(name.toWellFormed())
    .replaceAll(/[*.]/g, '_')
    .slice(0, MAX_STEM / 2)}-${sha256(name).slice(0, 16)}`;

export const formatManifest = (manifest: TapeFolderManifest): string =>
  `${JSON.stringify(manifest, undefined, 2)}\n`;

const NEXT =
  'This build reads version 1 with a list `tapes` of {id, file, head_id, parent, anchors, archived}. To import without the manifest, move it out of the folder: then main.jsonl and archived/*.jsonl are read; or import one file.';

const kindOf = (value: unknown): string =>
  Array.isArray(value)
    ? 'a list'
    : value === null
      ? 'null'
      : isJsonObject(value)
        ? 'an object'
        : `a ${typeof value}`;

/** The unsupported form of a manifest; undefined when the form is supported and only members are wrong. */
function otherForm(value: unknown): { readonly found: string; readonly field: string } | undefined {
  if (!isJsonObject(value)) return { found: `is ${kindOf(value)}`, field: 'manifest' };
  if (value.version !== 1) {
    const found =
      value.version === undefined ? 'has no `version`' : `has version ${JSON.stringify(value.version)}`;
    return { found, field: 'manifest.version' };
  }
  if (!Array.isArray(value.tapes)) {
    const found = value.tapes === undefined ? 'has no `tapes`' : `has ${kindOf(value.tapes)} as \`tapes\``;
    return { found, field: 'manifest.tapes' };
  }
  return undefined;
}

/** @throws KernelError `bad_request` naming the field, or the form that was found and the next step. */
export function parseManifest(text: string): TapeFolderManifest {
  let value: unknown;
  try {
    value = readPythonJson(text);
  } catch {
    throw new KernelError('bad_request', {
      message: 'The manifest is not valid JSON.',
      details: { field: 'manifest' },
    });
  }
  const other = otherForm(value);
  if (other !== undefined)
    throw new KernelError('bad_request', {
      message: `manifest.json has another form: it ${other.found}. ${NEXT}`,
      details: { field: other.field },
    });
  const parsed = safeParse(manifestSchema, value);
  if (!parsed.success) throw toBadRequest(parsed.error, 'manifest');
  return parsed.data;
}

/** The most characters in the status of a session. */
export const MAX_STATUS_LENGTH = 100;

/** One line of the session graph; the last of several lines for one session applies. */
export interface SessionLine {
  readonly session_id: string;
  readonly parent_session_id: string | null;
  readonly from_anchor: string | null;
  readonly created_at: string | null;
  readonly status: string;
}

/** The text of a session graph file; every line has its line end. */
export const formatSessionGraph = (sessions: readonly SessionLine[]): string =>
  sessions
    .map(({ session_id, parent_session_id, from_anchor, created_at, status }) => {
      const line: JsonObject = { session_id, parent_session_id, from_anchor, created_at, status };
      return `${pythonJson(line)}\n`;
    })
    .join('');

/** The most characters of each name. */
const MAX_LENGTHS = {
  session_id: MAX_TAPE_NAME,
  parent_session_id: MAX_TAPE_NAME,
  from_anchor: MAX_ANCHOR_NAME,
} as const;

function readSession(line: string): SessionLine | { readonly fault: string; readonly field?: string } {
  let value: unknown;
  try {
    value = readPythonJson(line);
  } catch {
    return { fault: 'is not valid JSON' };
  }
  if (!isJsonObject(value)) return { fault: 'is not a JSON object' };
  const textIn = (key: string): string | null => {
    const member = Object.hasOwn(value, key) ? value[key] : undefined;
    return typeof member === 'string' ? member : null;
  };
  const nameIn = (key: keyof typeof MAX_LENGTHS): string | null => {
    const name = textIn(key);
    return name === null ? null : toName(name);
  };
  const session = nameIn('session_id');
  if (session === null || session === '') return { fault: 'has no `session_id`' };
  const found: SessionLine = {
    session_id: session,
    parent_session_id: nameIn('parent_session_id'),
    from_anchor: nameIn('from_anchor'),
    created_at: textIn('created_at'),
    status: textIn('status') ?? 'active',
  };
  if (sanitizeJson({ ...found }).isChanged) return { fault: 'has a NUL or half a character' };
  if (found.status.trim() === '' || found.status.length > MAX_STATUS_LENGTH)
    return { fault: `has a \`status\` that is blank or longer than ${MAX_STATUS_LENGTH} characters` };
  for (const field of ['session_id', 'parent_session_id', 'from_anchor'] as const)
    if ((found[field] ?? '').length > MAX_LENGTHS[field])
      return { fault: `has a \`${field}\` of more than ${MAX_LENGTHS[field]} characters`, field };
  if (found.created_at !== null && !isDate(found.created_at)) return { fault: 'has no ISO `created_at`' };
  return found;
}

function* linesOf(text: string): Generator<readonly [number, string]> {
  for (const [index, line] of text.split('\n').entries()) if (line.trim() !== '') yield [index + 1, line];
}

/**
 * The sessions in the order of their first line.
 *
 * @throws KernelError `bad_request` with `details.line`.
 */
export function parseSessionGraph(text: string): readonly SessionLine[] {
  const sessions = new Map<string, SessionLine>();
  for (const [number, line] of linesOf(text)) {
    const session = readSession(line);
    if ('fault' in session) throw brokenLine(number, session.fault, session.field);
    sessions.set(session.session_id, session);
  }
  return [...sessions.values()];
}

const linesIn = (text: string): readonly string[] => text.split('\n').filter((line) => line.trim() !== '');

/**
 * Joins the session graphs of several tapes. Lines of an earlier graph are not repeated. For a session whose tape is
 * among these tapes, the last line is the line of the tape's own graph.
 */
export function joinSessionGraphs(graphs: readonly { readonly id: string; readonly text: string }[]): string {
  const [first, ...others] = graphs;
  if (first === undefined || others.length === 0) return first?.text ?? '';
  const lines: string[] = [];
  const known = new Set<string>();
  for (const { text } of graphs) {
    const fresh = linesIn(text).filter((line) => !known.has(line));
    for (const line of fresh) {
      lines.push(line);
      known.add(line);
    }
  }
  const joined = new Map(parseSessionGraph(lines.join('\n')).map((line) => [line.session_id, line]));
  const outdated = graphs.flatMap(({ id, text }): SessionLine[] => {
    const own = parseSessionGraph(text).find((line) => line.session_id === id);
    return own === undefined || formatSessionGraph([own]) === formatSessionGraph([joined.get(id) ?? own])
      ? []
      : [own];
  });
  return `${lines.map((line) => `${line}\n`).join('')}${formatSessionGraph(outdated)}`;
}
