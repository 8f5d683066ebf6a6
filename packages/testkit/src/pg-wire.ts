/** As much of the Postgres protocol (version 3) as it takes to tell statements apart. */

const LENGTH_BYTES = 4;
const code = (letter: string): number => letter.charCodeAt(0);
const QUERY = code('Q');
const PARSE = code('P');
const BIND = code('B');
const EXECUTE = code('E');
const SYNC = code('S');
/** What belongs to a statement that is not complete yet. */
const PARTS = new Set([PARSE, BIND, EXECUTE, code('D'), code('C'), code('H')]);
const READY = code('Z');

/** Cuts a stream into messages. The first one that a client sends has a length and no type. */
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

/** What a client sends in one go, which the server answers with one message that it is ready. */
export interface Request {
  readonly bytes: Buffer;
  /** The text of the statement; undefined for what is none: the beginning, a password, the goodbye. */
  readonly statement: string | undefined;
  /** The server says once for it that it is ready. */
  readonly isAnswered: boolean;
}

/** Cuts what a client sends into requests: simple queries, and Parse to Sync with the text that was prepared, maybe earlier. */
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
      // The beginning is answered once too, when the password was right.
      isAnswered: type === QUERY || type === SYNC || type === 0,
    });
    parts = [];
    executed = undefined;
  });
}

/** Cuts what a server sends into messages, and tells those apart that end the answer to a request. */
export const readAnswers = (found: (message: Buffer, isEnd: boolean) => void): ((chunk: Buffer) => void) =>
  readMessages(false, (message, type) => found(message, type === READY));
