/**
 * Makes a tape out of lines in the seed's form. Source: docs/tape.md, "Files".
 *
 * I1  All or nothing: one transaction, whatever the size; a line that cannot be read is named by its number.
 * I2  Lines are read as they are appended, a chunk at a time; a chunk is one append, whatever it holds.
 * I3  The tape holds what its lines say and nothing else, so that its export is the file: no bootstrap of its own.
 */
import {
  type BoxId,
  KernelError,
  parseSessionGraph,
  parseTapeDate,
  type TapeLine,
  tapeLineReader,
} from '@boxcar/kernel';
import {
  appendWithin,
  archiveTape,
  beginTape,
  findTape,
  type NewTapeEntry,
  type TapeActor,
  type TapeAddress,
  type Tx,
  transaction,
} from '@boxcar/store';
import type pg from 'pg';
import { newId } from '../packer.js';
import { toNewEntry } from './entry-input.js';
import { findAddress, type TapeOptions } from './open-tape.js';
import { tapeNotFound, toAppendError } from './tape-errors.js';
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
  /** Told after each chunk how many lines were read, of all files. */
  readonly onProgress?: (lines: number) => void;
}

export interface ImportedTape {
  readonly boxId: BoxId;
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
  readonly actor: TapeActor;
  /** Names its appends. */
  readonly key: string;
  readonly onLines: (count: number) => void;
}

/** What was filled, or that it had been before under the same key. */
type Filled = { readonly first: number; readonly last: number; readonly lines: number } | 'repeated';

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

function toEntries({ drafts, record }: TapeLine, actor: TapeActor): readonly NewTapeEntry[] {
  const createdAt = record.date === null ? NO_DATE : parseTapeDate(record.date);
  return drafts.map((draft) => toNewEntry({ kind: 'draft', draft, createdAt }, actor));
}

/** The entries of a file's lines, chunk by chunk. */
async function* chunksOf(
  file: TapeFile,
  actor: TapeActor,
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

async function fill(boxId: BoxId, file: TapeFile, { tx, actor, key, onLines }: Import): Promise<Filled> {
  let filled = { first: 0, last: 0, lines: 0 };
  for await (const { entries, lines } of chunksOf(file, actor)) {
    const dedupKey = `import:${key}:${filled.lines}`;
    const result = await appendWithin(tx, { ...actor, boxId, entries, dedupKey });
    if (result.outcome !== 'appended') throw toAppendError(result, boxId, actor.actorId);
    if (result.isRepeated) return 'repeated';
    const first = filled.lines === 0 ? result.first : filled.first;
    filled = { first, last: result.head, lines: filled.lines + lines };
    onLines(lines);
  }
  if (filled.lines > 0) return filled;
  throw place(new KernelError('bad_request', { message: 'There are no lines.' }), file);
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
  return fill(boxId, main, within);
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

export async function importTape(
  pool: pg.Pool,
  { target, source }: { readonly target: TapeTarget; readonly source: TapeSource },
  options: ImportOptions = {},
): Promise<ImportedTape> {
  const { append: isAppend = false, onProgress = () => undefined } = options;
  const { actor, address } = await findAddress(pool, target, options);
  if (source.sessionGraph !== undefined) parseSessionGraph(source.sessionGraph);
  const newBoxId = newId<'box'>();
  const key = newId();
  let made: ImportedTape | undefined;
  return transaction(pool, async (tx) => {
    let lines = 0;
    const within: Import = {
      tx,
      actor,
      key,
      onLines: (count) => {
        lines += count;
        onProgress(lines);
      },
    };
    // Of a commit whose answer was lost: the same again finds what it has made.
    const known =
      made === undefined ? undefined : await findTape(tx, { kind: 'box', boxId: newBoxId }, actor);
    if (made !== undefined && known !== undefined) return made;
    const existing = await findExisting(tx, address, { source, isAppend, actor });
    const filled =
      existing !== undefined || address.kind !== 'name'
        ? await fill(existing ?? newBoxId, source.main, within)
        : await makeTape(address.name, { source, boxId: newBoxId }, within);
    if (filled === 'repeated') {
      if (made !== undefined) return made;
      throw new KernelError('internal_error', { message: `Import ${key} finds entries of its own.` });
    }
    const archived = existing === undefined ? (source.archived ?? []).length : 0;
    made = { boxId: existing ?? newBoxId, ...filled, archived };
    return made;
  });
}
