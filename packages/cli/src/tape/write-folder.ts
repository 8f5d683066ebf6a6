/** Writes a tape as the original's folder: `tape/main.jsonl`, `manifest.json`, `archived/`, `session_graph.jsonl`. */
import { access, mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { anchorNameOf, formatManifest, KernelError, type ManifestTape, readRecord } from '@boxcar/kernel';
import type { Runtime, Tape } from '@boxcar/runtime';
import { onDisk, writeLines } from './lines.js';

export interface WrittenFolder {
  /** The name of the tape, or of its box. */
  readonly id: string;
  /** Of the tape as it is now. */
  readonly lines: number;
  /** Earlier incarnations. */
  readonly archived: number;
}

interface Target {
  /** A folder that exists. */
  readonly folder: string;
  readonly onLine: () => void;
}

type FileFacts = Pick<ManifestTape, 'head_id' | 'anchors'> & { readonly lines: number };

/** Writes the lines of a tape, and reads off them what the manifest says. */
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

async function writeAll(runtime: Runtime, tape: Tape, { folder, onLine }: Target): Promise<WrittenFolder> {
  const { id, parent, archived, sessionGraph } = await tape.folder();
  // A reset from now on is of no concern.
  const open = (box: string): Promise<Tape> =>
    runtime.tape({ box }, { projectId: tape.projectId, as: tape.actorId });
  const main = await open(tape.boxId);
  const tapes: ManifestTape[] = [];
  await mkdir(join(folder, 'tape/archived'), { recursive: true });
  for (const [index, { boxId, archivedAt }] of archived.entries()) {
    const day = archivedAt.toISOString().slice(0, 10);
    const file = `archived/main_${day}_${String(index + 1).padStart(3, '0')}.jsonl`;
    const { lines: _lines, ...facts } = await writeTape(
      await open(boxId),
      join(folder, 'tape', file),
      onLine,
    );
    tapes.push({ id, file, parent: null, archived: true, ...facts });
  }
  const { lines, ...facts } = await writeTape(main, join(folder, 'tape/main.jsonl'), onLine);
  tapes.unshift({ id, file: 'main.jsonl', parent, archived: false, ...facts });
  await writeFile(join(folder, 'tape/manifest.json'), formatManifest({ version: 1, tapes }));
  await writeFile(join(folder, 'session_graph.jsonl'), sessionGraph);
  return { id, lines, archived: archived.length };
}

const exists = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );

/**
 * What it writes is there as a whole or not at all, and in the place of nothing.
 *
 * @throws KernelError `bad_request` when there is one already, or the disk refuses.
 */
export async function writeTapeFolder(
  runtime: Runtime,
  tape: Tape,
  { to, onLine }: { readonly to: string; readonly onLine: () => void },
): Promise<WrittenFolder> {
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
      const written = await writeAll(runtime, tape, { folder, onLine });
      for (const part of parts) await rename(join(folder, part), join(to, part));
      return written;
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });
}
