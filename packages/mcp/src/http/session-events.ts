/** The last messages of a transport session, for a client whose connection was cut: it goes on after the last one that it has read. */
import type { EventStore, JSONRPCMessage } from '@modelcontextprotocol/server';

const MAX_EVENTS = 256;
const MAX_BYTES = 2 * 1024 * 1024;

interface Kept {
  readonly n: number;
  readonly streamId: string;
  readonly message: JSONRPCMessage;
  readonly bytes: number;
}

const ID = /^(\d{1,15})_(.{1,100})$/;

/** Keeps a limited number of messages in memory; the oldest go first, and the newest one stays whatever its size. */
export class SessionEvents implements EventStore {
  readonly #kept: Kept[] = [];
  #bytes = 0;
  #count = 0;

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
    if (last === undefined) throw new Error('the id of an event that this session has not sent');
    // The first event of a stream only has an id.
    for (const { n, streamId, message } of [...this.#kept])
      if (streamId === last.streamId && n > last.n && 'jsonrpc' in message)
        await send(`${n}_${streamId}`, message);
    return last.streamId;
  }

  #read(eventId: string): { readonly n: number; readonly streamId: string } | undefined {
    const [, digits = '', streamId = ''] = ID.exec(eventId) ?? [];
    const n = Number(digits);
    return n >= 1 && n <= this.#count && streamId !== '' ? { n, streamId } : undefined;
  }
}
