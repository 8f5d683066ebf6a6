/**
 * Makes a tape out of lines in the original's form. Source: docs/tape.md, "Files".
 *
 * I1  All or nothing: one transaction, whatever the size; a line that cannot be read is named by its number.
 * I2  Lines are read as they are appended, a chunk at a time; a chunk is one append, whatever it holds.
 * I3  Under its key it happens once: the same again changes nothing and gives the first answer.
 * I4  The tape holds what its lines say and nothing else, so that its export is the file: no bootstrap of its own.
 */
import { createHash, type Hash } from 'node:crypto';
import {
  type BoxId,
  KernelError,
  type ProjectId,
  parseSessionGraph,
  parseTapeDate,
  type TapeLine,
  tapeLineReader,
} from '@boxcar/kernel';
import {
  appendWithin,
  archiveTape,
  beginImport,
  beginTape,
  endImport,
  findTape,
  insertImportedSession,
  type KnownImport,
  type NewTapeEntry,
  type TapeActor,
  type TapeAddress,
  type TapeRow,
  type Tx,
  transaction,
} from '@boxcar/store';
import type pg from 'pg';
import { newId } from '../packer.js';
import { type EntryAuthor, toNewEntry } from './entry-input.js';
import { findAddress, type TapeOptions } from './open-tape.js';
import { notAuthorized, tapeNotFound, toAppendError } from './tape-errors.js';
import type { TapeTarget } from './tape-types.js';

/** Lines of one file. */
export interface TapeFile {
  /** Said in errors. */
  readonly name?: string;
  /** From the first line on, without their ends, each time it is called: what was cut off begins again. */
  readonly lines: () => Iterable<string> | AsyncIterable<string>;
}

export interface TapeSource {
  readonly main: TapeFile;
  /** Earlier incarnations, oldest first. Only for a tape that is new. */
  readonly archived?: readonly TapeFile[];
  /** The text of `session_graph.jsonl`. */
  readonly sessionGraph?: string;
}

export interface ImportOptions extends Omit<TapeOptions, 'create'> {
  /** Also behind the entries of a tape that exists. */
  readonly append?: boolean;
  /** Names this import in its project: the same again imports nothing and gives the first answer, other lines are `idempotency_conflict`. */
  readonly dedupKey?: string;
  /** Told after each chunk how many lines were read, of all files. */
  readonly onProgress?: (lines: number) => void;
}

export interface ImportedTape {
  readonly boxId: BoxId;
  /** It had been imported before under this key. */
  readonly isRepeated: boolean;
  /** Positions of the first and last entry that was appended. */
  readonly first: number;
  readonly last: number;
  /** Lines of the main file. */
  readonly lines: number;
  /** Earlier incarnations that were made. */
  readonly archived: number;
}

/** A chunk ends with the line that brings it to so many entries or characters. */
const CHUNK_ENTRIES = 500;
const CHUNK_CHARACTERS = 4_000_000;
/** What a line without a date counts as, in the original and here. */
const NO_DATE = '1970-01-01T00:00:00Z';

interface Import {
  readonly tx: Tx;
  readonly actor: EntryAuthor;
  readonly key: string;
  /** Of the main file's lines. */
  readonly hash: Hash;
  readonly onLines: (count: number) => void;
}

interface Filled {
  readonly first: number;
  readonly last: number;
  readonly lines: number;
}

/** Says in which file and line; twice says it once. */
function place(error: unknown, file: TapeFile, line?: number): unknown {
  if (!(error instanceof KernelError) || error.details.file !== undefined) return error;
  const named = line === undefined || error.details.line === line ? '' : `Line ${line}: `;
  const lead = file.name === undefined ? named : `${file.name}: ${named}`;
  // What to do next is said once, by the error that is made here.
  const said = error.message.replace(error.entry.next, '').trimEnd();
  return new KernelError(error.code, {
    message: `${lead}${said}`,
    details: {
      ...error.details,
      ...(line === undefined ? {} : { line }),
      ...(file.name === undefined ? {} : { file: file.name }),
    },
    cause: error.cause,
  });
}

/** What cannot be opened or read is said by the file's name, not taken for the loss of a connection. */
async function* linesOf(file: TapeFile): AsyncGenerator<string, void, void> {
  try {
    yield* file.lines();
  } catch (error) {
    if (error instanceof KernelError) throw place(error, file);
    const reason = error instanceof Error ? error.message : String(error);
    throw new KernelError('bad_request', { message: `${file.name ?? 'lines'}: cannot be read: ${reason}.` });
  }
}

function toEntries({ drafts, record }: TapeLine, actor: EntryAuthor): readonly NewTapeEntry[] {
  const createdAt = record.date === null ? NO_DATE : parseTapeDate(record.date);
  return drafts.map((draft) => toNewEntry({ kind: 'draft', draft, createdAt }, actor));
}

/** The entries of a file's lines, chunk by chunk. */
async function* chunksOf(
  file: TapeFile,
  actor: EntryAuthor,
): AsyncGenerator<{ readonly entries: readonly NewTapeEntry[]; readonly lines: number }, void, void> {
  const read = tapeLineReader({ newCallId: () => newId<'tool_call'>() });
  let chunk = { entries: [] as NewTapeEntry[], lines: 0, characters: 0 };
  let number = 0;
  for await (const text of linesOf(file)) {
    number += 1;
    try {
      const line = read(text, number);
      if (line === undefined) continue;
      chunk.entries.push(...toEntries(line, actor));
    } catch (error) {
      throw place(error, file, number);
    }
    chunk.lines += 1;
    chunk.characters += text.length;
    if (chunk.entries.length < CHUNK_ENTRIES && chunk.characters < CHUNK_CHARACTERS) continue;
    yield chunk;
    chunk = { entries: [], lines: 0, characters: 0 };
  }
  if (chunk.lines > 0) yield chunk;
}

/** The same lines, one file's for the hash of the import. */
function hashed(file: TapeFile, hash: Hash): TapeFile {
  async function* lines(): AsyncGenerator<string, void, void> {
    for await (const line of file.lines()) {
      hash.update(line).update('\n');
      yield line;
    }
  }
  return { ...file, lines };
}

async function fill(boxId: BoxId, file: TapeFile, { tx, actor, key, onLines }: Import): Promise<Filled> {
  let filled: Filled = { first: 0, last: 0, lines: 0 };
  for await (const { entries, lines } of chunksOf(file, actor)) {
    const dedupKey = `${key}:${filled.lines}`;
    const result = await appendWithin(tx, { ...actor, boxId, entries, dedupKey });
    if (result.outcome !== 'appended') throw toAppendError(result, boxId, actor.actorId);
    const first = filled.lines === 0 ? result.first : filled.first;
    filled = { first, last: result.head, lines: filled.lines + lines };
    onLines(lines);
  }
  if (filled.lines > 0) return filled;
  throw place(new KernelError('bad_request', { message: 'There are no lines.' }), file);
}

function checkSessionGraph(text: string | undefined): void {
  if (text === undefined) return;
  try {
    parseSessionGraph(text);
  } catch (error) {
    throw place(error, { name: 'session_graph.jsonl', lines: () => [] });
  }
}

const nameTaken = (name: string): KernelError =>
  new KernelError('bad_request', {
    message: `There is a tape '${name}': import under another name, or with append.`,
    details: { field: 'tape', tape: name },
  });

/** The incarnations of a new tape, oldest first: each but the last is archived once it is filled. */
async function makeTape(
  name: string,
  { source, boxId }: { readonly source: TapeSource; readonly boxId: BoxId },
  within: Import,
): Promise<Filled> {
  const { tx, actor } = within;
  const { archived = [], main, sessionGraph = null } = source;
  let previousBoxId: BoxId | null = null;
  for (const file of archived) {
    const olderId = newId<'box'>();
    const begun = await beginTape(tx, { ...actor, boxId: olderId, name, previousBoxId, sessionGraph: null });
    if (begun === undefined) throw nameTaken(name);
    await fill(olderId, file, within);
    await archiveTape(tx, olderId);
    previousBoxId = olderId;
  }
  const begun = await beginTape(tx, { ...actor, boxId, name, previousBoxId, sessionGraph });
  if (begun === undefined) throw nameTaken(name);
  await keepLineage(tx, { name, boxId, projectId: actor.projectId }, sessionGraph);
  return fill(boxId, main, within);
}

/** A tape that comes under the name it had is the session that it was. */
async function keepLineage(
  tx: Tx,
  tape: { readonly name: string; readonly boxId: BoxId; readonly projectId: ProjectId },
  sessionGraph: string | null,
): Promise<void> {
  const line = parseSessionGraph(sessionGraph ?? '').find(({ session_id: session }) => session === tape.name);
  if (line === undefined || line.parent_session_id === null) return;
  await insertImportedSession(tx, {
    ...tape,
    parentSessionId: line.parent_session_id,
    fromAnchor: line.from_anchor,
    status: line.status,
    createdAt: line.created_at === null ? null : parseTapeDate(line.created_at),
  });
}

/** The tape that is meant, when there is one to append to. @throws KernelError `not_found`, `bad_request`. */
async function findExisting(
  tx: Tx,
  address: TapeAddress,
  {
    source,
    isAppend,
    actor,
  }: { readonly source: TapeSource; readonly isAppend: boolean; readonly actor: TapeActor },
): Promise<BoxId | undefined> {
  const row = await findTape(tx, address, actor);
  if (row === undefined) {
    if (address.kind === 'name') return undefined;
    throw tapeNotFound(address);
  }
  if (!isAppend) throw nameTaken(row.name ?? row.boxId);
  if ((source.archived ?? []).length === 0 && source.sessionGraph === undefined) return row.boxId;
  throw new KernelError('bad_request', {
    message: 'Archived tapes and a session graph come with a new tape alone.',
    details: { field: 'append' },
  });
}

const isAt = (row: TapeRow, address: TapeAddress): boolean => {
  if (address.kind === 'box') return row.boxId === address.boxId;
  return address.kind === 'name' ? row.name === address.name : row.ownerAgentId === address.agentId;
};

/** The first answer, when the same is asked again. @throws KernelError `idempotency_conflict`, `box_not_authorized`. */
async function repeat(
  known: KnownImport,
  {
    main,
    address,
    within,
  }: { readonly main: TapeFile; readonly address: TapeAddress; readonly within: Import },
): Promise<ImportedTape> {
  const { tx, actor, hash, key } = within;
  const made = { ...(known.response as unknown as ImportedTape), isRepeated: true };
  const row = await findTape(tx, { kind: 'box', boxId: made.boxId }, actor);
  if (row !== undefined && !row.isOwn && row.appendGrant === null)
    throw notAuthorized(row.boxId, actor.actorId, 'append');
  for await (const _ of linesOf(main));
  if (hash.digest('hex') === known.hash && (row === undefined || isAt(row, address))) return made;
  throw new KernelError('idempotency_conflict', {
    message: `Key '${key.slice(KEY.length)}' was used for other lines, or another tape.`,
    details: { dedup_key: key.slice(KEY.length), box_id: made.boxId },
  });
}

const KEY = 'import:';
const MAX_KEY = 512;

function checkKey(key: string): string {
  if (key !== '' && key.length <= MAX_KEY && !key.includes('\0') && key.isWellFormed()) return key;
  throw new KernelError('bad_request', {
    message: `dedupKey: has 1 to ${MAX_KEY} characters, none of them NUL.`,
    details: { field: 'dedupKey' },
  });
}

export async function importTape(
  pool: pg.Pool,
  { target, source: given }: { readonly target: TapeTarget; readonly source: TapeSource },
  options: ImportOptions & { readonly maxCardBytes?: number | undefined } = {},
): Promise<ImportedTape> {
  const {
    append: isAppend = false,
    dedupKey = newId(),
    maxCardBytes,
    onProgress = () => undefined,
  } = options;
  const { actor, address } = await findAddress(pool, target, options);
  checkSessionGraph(given.sessionGraph);
  const boxId = newId<'box'>();
  // What a lost connection leaves in doubt is tried again under the same key.
  const key = `${KEY}${checkKey(dedupKey)}`;
  return transaction(pool, async (tx) => {
    let lines = 0;
    const onLines = (count: number): void => {
      lines += count;
      onProgress(lines);
    };
    const hash = createHash('sha256');
    const source = { ...given, main: hashed(given.main, hash) };
    const within: Import = { tx, actor: { ...actor, maxCardBytes }, key, hash, onLines };
    const operation = { projectId: actor.projectId, key };
    const known = await beginImport(tx, operation);
    if (known !== undefined) return repeat(known, { main: source.main, address, within });
    const existing = await findExisting(tx, address, { source, isAppend, actor });
    const filled =
      existing !== undefined || address.kind !== 'name'
        ? await fill(existing ?? boxId, source.main, within)
        : await makeTape(address.name, { source, boxId }, within);
    const archived = existing === undefined ? (source.archived ?? []).length : 0;
    const made = { boxId: existing ?? boxId, ...filled, archived };
    await endImport(tx, operation, { hash: hash.digest('hex'), response: made });
    return { ...made, isRepeated: false };
  });
}
