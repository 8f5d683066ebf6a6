/** Files and stdin as the command line reads them: never a device or a pipe by its path, never more than a limit. */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';

const MIB = 1024 * 1024;
/** Of what people write: profiles, packing rules, settings. */
const MAX_BYTES = 4 * MIB;
/** Of what programs make: arguments and cards, whose own limits can be raised. */
export const MAX_DATA_BYTES = 64 * MIB;

async function collect(source: AsyncIterable<Uint8Array | string>, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of source) {
    const bytes = Buffer.from(chunk);
    size += bytes.byteLength;
    if (size > maxBytes) throw new Error(`is larger than ${maxBytes / MIB} MiB`);
    chunks.push(bytes);
  }
  return Buffer.concat(chunks);
}

async function* piecesOf(file: FileHandle): AsyncGenerator<Uint8Array> {
  for (;;) {
    const { bytesRead, buffer } = await file.read({ buffer: Buffer.allocUnsafe(64 * 1024) });
    if (bytesRead === 0) return;
    yield buffer.subarray(0, bytesRead);
  }
}

// To open a named pipe would wait for its writer.
const FLAGS = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

function checkFile(stats: Stats): void {
  if (stats.isDirectory())
    throw Object.assign(new Error('is a folder; name the files in it'), { code: 'EISDIR' });
  if (!stats.isFile()) throw new Error('is not a regular file; - reads stdin');
}

/** `readInput` of a file of at most 4 MiB, for settings, which are read before anything can wait. */
export function readInputSync(path: string): Buffer {
  const file = openSync(path, FLAGS);
  try {
    const stats = fstatSync(file);
    checkFile(stats);
    if (stats.size > MAX_BYTES) throw new Error(`is larger than ${MAX_BYTES / MIB} MiB`);
    return readFileSync(file);
  } finally {
    closeSync(file);
  }
}

/**
 * Reads a file, or stdin for `-`.
 *
 * @param maxBytes - Default 4 MiB.
 * @throws Error with the reason, or with the code of the system, for what cannot be read, is not a regular file or is too large.
 */
export async function readInput(path: string, maxBytes = MAX_BYTES): Promise<Buffer> {
  if (path === '-') return collect(process.stdin, maxBytes);
  await using file = await open(path, FLAGS);
  checkFile(await file.stat());
  return await collect(piecesOf(file), maxBytes);
}
