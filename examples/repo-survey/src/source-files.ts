/** Reads the text files of a folder, in an order that does not depend on the file system. */
import { constants } from 'node:fs';
import { type FileHandle, open, readdir, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel';
import { type Confined, IGNORED_FOLDERS } from './confinement.js';

/** A larger file counts as skipped. */
const MAX_FILE_BYTES = 2 * 1024 * 1024;
/** The maximum number of files per call; further files count as skipped. */
const MAX_FILES = 20_000;
const MAX_ENTRIES = 200_000;
const BINARY_PROBE_BYTES = 8_000;

export interface SourceFile {
  /** Below the root, with `/` between its parts. */
  readonly path: string;
  readonly text: string;
}

/** Reasons why an entry of a folder is in no figure. */
export const SKIP_REASONS = [
  'binary',
  'too_large',
  'over_limit',
  'links',
  'unreadable',
  'ignored_folders',
] as const;
export type SkipReason = (typeof SKIP_REASONS)[number];
export type Skipped = Record<SkipReason, number>;
export const noneSkipped = (): Skipped => ({
  binary: 0,
  too_large: 0,
  over_limit: 0,
  links: 0,
  unreadable: 0,
  ignored_folders: 0,
});

/** `tree`: the folder and everything below it; `files`: only the files directly in it. */
export const SCOPES = ['tree', 'files'] as const;
export type Scope = (typeof SCOPES)[number];

export interface ReadOptions {
  readonly scope: Scope;
  readonly signal: AbortSignal;
  readonly skipped?: Skipped;
  /** Default `MAX_FILES`. */
  readonly maxFiles?: number;
}

const byName = (left: { readonly name: string }, right: { readonly name: string }): number =>
  left.name < right.name ? -1 : left.name > right.name ? 1 : 0;

const below = (path: string, name: string): string => (path === '.' ? name : `${path}/${name}`);

/**
 * Yields the text files of a folder by path, one at a time. Links are never followed.
 *
 * @throws KernelError `payload_too_large` for a folder of too many entries.
 */
export async function* readSources(folder: Confined, options: ReadOptions): AsyncGenerator<SourceFile> {
  const { scope, signal, skipped = noneSkipped(), maxFiles = MAX_FILES } = options;
  const waiting: Confined[] = [folder];
  let entryCount = 0;
  let fileCount = 0;
  for (let here = waiting.pop(); here !== undefined; here = waiting.pop()) {
    signal.throwIfAborted();
    // Since the listing of its parent, a folder may have been replaced by a link: then its path is no longer its real path.
    const real = await realpath(here.absolute).catch(() => undefined);
    const entries =
      real === here.absolute ? await readdir(real, { withFileTypes: true }).catch(() => null) : null;
    if (entries === null) {
      skipped.unreadable += 1;
      continue;
    }
    entryCount += entries.length;
    if (entryCount > MAX_ENTRIES) {
      throw new KernelError('payload_too_large', {
        message: `path: '${folder.path}' holds more than ${MAX_ENTRIES} entries; survey a smaller folder.`,
        details: { path: folder.path, limitEntries: MAX_ENTRIES },
      });
    }
    const folders: Confined[] = [];
    for (const entry of entries.sort(byName)) {
      const found = { absolute: join(here.absolute, entry.name), path: below(here.path, entry.name) };
      if (entry.isSymbolicLink()) skipped.links += 1;
      else if (entry.isDirectory()) {
        if (IGNORED_FOLDERS.has(entry.name)) skipped.ignored_folders += 1;
        else if (scope === 'tree') folders.push(found);
      } else if (!entry.isFile()) skipped.unreadable += 1;
      else if (fileCount >= maxFiles) skipped.over_limit += 1;
      else {
        fileCount += 1;
        signal.throwIfAborted();
        const read = await readText(found.absolute);
        if (read.outcome === 'text') yield { path: found.path, text: read.text };
        else skipped[read.outcome] += 1;
      }
    }
    waiting.push(...folders.reverse());
  }
}

export type ReadText =
  | { readonly outcome: 'text'; readonly text: string }
  | { readonly outcome: Extract<SkipReason, 'binary' | 'too_large' | 'unreadable'> };

/**
 * The whole file, or undefined when it is larger than the limit. The reported size of a file is only a hint: files in `/proc` report 0
 * and may have no end, and other files grow.
 */
async function readWithin(
  file: FileHandle,
  limit: { readonly maxBytes: number; readonly hint: number },
): Promise<Buffer | undefined> {
  // One additional byte distinguishes a full buffer from the end of the file.
  let bytes = Buffer.allocUnsafe(Math.min(limit.hint, limit.maxBytes) + 1);
  let size = 0;
  for (;;) {
    const { bytesRead } = await file.read(bytes, size, bytes.length - size);
    if (bytesRead === 0) return bytes.subarray(0, size);
    size += bytesRead;
    if (size > limit.maxBytes) return undefined;
    if (size < bytes.length) continue;
    const larger = Buffer.allocUnsafe(Math.min(Math.max(size * 2, 64 * 1024), limit.maxBytes) + 1);
    bytes.copy(larger, 0, 0, size);
    bytes = larger;
  }
}

/** Reads one text file by its real path; a link, a pipe or a device is not opened. */
export async function readText(absolute: string, maxBytes = MAX_FILE_BYTES): Promise<ReadText> {
  let file: FileHandle | undefined;
  try {
    file = await open(
      absolute,
      constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0),
    );
    const stat = await file.stat();
    if (!stat.isFile()) return { outcome: 'unreadable' };
    if (stat.size > maxBytes) return { outcome: 'too_large' };
    const bytes = await readWithin(file, { maxBytes, hint: stat.size });
    if (bytes === undefined) return { outcome: 'too_large' };
    // Git, too, takes a NUL near the start as the sign of a binary file.
    if (bytes.subarray(0, BINARY_PROBE_BYTES).includes(0)) return { outcome: 'binary' };
    return { outcome: 'text', text: bytes.toString('utf8') };
  } catch {
    return { outcome: 'unreadable' };
  } finally {
    await file?.close();
  }
}

/** The number of lines of a text; a last line without a line end counts. */
export function countLines(text: string): number {
  let ends = 0;
  for (let at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) ends += 1;
  return text === '' || text.endsWith('\n') ? ends : ends + 1;
}
