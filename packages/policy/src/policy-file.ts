/** A policy file on the disk: its bytes, and a mark that distinguishes its states. */
import { type BigIntStats, closeSync, constants, fstatSync, openSync, readFileSync, statSync } from 'node:fs';

const MAX_BYTES = 4 * 1024 * 1024;

// Without O_NONBLOCK, opening a named pipe would wait for its writer.
const READ_FLAGS = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

export interface FileState {
  /** Equal for two checks of the same state of the same file: its inode, size and times of change. */
  readonly mark: string;
  /** When its content changed, in milliseconds since 1970. */
  readonly modifiedMs: number;
}

const stateOf = ({ dev, ino, size, mtimeNs, ctimeNs, mtimeMs }: BigIntStats): FileState => ({
  mark: [dev, ino, size, mtimeNs, ctimeNs].join(':'),
  modifiedMs: Number(mtimeMs),
});

/** @throws Error with the system's code when the file does not exist. */
export const lookAt = (path: string): FileState => stateOf(statSync(path, { bigint: true }));

/**
 * Reads a regular file of at most 4 MiB.
 *
 * @returns Its bytes and its state; the state is undefined when the file changed while it was read.
 * @throws Error with the reason.
 */
export function readPolicyFile(path: string): { bytes: Buffer; state: FileState | undefined } {
  const file = openSync(path, READ_FLAGS);
  try {
    const stats = fstatSync(file, { bigint: true });
    if (!stats.isFile()) throw new Error('it is not a regular file');
    if (stats.size > MAX_BYTES) throw new Error(`it is larger than ${MAX_BYTES} bytes`);
    const bytes = readFileSync(file);
    const [before, after] = [stateOf(stats), stateOf(fstatSync(file, { bigint: true }))];
    return { bytes, state: before.mark === after.mark ? after : undefined };
  } finally {
    closeSync(file);
  }
}
