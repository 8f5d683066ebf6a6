/** Stores texts and returns them in their order: in memory up to a limit, after that in a temporary file. */
import { randomUUID } from 'node:crypto';
import { type FileHandle, open, unlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const IN_MEMORY_CHARACTERS = 16_000_000;

/** Opens an unlinked file: the system removes it when this process closes it or ends. */
async function openUnnamed(): Promise<FileHandle> {
  const path = join(tmpdir(), `boxcar-spool-${randomUUID()}`);
  const file = await open(path, 'wx+', 0o600);
  await unlink(path);
  return file;
}

export class TextSpool implements AsyncDisposable {
  readonly #limit: number;
  readonly #inMemory: string[] = [];
  /** Sizes of the texts in the file, in bytes. */
  readonly #sizes: number[] = [];
  #characters = 0;
  #file: FileHandle | undefined;

  constructor(inMemoryCharacters = IN_MEMORY_CHARACTERS) {
    this.#limit = inMemoryCharacters;
  }

  get isInFile(): boolean {
    return this.#file !== undefined;
  }

  /** @param text - Well-formed Unicode, like the output of `JSON.stringify`. */
  async add(text: string): Promise<void> {
    this.#characters += text.length;
    if (this.#file === undefined && this.#characters <= this.#limit) {
      this.#inMemory.push(text);
      return;
    }
    this.#file ??= await openUnnamed();
    const bytes = Buffer.from(text);
    await this.#file.appendFile(bytes);
    this.#sizes.push(bytes.length);
  }

  /** All texts; each call starts at the first text. */
  async *texts(): AsyncGenerator<string, void, void> {
    yield* this.#inMemory;
    let position = 0;
    for (const size of this.#sizes) {
      yield await this.#read(position, size);
      position += size;
    }
  }

  async #read(position: number, size: number): Promise<string> {
    const bytes = Buffer.allocUnsafe(size);
    for (let read = 0; read < size; ) {
      const part = await this.#file?.read(bytes, read, size - read, position + read);
      if (part === undefined || part.bytesRead === 0) throw new Error('a temporary file ended early');
      read += part.bytesRead;
    }
    return bytes.toString();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file?.close();
  }
}
