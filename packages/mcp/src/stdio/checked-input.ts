/**
 * Checks the lines of a client before the SDK reads them. The SDK ignores a line that is not a message, so its sender would wait forever,
 * and ends the connection at a line that is too long. Here such lines get an answer, and the connection continues.
 */
import { Transform, type TransformCallback } from 'node:stream';
import { type JSONRPCMessage, parseJSONRPCMessage } from '@modelcontextprotocol/server';

/** A content of 1 MiB grows up to six times when each character is escaped. */
export const MAX_LINE_BYTES = 16 * 1_048_576;

const PARSE_ERROR = -32700;
const INVALID_REQUEST = -32600;
const NEWLINE = 0x0a;

export interface LineError {
  readonly jsonrpc: '2.0';
  readonly id: string | number | null;
  readonly error: { readonly code: number; readonly message: string };
}

const refusal = (code: number, message: string, id: LineError['id'] = null): LineError => ({
  jsonrpc: '2.0',
  id,
  error: { code, message },
});

const tooLong = (): LineError =>
  refusal(INVALID_REQUEST, `The message is longer than ${MAX_LINE_BYTES} bytes. Send less at once.`);

/** The id of a request that is not valid, when it has one. */
const idIn = (value: unknown): LineError['id'] => {
  const { id } = Object(value) as { readonly id?: unknown };
  return typeof id === 'string' || (typeof id === 'number' && Number.isInteger(id)) ? id : null;
};

/** A line as a message, or the error for its sender. */
function readLine(bytes: Uint8Array): { readonly message: JSONRPCMessage } | { readonly error: LineError } {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    return { error: refusal(PARSE_ERROR, 'The line is not JSON in UTF-8.') };
  }
  try {
    return { message: parseJSONRPCMessage(value) };
  } catch {
    return { error: refusal(INVALID_REQUEST, 'The line is not a JSON-RPC 2.0 message.', idIn(value)) };
  }
}

const isBlank = (bytes: Uint8Array): boolean =>
  bytes.every((byte) => byte === 0x20 || byte === 0x0d || byte === 0x09);

export interface InputOptions {
  onMessage(message: JSONRPCMessage): void;
  onRefused(error: LineError): void;
  /** The end of the input is passed to the SDK only after this has settled. */
  untilDone(): Promise<void>;
}

export class CheckedInput extends Transform {
  readonly #options: InputOptions;
  #parts: Uint8Array[] = [];
  #length = 0;
  #isSkipping = false;

  constructor(options: InputOptions) {
    super();
    this.#options = options;
  }

  override _transform(chunk: Uint8Array, _encoding: BufferEncoding, done: TransformCallback): void {
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, from)) {
      this.#add(chunk.subarray(from, end));
      this.#endLine();
      from = end + 1;
    }
    this.#add(chunk.subarray(from));
    done();
  }

  override _flush(done: TransformCallback): void {
    this.#endLine();
    this.#options.untilDone().then(
      () => done(),
      (error: Error) => done(error),
    );
  }

  #add(part: Uint8Array): void {
    if (this.#isSkipping || part.length === 0) return;
    this.#parts.push(part);
    this.#length += part.length;
    if (this.#length <= MAX_LINE_BYTES) return;
    this.#clear();
    this.#isSkipping = true;
    this.#options.onRefused(tooLong());
  }

  #endLine(): void {
    const line = Buffer.concat(this.#parts);
    const wasSkipped = this.#isSkipping;
    this.#clear();
    this.#isSkipping = false;
    if (wasSkipped || isBlank(line)) return;
    const read = readLine(line);
    if ('error' in read) {
      this.#options.onRefused(read.error);
      return;
    }
    this.#options.onMessage(read.message);
    this.push(Buffer.concat([line, Buffer.of(NEWLINE)]));
  }

  #clear(): void {
    this.#parts = [];
    this.#length = 0;
  }
}
