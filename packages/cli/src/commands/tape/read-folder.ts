/** Finds the files of one or more tapes in a folder with the original's layout, or takes a single file. */
import { isUtf8 } from 'node:buffer';
import { readdir, realpath, stat } from 'node:fs/promises';
import { basename, isAbsolute, join, relative, resolve, sep } from 'node:path';
import {
  KernelError,
  type ManifestTape,
  parseManifest,
  readRecord,
  shareSessionGraph,
  toName,
} from '@boxcar/kernel';
import type { TapeFile, TapeSource } from '@boxcar/runtime';
import { MAX_DATA_BYTES, readInput } from '../../input/read-input.js';
import { onDisk, readLines } from './lines.js';

export interface FoundFiles {
  /** The tape's name in the manifest; undefined without a manifest. */
  readonly name: string | undefined;
  readonly source: TapeSource;
}

const badPath = (message: string): KernelError =>
  new KernelError('bad_request', { message, details: { field: 'path' } });

const fileAt = (path: string): TapeFile => ({ name: basename(path), lines: () => readLines(path) });

/** Reads a file up to its end. A file that ends before the last entry in the manifest was truncated. */
async function* readUpto(path: string, headId: number): AsyncGenerator<string, void, void> {
  let last = '';
  for await (const line of readLines(path)) {
    if (line.trim() !== '') last = line;
    yield line;
  }
  const record = readRecord(last);
  const id = 'fault' in record ? 0 : record.position;
  if (id < headId)
    throw badPath(`The lines end with id ${id}; by the manifest there are some up to ${headId}.`);
}

const isInside = (folder: string, path: string): boolean => {
  const inside = relative(folder, path);
  return inside !== '..' && !inside.startsWith(`..${sep}`) && !isAbsolute(inside);
};

/**
 * The rule for every file of a folder, whatever names it: the file and the target of its links must be inside the folder, and it must be
 * a regular file or a folder. The user names the folder itself, which may be a link.
 *
 * @returns Its path, also when the file does not exist.
 * @throws KernelError `bad_request`.
 */
async function placeIn(folder: string, file: string, lead = ''): Promise<string> {
  const path = resolve(folder, file);
  const real = await realpath(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  if (!isInside(folder, path) || (real !== undefined && !isInside(await realpath(folder), real)))
    throw badPath(`${lead}${file} does not lie in its folder.`);
  const stats = real === undefined ? undefined : await stat(real);
  if (stats !== undefined && !stats.isFile() && !stats.isDirectory())
    throw badPath(`${lead}${file} is not a regular file.`);
  return path;
}

async function fileOf(
  folder: string,
  { file, head_id: headId, parent, archived }: ManifestTape,
): Promise<TapeFile> {
  const path = await placeIn(folder, file, 'manifest.json: ');
  return {
    name: file,
    parent,
    lines: () => readUpto(path, headId),
    ...(archived ? await archivedFile(path, file) : {}),
  };
}

/** The data of an archived file that an export restores: its path, and its modification time. */
async function archivedFile(path: string, file: string): Promise<Pick<TapeFile, 'path' | 'writtenAt'>> {
  const stats = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    throw error;
  });
  return { path: file.split(sep).join('/'), writtenAt: stats?.mtime };
}

/** @throws KernelError `bad_request` when two tapes of a manifest cannot both be imported. */
function checkDistinct(folder: string, tapes: readonly ManifestTape[]): void {
  const firstTwice = (names: readonly string[]): string | undefined => {
    const known = new Set<string>();
    return names.find((name) => known.size === known.add(name).size);
  };
  const file = firstTwice(tapes.map((tape) => resolve(folder, tape.file)));
  if (file !== undefined) throw badPath(`manifest.json names ${relative(folder, file)} twice.`);
  const id = firstTwice(tapes.filter(({ archived }) => !archived).map((tape) => toName(tape.id)));
  if (id !== undefined) throw badPath(`manifest.json has two tapes '${id}' that are not archived.`);
}

/** The named tape; without a name, all tapes that are not archived. */
function pickTapes(tapes: readonly ManifestTape[], name: string | undefined): readonly ManifestTape[] {
  const current = tapes.filter(({ archived }) => !archived);
  if (current.length === 1 || (name === undefined && current.length > 0)) return current;
  const named = current.find(({ id }) => name !== undefined && toName(id) === toName(name));
  if (named !== undefined) return [named];
  throw badPath(`manifest.json: name one of its tapes: ${current.map(({ id }) => id).join(', ') || 'none'}.`);
}

async function textIn(folder: string, file: string): Promise<string | undefined> {
  const path = await placeIn(folder, file);
  const bytes = await readInput(path, MAX_DATA_BYTES).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined;
    // Errors of the system have a code.
    throw error.code === undefined ? badPath(`${file} ${error.message}.`) : error;
  });
  if (bytes === undefined || isUtf8(bytes)) return bytes?.toString();
  throw badPath(`${file} is not UTF-8 text.`);
}

async function listArchived(folder: string): Promise<readonly string[]> {
  const names = await readdir(await placeIn(folder, 'archived')).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [];
    throw error;
  });
  return names
    .filter((name) => name.endsWith('.jsonl'))
    .sort()
    .map((name) => join('archived', name));
}

type FolderFiles = Omit<FoundFiles, 'source'> & Pick<TapeSource, 'main' | 'archived'>;

async function readTapeFolder(folder: string, name: string | undefined): Promise<readonly FolderFiles[]> {
  const text = await textIn(folder, 'manifest.json');
  if (text === undefined) {
    const archived = await listArchived(folder);
    const fileIn = async (file: string): Promise<TapeFile> => ({
      ...fileAt(await placeIn(folder, file)),
      name: file,
    });
    const olderIn = async (file: string): Promise<TapeFile> => ({
      ...(await fileIn(file)),
      ...(await archivedFile(resolve(folder, file), file)),
    });
    return [
      {
        name: undefined,
        main: await fileIn('main.jsonl'),
        archived: await Promise.all(archived.map(olderIn)),
      },
    ];
  }
  const { tapes } = parseManifest(text);
  checkDistinct(folder, tapes);
  const archived = new Map<string, ManifestTape[]>();
  for (const tape of tapes)
    if (tape.archived) {
      const older = archived.get(tape.id);
      if (older === undefined) archived.set(tape.id, [tape]);
      else older.push(tape);
    }
  return Promise.all(
    pickTapes(tapes, name).map(async (tape) => ({
      name: tape.id,
      main: await fileOf(folder, tape),
      archived: await Promise.all((archived.get(tape.id) ?? []).map((other) => fileOf(folder, other))),
    })),
  );
}

/**
 * The part of the session graph for each tape. A graph that is not valid is passed on unchanged: the import of each tape reports its
 * errors.
 */
function shareGraph(text: string | undefined, names: readonly string[]): readonly (string | undefined)[] {
  if (text === undefined) return [];
  try {
    return shareSessionGraph(text, names);
  } catch {
    return names.map(() => text);
  }
}

/**
 * @param path - A file of lines; a folder with `tape/`; or that folder itself.
 * @param name - Selects one of several tapes; undefined: all.
 * @returns At least one.
 * @throws KernelError `bad_request`.
 */
export function findTapeFiles(path: string, name: string | undefined): Promise<readonly FoundFiles[]> {
  return onDisk(path, async () => {
    if (!(await stat(path)).isDirectory()) return [{ name: undefined, source: { main: fileAt(path) } }];
    const within = await placeIn(path, 'tape');
    const isWorkspace = await stat(within).then(
      (found) => found.isDirectory(),
      () => false,
    );
    const tapes = await readTapeFolder(isWorkspace ? within : path, name);
    const sessionGraph = isWorkspace ? await textIn(path, 'session_graph.jsonl') : undefined;
    const graphs = shareGraph(
      sessionGraph,
      tapes.map((tape) => tape.name ?? ''),
    );
    return tapes.map(({ name: found, ...files }, index) => {
      const graph = graphs[index];
      return {
        name: found,
        source: { ...files, ...(graph === undefined ? {} : { sessionGraph: graph }) },
      };
    });
  });
}
