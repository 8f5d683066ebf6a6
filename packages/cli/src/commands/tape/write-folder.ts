/** Writes one or more tapes in the original's folder layout: `tape/main.jsonl`, `manifest.json`, `archived/`, `session_graph.jsonl`. */
import { access, mkdir, mkdtemp, rename, rm, utimes, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  anchorNameOf,
  FilePaths,
  fileStem,
  formatManifest,
  hashedStem,
  joinSessionGraphs,
  KernelError,
  type ManifestTape,
  readRecord,
} from '@boxcar/kernel';
import type { Runtime, Tape, TapeFolder } from '@boxcar/runtime';
import { onDisk, writeLines } from './lines.js';

export interface WrittenTape {
  /** The name of the tape, or of its box. */
  readonly id: string;
  /** The number of lines of the current tape. */
  readonly lines: number;
  /** The number of earlier incarnations. */
  readonly archived: number;
}

interface Target {
  /** An existing folder. */
  readonly folder: string;
  readonly onLine: () => void;
}

type FileFacts = Pick<ManifestTape, 'head_id' | 'anchors'> & { readonly lines: number };

/** Writes the lines of a tape, and collects the facts for the manifest from them. */
async function writeTape(tape: Tape, path: string, onLine: () => void): Promise<FileFacts> {
  let head = 0;
  let lines = 0;
  const anchors = new Map<string, number>();
  const look = (line: string): void => {
    const record = readRecord(line);
    if ('fault' in record) return;
    head = record.position;
    const name = anchorNameOf(record);
    if (name !== undefined) anchors.set(name, head);
  };
  await writeLines(
    path,
    (async function* () {
      for await (const line of tape.export()) {
        lines += 1;
        look(line);
        onLine();
        yield line;
      }
    })(),
  );
  return { head_id: head, anchors: Object.fromEntries(anchors), lines };
}

/** A tape with its folder data and its file names. */
interface Chosen {
  readonly tape: Tape;
  readonly folder: TapeFolder;
  readonly file: string;
  /** The files of its archived tapes, in their order. */
  readonly archived: readonly string[];
}

function archivedPath(
  paths: FilePaths,
  stem: string,
  { archivedAt, index }: { archivedAt: Date; index: number },
): string {
  const day = archivedAt.toISOString().slice(0, 10);
  for (let number = index + 1; ; number += 1) {
    const path = `archived/${stem}_${day}_${String(number).padStart(3, '0')}.jsonl`;
    if (paths.take(path)) return path;
  }
}

/** Imported tapes get their original paths as long as these are free; generated paths are chosen afterwards. */
function choosePaths(tapes: readonly Pick<Chosen, 'tape' | 'folder'>[]): readonly Chosen[] {
  const paths = new FilePaths();
  const stemOf = (id: string): string => {
    if (tapes.length === 1) {
      paths.take('main.jsonl');
      return 'main';
    }
    let stem = fileStem(id);
    for (let n = 1; !paths.take(`${stem}.jsonl`); n += 1) stem = hashedStem(n === 1 ? id : `${id}/${n}`);
    return stem;
  };
  const named = tapes.map((one) => ({ ...one, stem: stemOf(one.folder.id) }));
  const kept = named.map(({ folder }) =>
    folder.archived.map(({ path }) => (path !== undefined && paths.take(path) ? path : undefined)),
  );
  return named.map(({ tape, folder, stem }, n) => ({
    tape,
    folder,
    file: `${stem}.jsonl`,
    archived: folder.archived.map(
      ({ archivedAt }, index) => kept[n]?.[index] ?? archivedPath(paths, stem, { archivedAt, index }),
    ),
  }));
}

async function writeOne(
  runtime: Runtime,
  { tape, folder: { id, parent, archived }, file, archived: files }: Chosen,
  { folder, onLine }: Target,
): Promise<{ readonly entries: readonly ManifestTape[]; readonly written: WrittenTape }> {
  // The tape is opened by its box, so a reset from now on has no effect.
  const open = (box: string): Promise<Tape> =>
    runtime.tape({ box }, { projectId: tape.projectId, as: tape.actorId });
  const main = await open(tape.boxId);
  const older: ManifestTape[] = [];
  for (const [index, { boxId, archivedAt, writtenAt = archivedAt, parent: of }] of archived.entries()) {
    const name = files[index] ?? '';
    const path = join(folder, 'tape', name);
    await mkdir(dirname(path), { recursive: true });
    const { lines: _lines, ...facts } = await writeTape(await open(boxId), path, onLine);
    await utimes(path, writtenAt, writtenAt);
    older.push({ id, file: name, parent: of, archived: true, ...facts });
  }
  const { lines, ...facts } = await writeTape(main, join(folder, 'tape', file), onLine);
  return {
    entries: [{ id, file, parent, archived: false, ...facts }, ...older],
    written: { id, lines, archived: archived.length },
  };
}

/** @throws KernelError `bad_request`: an import could not distinguish tapes with equal names. */
function checkNames(folders: readonly TapeFolder[]): void {
  const names = new Set<string>();
  for (const { id } of folders) {
    if (names.has(id))
      throw new KernelError('bad_request', {
        message: `tape: one folder cannot hold two tapes '${id}': export one of them; its archived tapes are exported with it.`,
        details: { field: 'tape', tape: id },
      });
    names.add(id);
  }
}

async function writeAll(
  runtime: Runtime,
  tapes: readonly Tape[],
  target: Target,
): Promise<readonly WrittenTape[]> {
  const { folder } = target;
  const found: Pick<Chosen, 'tape' | 'folder'>[] = [];
  for (const tape of tapes) found.push({ tape, folder: await tape.folder() });
  checkNames(found.map((one) => one.folder));
  await mkdir(join(folder, 'tape/archived'), { recursive: true });
  const entries: ManifestTape[] = [];
  const written: WrittenTape[] = [];
  for (const chosen of choosePaths(found)) {
    const one = await writeOne(runtime, chosen, target);
    entries.push(...one.entries);
    written.push(one.written);
  }
  const graphs = found.map(({ folder: { id, sessionGraph: text } }) => ({ id, text }));
  await writeFile(join(folder, 'tape/manifest.json'), formatManifest({ version: 1, tapes: entries }));
  await writeFile(join(folder, 'session_graph.jsonl'), joinSessionGraphs(graphs));
  return written;
}

const exists = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );

/**
 * The folder is written completely or not at all, and never replaces an existing one.
 *
 * @throws KernelError `bad_request` when the folder exists already, or the disk reports an error.
 */
export async function writeTapeFolder(
  runtime: Runtime,
  tapes: readonly Tape[],
  { to, onLine }: { readonly to: string; readonly onLine: () => void },
): Promise<readonly WrittenTape[]> {
  const parts = ['session_graph.jsonl', 'tape'];
  for (const path of parts.map((part) => join(to, part))) {
    if (await exists(path))
      throw new KernelError('bad_request', {
        message: `--to: there is ${path} already.`,
        details: { field: 'to' },
      });
  }
  return onDisk(to, async () => {
    await mkdir(to, { recursive: true });
    const folder = await mkdtemp(join(to, '.boxcar-'));
    try {
      const written = await writeAll(runtime, tapes, { folder, onLine });
      for (const part of parts) await rename(join(folder, part), join(to, part));
      return written;
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });
}
