/** Files of lines, read and written in chunks. */
import { createReadStream, createWriteStream } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { KernelError, lineTooLong, MAX_LINE_LENGTH } from '@boxcar/kernel';

/** Adds the path to an error of the disk; in the database layer the same codes have another meaning. */
function diskError(path: string, error: unknown): unknown {
  if (!(error instanceof Error && 'syscall' in error)) return error;
  return new KernelError('bad_request', {
    message: `${error.message}.`,
    details: { file: path },
    cause: error,
  });
}

/** Runs work on a path and converts its disk errors. */
export async function onDisk<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    throw diskError(path, error);
  }
}

const NEWLINE = 0x0a;
/** A UTF-16 code unit takes at most three bytes in UTF-8. */
const MAX_LINE_BYTES = 3 * MAX_LINE_LENGTH;

/** The lines of a file without their ends, otherwise unchanged: only a newline ends a line. */
export async function* readLines(path: string): AsyncGenerator<string, void, void> {
  // Text that is not UTF-8 could not be restored; a byte order mark is kept.
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let number = 0;
  const decode = (pieces: readonly Uint8Array[]): string => {
    number += 1;
    try {
      return decoder.decode(Buffer.concat(pieces));
    } catch {
      throw new KernelError('bad_request', {
        message: `Line ${number} is not UTF-8 text.`,
        details: { line: number },
      });
    }
  };
  let pieces: Uint8Array[] = [];
  let size = 0;
  try {
    for await (const chunk of createReadStream(path) as AsyncIterable<Uint8Array>) {
      let from = 0;
      for (let at = chunk.indexOf(NEWLINE); at >= 0; at = chunk.indexOf(NEWLINE, from)) {
        yield decode([...pieces, chunk.subarray(from, at)]);
        pieces = [];
        size = 0;
        from = at + 1;
      }
      if (from === chunk.length) continue;
      pieces.push(chunk.subarray(from));
      size += chunk.length - from;
      if (size > MAX_LINE_BYTES) throw lineTooLong(number + 1);
    }
  } catch (error) {
    throw diskError(path, error);
  }
  if (pieces.length > 0) yield decode(pieces);
}

/** Writes a new file, with a newline after each line. */
export const writeLines = (path: string, lines: AsyncIterable<string>): Promise<void> =>
  onDisk(path, () =>
    pipeline(
      Readable.from(
        (async function* () {
          for await (const line of lines) yield `${line}\n`;
        })(),
      ),
      createWriteStream(path, { flags: 'wx' }),
    ),
  );
