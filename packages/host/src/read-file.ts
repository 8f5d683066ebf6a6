/** Reads files of settings. Refuses devices and pipes, and files above a size limit. */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';

export const MIB = 1024 * 1024;
/** The limit for files that people write: profiles, packing rules, settings. */
export const MAX_TEXT_BYTES = 4 * MIB;

// Without this flag, opening a named pipe would wait for its writer.
export const READ_FLAGS = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

/** @throws Error with the reason when the path is not a regular file. */
export function checkFile(stats: Stats): void {
  if (stats.isDirectory())
    throw Object.assign(new Error('is a folder; name the files in it'), { code: 'EISDIR' });
  if (!stats.isFile()) throw new Error('is not a regular file; - reads stdin');
}

/** Reads a settings file of at most 4 MiB. Synchronous, because settings are read before the program can wait for anything. */
export function readSettingsFile(path: string): Buffer {
  const file = openSync(path, READ_FLAGS);
  try {
    const stats = fstatSync(file);
    checkFile(stats);
    if (stats.size > MAX_TEXT_BYTES) throw new Error(`is larger than ${MAX_TEXT_BYTES / MIB} MiB`);
    return readFileSync(file);
  } finally {
    closeSync(file);
  }
}
