/**
 * A `fetch` for MCP over HTTP: it applies the address rules of its server, and limits the size of messages.
 *
 * L1  A body that is one document may have at most `maxBytes`; in a stream of events, each event may.
 * L2  A larger body is aborted, and its connection closed.
 */
import { type AddressRules, createFetch } from '@boxcar/adapters/wire';

const NEWLINE = 10;
const RETURN = 13;

/** Counts the bytes since the last empty line. */
class EventSize {
  #bytes = 0;
  #isAtLineStart = true;

  add(chunk: Uint8Array): number {
    let most = 0;
    for (const byte of chunk) {
      if (byte === RETURN) continue;
      this.#bytes = byte === NEWLINE && this.#isAtLineStart ? 0 : this.#bytes + 1;
      this.#isAtLineStart = byte === NEWLINE;
      most = Math.max(most, this.#bytes);
    }
    return most;
  }
}

class DocumentSize {
  #bytes = 0;

  add(chunk: Uint8Array): number {
    this.#bytes += chunk.byteLength;
    return this.#bytes;
  }
}

function limited(response: Response, maxBytes: number): Response {
  if (response.body === null) return response;
  const isStream = (response.headers.get('content-type') ?? '').startsWith('text/event-stream');
  const size = isStream ? new EventSize() : new DocumentSize();
  const body = response.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform: (chunk, controller) => {
        if (size.add(chunk) > maxBytes)
          controller.error(new Error(`a message is larger than ${maxBytes} bytes`));
        else controller.enqueue(chunk);
      },
    }),
  );
  const { status, statusText, headers } = response;
  return new Response(body, { status, statusText, headers });
}

export function limitedFetch(rules: AddressRules, maxBytes: number): typeof globalThis.fetch {
  const fetch = createFetch(rules, { what: 'The address of the MCP server' });
  return async (input, init) => limited(await fetch(input, init), maxBytes);
}
