/**
 * Reads all lines of an import before anything is written, so that no transaction or connection waits for a slow source. The error
 * for an unreadable line has its number.
 */
import { createHash, type Hash } from 'node:crypto';
import {
  errorText,
  type FileMark,
  isFilePath,
  isJsonObject,
  KernelError,
  parseId,
  parseSessionGraph,
  parseTapeDate,
  type TapeLine,
  type ToolCallId,
  tapeLineReader,
} from '@boxcar/kernel';
import { entryRecords, type NewTapeEntry } from '@boxcar/store';
import { type EntryAuthor, toNewEntry } from './entry-input.js';
import { TextSpool } from './text-spool.js';

/** Lines of one file. */
export interface TapeFile {
  /** Used in errors. */
  readonly name?: string;
  /** For an archived file: its path in the folder of the manifest, which an export restores, and when it was written. */
  readonly path?: string | undefined;
  readonly writtenAt?: Date | undefined;
  /** The place where its tape was forked, according to the manifest. */
  readonly parent?: { readonly tape: string; readonly entry: number } | null;
  /** Starts at the first line on each call. Lines have no line ends. */
  readonly lines: () => Iterable<string> | AsyncIterable<string>;
}

export interface TapeSource {
  readonly main: TapeFile;
  /** Earlier incarnations, oldest first. Only for a new tape. */
  readonly archived?: readonly TapeFile[];
  /** The text of `session_graph.jsonl`. */
  readonly sessionGraph?: string;
}

/** Counts of what was read from one file. */
export interface ReadFile {
  readonly entries: number;
  readonly lines: number;
}

/** Entries of one file that one statement writes. */
export interface ReadChunk {
  /** Index of the file: first the archived files, then the main file. */
  readonly file: number;
  /** How many entries of that file precede this chunk. */
  readonly after: number;
  /** The number of entries in this chunk. */
  readonly entries: number;
  /** In the form that `stageEntries` expects. */
  readonly records: string;
}

/** A chunk ends with the line that brings it to this many entries or characters. */
const CHUNK_ENTRIES = 500;
const CHUNK_CHARACTERS = 4_000_000;
/** The date of a line that has none, in the original and here. */
const NO_DATE = '1970-01-01T00:00:00Z';

/** Adds the file and the line to an error. A second call changes nothing. */
function place(error: unknown, file: TapeFile, line?: number): unknown {
  if (!(error instanceof KernelError) || error.details.file !== undefined) return error;
  const named = line === undefined || error.details.line === line ? '' : `Line ${line}: `;
  const lead = file.name === undefined ? named : `${file.name}: ${named}`;
  return new KernelError(error.code, {
    message: `${lead}${error.problem}`,
    next: error.next,
    details: {
      ...error.details,
      ...(line === undefined ? {} : { line }),
      ...(file.name === undefined ? {} : { file: file.name }),
    },
    cause: error.cause,
  });
}

/** Turns a failure of the source into `bad_request` with the name of the source, so that it is not mistaken for a lost connection. */
async function* linesOf(file: TapeFile): AsyncGenerator<string, void, void> {
  try {
    yield* file.lines();
  } catch (error) {
    if (error instanceof KernelError) throw place(error, file);
    const reason = errorText(error);
    throw new KernelError('bad_request', { message: `${file.name ?? 'lines'}: cannot be read: ${reason}.` });
  }
}

function toEntries({ drafts, record }: TapeLine, actor: EntryAuthor): readonly NewTapeEntry[] {
  const createdAt = record.date === null ? NO_DATE : parseTapeDate(record.date);
  return drafts.map((draft) => toNewEntry({ kind: 'draft', draft, createdAt }, actor));
}

function markOf({ path, writtenAt, parent }: TapeFile): FileMark | undefined {
  const mark = {
    ...(path === undefined || !isFilePath(path) ? {} : { file: path }),
    ...(writtenAt === undefined ? {} : { written_at: writtenAt.toISOString() }),
    ...(parent === undefined || parent === null ? {} : { parent }),
  };
  return Object.keys(mark).length === 0 ? undefined : mark;
}

/** Stores the folder's facts about a file with the first entry of the file. */
function withMark(entry: NewTapeEntry, mark: FileMark | undefined): NewTapeEntry {
  const { imported } = entry.meta ?? {};
  if (mark === undefined || imported === undefined || !isJsonObject(imported)) return entry;
  return { ...entry, meta: { ...entry.meta, imported: { ...imported, file: { ...mark } } } };
}

interface ReadOptions {
  readonly actor: EntryAuthor;
  /** Makes ids for the calls in the lines, in order. */
  readonly newCallId: () => ToolCallId;
}

/**
 * Ids that are derived from the key of an import. A process that continues the import gives the calls the same ids, so that results find
 * calls that were written before.
 */
export function callIdsOf(...key: readonly string[]): () => ToolCallId {
  let n = 0;
  return () => {
    const digest = createHash('sha256')
      .update(JSON.stringify([...key, n++]))
      .digest('hex');
    // Version 8 of RFC 9562: derived by a custom rule.
    return parseId<'tool_call'>(
      `${digest.slice(0, 12)}8${digest.slice(13, 16)}8${digest.slice(17, 32)}`,
      'id',
    );
  };
}

/** Reads the entries of a file's lines, chunk by chunk. */
async function* chunksOf(
  file: TapeFile,
  { actor, newCallId, hash }: ReadOptions & { readonly hash: Hash | undefined },
): AsyncGenerator<{ readonly entries: readonly NewTapeEntry[]; readonly lines: number }, void, void> {
  const read = tapeLineReader({ newCallId });
  let chunk = { entries: [] as NewTapeEntry[], lines: 0, characters: 0 };
  const mark = markOf(file);
  let isFirst = true;
  let number = 0;
  for await (const text of linesOf(file)) {
    number += 1;
    hash?.update(text).update('\n');
    try {
      const line = read(text, number);
      if (line === undefined) continue;
      const entries = toEntries(line, actor);
      chunk.entries.push(
        ...entries.map((entry, index) => (isFirst && index === 0 ? withMark(entry, mark) : entry)),
      );
      isFirst = false;
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

/** @throws KernelError `bad_request` when the text is not a session graph. */
export function checkSessionGraph(text: string | undefined): void {
  if (text === undefined) return;
  try {
    parseSessionGraph(text);
  } catch (error) {
    throw place(error, { name: 'session_graph.jsonl', lines: () => [] });
  }
}

/** All files of a source. The caller disposes of it. */
export class ReadSource implements AsyncDisposable {
  readonly #spool = new TextSpool();
  readonly #chunks: Omit<ReadChunk, 'records'>[] = [];
  readonly #files: ReadFile[] = [];
  readonly #hash = createHash('sha256');
  /** SHA-256 of the lines of the main file, hex. */
  hash = '';

  /**
   * @param options.onProgress - Called after each chunk with the number of lines read so far, over all files.
   * @throws KernelError `bad_request` with `details.line`, `payload_too_large`.
   */
  static async read(
    source: TapeSource,
    options: ReadOptions & { readonly onProgress: (lines: number) => void },
  ): Promise<ReadSource> {
    const read = new ReadSource();
    try {
      for (const file of source.archived ?? []) await read.#readFile(file, options);
      await read.#readFile(source.main, options, read.#hash);
      read.hash = read.#hash.digest('hex');
      return read;
    } catch (error) {
      await read[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** The archived files, then the main file. */
  get files(): readonly ReadFile[] {
    return this.#files;
  }

  async *chunks(): AsyncGenerator<ReadChunk, void, void> {
    let index = 0;
    for await (const records of this.#spool.texts()) {
      const chunk = this.#chunks[index++];
      if (chunk !== undefined) yield { ...chunk, records };
    }
  }

  async #readFile(
    file: TapeFile,
    options: ReadOptions & { readonly onProgress: (lines: number) => void },
    hash?: Hash,
  ): Promise<void> {
    const before = this.#files.reduce((sum, { lines }) => sum + lines, 0);
    let read: ReadFile = { entries: 0, lines: 0 };
    for await (const { entries, lines } of chunksOf(file, { ...options, hash })) {
      await this.#spool.add(entryRecords({ entries }));
      this.#chunks.push({ file: this.#files.length, after: read.entries, entries: entries.length });
      read = { entries: read.entries + entries.length, lines: read.lines + lines };
      options.onProgress(before + read.lines);
    }
    if (read.lines === 0)
      throw place(new KernelError('bad_request', { message: 'There are no lines.' }), file);
    this.#files.push(read);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#spool[Symbol.asyncDispose]();
  }
}
