/** Files as settings are read: never a device or a pipe by its path, never more than a limit. */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';

export const MIB = 1024 * 1024;
/** Of what people write: profiles, packing rules, settings. */
export const MAX_TEXT_BYTES = 4 * MIB;

// To open a named pipe would wait for its writer.
export const READ_FLAGS = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

/** @throws Error with the reason for what is not a regular file. */
export function checkFile(stats: Stats): void {
  if (stats.isDirectory())
    throw Object.assign(new Error('is a folder; name the files in it'), { code: 'EISDIR' });
  if (!stats.isFile()) throw new Error('is not a regular file; - reads stdin');
}

/** Reads a file of at most 4 MiB, for settings, which are read before anything can wait. */
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
