/** Passes results of the frame's checks to the route. They are kept apart because the framework gives the route another request object. */
import type { KeyPrincipal, Log } from '@boxcar/runtime';
import type { HttpBindings } from '@hono/node-server';

/** The results of the checks of a request so far. */
export interface Seen {
  readonly requestId: string;
  readonly log: Log;
  readonly startedAt: number;
  /** The origin of a page that may read the answer. */
  origin: string | undefined;
  principal: KeyPrincipal | undefined;
  /** Where the client reads which issuer gives tokens. */
  metadataUrl: string | undefined;
}

/** Keyed by the response object of the request. */
const SEEN = new WeakMap<HttpBindings['outgoing'], Seen>();

export const keepSeen = ({ outgoing }: HttpBindings, seen: Seen): void => void SEEN.set(outgoing, seen);

export function seenIn({ outgoing }: HttpBindings): Seen {
  const seen = SEEN.get(outgoing);
  if (seen === undefined) throw new Error('the request was not seen');
  return seen;
}
