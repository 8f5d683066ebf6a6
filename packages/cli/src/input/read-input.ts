/** Reads files and stdin for the command line: no device or pipe by its path, and never more than a limit. */
import { type FileHandle, open } from 'node:fs/promises';
import { checkFile, MAX_TEXT_BYTES, MIB, READ_FLAGS } from '@boxcar/host/files';

/** For the output of programs: arguments and cards, whose own limits can be raised. */
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

/**
 * Reads a file, or stdin for `-`.
 *
 * @param maxBytes - Default 4 MiB.
 * @throws Error with the reason, or with the system's code, when the file cannot be read, is not a regular file or is too large.
 */
export async function readInput(path: string, maxBytes = MAX_TEXT_BYTES): Promise<Buffer> {
  if (path === '-') return collect(process.stdin, maxBytes);
  await using file = await open(path, READ_FLAGS);
  checkFile(await file.stat());
  return await collect(piecesOf(file), maxBytes);
}
