/**
 * `subscriptions/listen` of the revision 2026-07-28: one stream with the changes of the resources that its request names.
 *
 * The SDK writes the stream, but requests events without saying for which resources. So the request is parsed here first: resources that
 * the client cannot see are removed from it, and the acknowledgement names the rest.
 */
import type { ServerEvent, ServerEventBus } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { urisOf, withUris } from '../resources/listen-filter.js';
import { Subscriptions } from '../resources/subscriptions.js';

/** The event bus of one stream. */
class StreamBus implements ServerEventBus {
  readonly #listeners = new Set<(event: ServerEvent) => void>();

  publish(event: ServerEvent): void {
    for (const listener of this.#listeners) listener(event);
  }

  subscribe(listener: (event: ServerEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }
}

export interface Listening {
  /** The request without the resources that the client cannot see. */
  readonly body: unknown;
  readonly bus: ServerEventBus;
  close(): void;
}

/** @throws ProtocolError for more resources than a client may follow. */
export async function openListening(scope: McpClientScope, body: unknown): Promise<Listening> {
  const bus = new StreamBus();
  const subscriptions = new Subscriptions(scope, (uri) => bus.publish({ kind: 'resource_updated', uri }));
  const close = (): void => subscriptions.close();
  const uris = urisOf(body);
  if (uris === undefined) return { body, bus, close };
  try {
    const seen: string[] = [];
    for (const uri of uris) if (await subscriptions.add(uri)) seen.push(uri);
    return { body: withUris(body, seen), bus, close };
  } catch (error) {
    close();
    throw error;
  }
}

/** The id of a request; null when it has none. */
export const requestIdOf = (body: unknown): string | number | null => {
  const id: unknown = typeof body === 'object' && body !== null ? Reflect.get(body, 'id') : null;
  return typeof id === 'string' || typeof id === 'number' ? id : null;
};
