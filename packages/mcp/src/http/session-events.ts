/**
 * The last messages of a transport session.
 *
 * V1  A client whose connection broke continues after the last message that it has read.
 * V2  Messages that belong to no request go to the stream of the session. Messages that were sent while the stream was not open are
 *     delivered when it is opened: a client may open it after its first call.
 */
import type { EventStore, JSONRPCMessage } from '@modelcontextprotocol/server';

const MAX_EVENTS = 256;
const MAX_BYTES = 2 * 1024 * 1024;

interface Kept {
  readonly n: number;
  readonly streamId: string;
  readonly message: JSONRPCMessage;
  readonly bytes: number;
}

/** The transport's name of the session's own stream. */
const OWN_STREAM = '_GET_stream';
const ID = /^(\d{1,15})_(.{1,100})$/;

/** Keeps a limited number of messages in memory. The oldest are dropped first; the newest message stays whatever its size. */
export class SessionEvents implements EventStore {
  readonly #kept: Kept[] = [];
  #bytes = 0;
  #count = 0;
  /** Messages of the own stream with a higher number have had no reader; undefined while the stream is open. */
  #unreadAfter: number | undefined = 0;

  /** Whether this event, the last that a client has read, belongs to the own stream. */
  isOwn(eventId: string): boolean {
    return this.#read(eventId)?.streamId === OWN_STREAM;
  }

  /** Marks the own stream as open until the returned function is called. */
  openOwnStream(): () => void {
    this.#unreadAfter = undefined;
    return () => {
      this.#unreadAfter ??= this.#count;
    };
  }

  /** The id after which messages of the own stream have had no reader; undefined when there are no such messages. */
  get lastReadId(): string | undefined {
    const after = this.#unreadAfter;
    if (after === undefined) return undefined;
    const isMissed = this.#kept.some(({ n, streamId }) => streamId === OWN_STREAM && n > after);
    return isMissed ? `${after}_${OWN_STREAM}` : undefined;
  }

  async storeEvent(streamId: string, message: JSONRPCMessage): Promise<string> {
    this.#count += 1;
    const bytes = Buffer.byteLength(JSON.stringify(message));
    this.#kept.push({ n: this.#count, streamId, message, bytes });
    this.#bytes += bytes;
    while (this.#kept.length > 1 && (this.#kept.length > MAX_EVENTS || this.#bytes > MAX_BYTES))
      this.#bytes -= this.#kept.shift()?.bytes ?? 0;
    return `${this.#count}_${streamId}`;
  }

  async getStreamIdForEventId(eventId: string): Promise<string | undefined> {
    return this.#read(eventId)?.streamId;
  }

  async replayEventsAfter(
    lastEventId: string,
    { send }: { readonly send: (eventId: string, message: JSONRPCMessage) => Promise<void> },
  ): Promise<string> {
    const last = this.#read(lastEventId);
    if (last === undefined) throw new Error('this session has not sent an event with this id');
    // The first event of a stream has only an id.
    for (const { n, streamId, message } of [...this.#kept])
      if (streamId === last.streamId && n > last.n && 'jsonrpc' in message)
        await send(`${n}_${streamId}`, message);
    return last.streamId;
  }

  #read(eventId: string): { readonly n: number; readonly streamId: string } | undefined {
    const [, digits = '', streamId = ''] = ID.exec(eventId) ?? [];
    const n = Number(digits);
    return n <= this.#count && digits !== '' && streamId !== '' ? { n, streamId } : undefined;
  }
}
