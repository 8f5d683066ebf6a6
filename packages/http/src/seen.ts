/** What the checks of the frame hand on to the route, which is given a request of another object by its framework. */
import type { KeyPrincipal, Log } from '@boxcar/runtime';
import type { HttpBindings } from '@hono/node-server';

/** What the checks have found out about a request so far. */
export interface Seen {
  readonly requestId: string;
  readonly log: Log;
  readonly startedAt: number;
  /** Of a page that may read the answer. */
  origin: string | undefined;
  principal: KeyPrincipal | undefined;
  /** Where the client reads which issuer gives tokens. */
  metadataUrl: string | undefined;
}

/** By the answer of the request. */
const SEEN = new WeakMap<HttpBindings['outgoing'], Seen>();

export const keepSeen = ({ outgoing }: HttpBindings, seen: Seen): void => void SEEN.set(outgoing, seen);

export function seenIn({ outgoing }: HttpBindings): Seen {
  const seen = SEEN.get(outgoing);
  if (seen === undefined) throw new Error('the request was not seen');
  return seen;
}
