/** The part of the Postgres protocol (version 3) that is needed to tell statements apart. */

const LENGTH_BYTES = 4;
const code = (letter: string): number => letter.charCodeAt(0);
const QUERY = code('Q');
const PARSE = code('P');
const BIND = code('B');
const EXECUTE = code('E');
const SYNC = code('S');
/** Messages that belong to a statement which is not complete yet. */
const PARTS = new Set([PARSE, BIND, EXECUTE, code('D'), code('C'), code('H')]);
const READY = code('Z');

/** Cuts a stream into messages. The first message of a client has a length but no type. */
function readMessages(
  isFirstBare: boolean,
  found: (message: Buffer, type: number) => void,
): (chunk: Buffer) => void {
  let rest: Buffer = Buffer.alloc(0);
  let typeBytes = isFirstBare ? 0 : 1;
  return (chunk) => {
    rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    while (rest.length >= typeBytes + LENGTH_BYTES) {
      const end = typeBytes + rest.readInt32BE(typeBytes);
      if (rest.length < end) return;
      const message = rest.subarray(0, end);
      rest = rest.subarray(end);
      const type = typeBytes === 0 ? 0 : (message[0] ?? 0);
      typeBytes = 1;
      found(message, type);
    }
  };
}

const textAt = (message: Buffer, from: number): string =>
  message.toString('utf8', from, message.indexOf(0, from));

/** A sequence of client messages, which the server answers with one message that it is ready. */
export interface Request {
  readonly bytes: Buffer;
  /** The text of the statement; undefined for other messages: the startup, a password, the termination. */
  readonly statement: string | undefined;
  /** Whether the server answers it with one message that it is ready. */
  readonly isAnswered: boolean;
}

/**
 * Cuts the messages of a client into requests: simple queries, and sequences from Parse to Sync. The text of such a sequence may have been
 * prepared earlier.
 */
export function readRequests(found: (request: Request) => void): (chunk: Buffer) => void {
  const prepared = new Map<string, string>();
  let parts: Buffer[] = [];
  let bound = '';
  let executed: string | undefined;
  const head = 1 + LENGTH_BYTES;
  return readMessages(true, (message, type) => {
    if (type === PARSE) {
      const name = textAt(message, head);
      prepared.set(name, textAt(message, head + Buffer.byteLength(name) + 1));
    }
    if (type === BIND) {
      const portal = textAt(message, head);
      bound = prepared.get(textAt(message, head + Buffer.byteLength(portal) + 1)) ?? '';
    }
    if (type === EXECUTE) executed = bound;
    if (PARTS.has(type)) {
      parts.push(message);
      return;
    }
    const bytes = parts.length === 0 ? message : Buffer.concat([...parts, message]);
    found({
      bytes,
      statement: type === QUERY ? textAt(message, head) : type === SYNC ? executed : undefined,
      // The startup is also answered once, when the password was right.
      isAnswered: type === QUERY || type === SYNC || type === 0,
    });
    parts = [];
    executed = undefined;
  });
}

/** Cuts the data of a server into messages, and marks the messages that end the answer to a request. */
export const readAnswers = (found: (message: Buffer, isEnd: boolean) => void): ((chunk: Buffer) => void) =>
  readMessages(false, (message, type) => found(message, type === READY));
